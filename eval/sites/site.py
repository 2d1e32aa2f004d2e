"""A site: where a model's outputs are taken, by layers, a part of the block, and ablations."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

from arch import LanguageModel
from eval.messages import ArgumentError, RequestError
from eval.models.checkpoint import Checkpoint
from eval.sites.circuit import PARTS, Circuit


@dataclass(frozen=True)
class Site:
    """Where evidence is taken: layers (several are joined), a part of the block, ablations."""

    layers: tuple[int, ...]
    part: str = "block"
    without: frozenset[str] = frozenset()

    def circuit(self, checkpoint: Checkpoint) -> Circuit:
        """The site of a checkpoint.

        Raises:
            RequestError: the model has no such site.
        """
        try:
            return Circuit(checkpoint.model, self.layers, self.part, self.without)
        except RequestError as error:
            raise RequestError(f"{checkpoint.path}: {error}") from None

    @property
    def record(self) -> dict[str, Any]:
        """The `site` field of a row."""
        layer = self.layers[0] if len(self.layers) == 1 else list(self.layers)
        return {"layer": layer, "part": self.part, "without": sorted(self.without)}


def choose_layers(checkpoint: Checkpoint, words: Sequence[int | str]) -> list[tuple[int, ...]]:
    """The layers of `--layers`, each once; several that are joined stand in one tuple.

    Args:
        words: `all` (every block's), `last`, numbers from 0 (the embedding), or numbers joined, as
            `1+4`.

    Raises:
        RequestError: another word, or a layer that the model has not.
    """
    depth, chosen = checkpoint.config.n_layers, list[tuple[int, ...]]()
    for word in map(str, words):
        numbers = [depth] if word == "last" else word.split("+")
        if word == "all":
            chosen += [(layer,) for layer in range(1, depth + 1)]
        elif all(str(number).isdecimal() for number in numbers):
            chosen.append(tuple(sorted({int(number) for number in numbers})))
        else:
            given = " ".join(map(str, words))
            raise ArgumentError("--layers", "must be all, last, or numbers, as in 1 4 1+4", given)
    for layer in {layer for layers in chosen for layer in layers}:
        checkpoint.check_layer(layer)
    return list(dict.fromkeys(chosen))


def choose_single_layers(checkpoint: Checkpoint, words: Sequence[int | str]) -> list[int]:
    """The layers of `--layers` for a question that cannot be asked of joined ones."""
    chosen = choose_layers(checkpoint, words)
    for layers in chosen:
        if len(layers) > 1:
            joined = "+".join(map(str, layers))
            raise ArgumentError("--layers", "layers cannot be joined here; give them apart", joined)
    return [layer for (layer,) in chosen]


def list_circuits(model: LanguageModel, parts: Iterable[str]) -> list[Circuit]:
    """The sites of single layers that a model has of these parts; of the embedding block alone."""
    circuits = []
    for part, layer in product(parts, range(len(model.blocks) + 1)):
        if layer or part == "block":
            with suppress(RequestError):  # a mixer without keys, or a block known as a whole
                circuits.append(Circuit(model, layer, part))
    return circuits


def read_sites(checkpoint: Checkpoint, words: Sequence[int | str]) -> dict[str, Circuit]:
    """The circuits of sites by their names, as `activations` takes them: `block.3`.

    Args:
        words: PART.LAYERS, or layers alone for the part block; layers are as `choose_layers` reads
            them.

    Raises:
        RequestError: not of that form, or no such part or layer.
    """
    circuits = {}
    for word in map(str, words):
        part, dot, layers = word.rpartition(".")
        part = part if dot else "block"
        if part not in PARTS:
            raise RequestError(
                f"site {word!r}: must be PART.LAYERS with PART one of {', '.join(PARTS)}, as in "
                "block.3 or block.1+4; or layers alone, as in 3, all or last"
            )
        for joined in choose_layers(checkpoint, [layers]):
            circuit = Circuit(checkpoint.model, joined, part)
            circuits[circuit.name] = circuit
    return circuits
