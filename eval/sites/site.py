"""A site: where a model's outputs are taken, by layers, a part of the block, and ablations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.messages import RequestError
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


def read_site(name: str, checkpoint: Checkpoint) -> Circuit:
    """The circuit of a site by its name, as `activations` takes it.

    Raises:
        RequestError: not of that form, or no such part or layer.
    """
    part, _, layers = name.rpartition(".")
    numbers: list[str] = layers.split("+")
    if not all(number.isdecimal() for number in numbers) or part not in PARTS:
        raise RequestError(
            f"site {name!r}: must be PART.LAYER with PART one of {', '.join(PARTS)}, as in block.3 "
            "or block.1+4; or a layer's number, all or last"
        )
    return open_site(checkpoint, [int(number) for number in numbers], part)


def open_site(checkpoint: Checkpoint, layers: Sequence[int], part: str) -> Circuit:
    """The circuit of one layer, or of several joined.

    Raises:
        RequestError: no such layer or part.
    """
    for layer in layers:
        checkpoint.check_layer(layer)
    return Circuit(checkpoint.model, layers[0] if len(layers) == 1 else tuple(layers), part)
