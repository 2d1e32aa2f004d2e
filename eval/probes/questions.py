"""What the probes ask of checkpoints: tasks that give rows."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import torch

from eval.checkpoints import Checkpoint
from eval.circuit import Circuit
from eval.errors import RequestError
from eval.inversion.slices import Slice
from eval.probes.inverter import Decoding, fit_inverter, score_inverter
from eval.probes.linear import (
    KINDS,
    Score,
    Training,
    fit_linear,
    score_linear,
    score_unigram,
)
from eval.results import Results, Row, row_key
from eval.text import held_out_text


@dataclass(frozen=True)
class Stories:
    """Where the text comes from, and how much of it is used.

    Attributes:
        corpus: whose held-out stories are read.
        length: tokens of a window.
        train: windows of stories for fitting.
        valid: windows of stories for evaluation.
    """

    corpus: str
    length: int
    train: int
    valid: int

    def load(self, checkpoint: Checkpoint) -> tuple[torch.Tensor, torch.Tensor]:
        """Windows to fit on and windows to judge on, `(N, length)`, on the model's device.

        Raises:
            RequestError: too long for the model, or not enough text.
        """
        if self.length > checkpoint.config.context:
            raise RequestError(
                f"--length {self.length}: the context of {checkpoint.path} is "
                f"{checkpoint.config.context}; give a shorter one"
            )
        device = checkpoint.model.embedding.weight.device
        text = held_out_text(checkpoint, self.corpus)
        return (
            text.windows("fitting", self.train, self.length).to(device),
            text.windows("evaluation", self.valid, self.length).to(device),
        )


@dataclass(frozen=True)
class Probes:
    """A task: linear probes of all layers and offsets of a checkpoint, fitted together."""

    checkpoint: Checkpoint
    stories: Stories
    layers: tuple[int, ...]
    offsets: tuple[int, ...]
    training: Training

    @property
    def cost(self) -> float:
        """How long it is likely to take, in no unit."""
        steps = 30 + self.training.steps
        return len(self.layers) * len(self.offsets) * steps * self.checkpoint.config.d_model

    def keys(self) -> dict[str, tuple[int, int, str]]:
        """The rows' keys, with layer, offset and kind."""
        kinds = KINDS if self.training.steps else KINDS[:2]
        return {
            self._key(layer, offset, kind): (layer, offset, kind)
            for layer in self.layers
            for offset in self.offsets
            for kind in kinds
        }

    def run(self) -> list[Row]:
        """One row per layer, offset and kind of probe."""
        started = time.perf_counter()
        train, valid = self.stories.load(self.checkpoint)
        circuit = Circuit(self.checkpoint.model, self.layers)
        probes = fit_linear(circuit, train, list(self.offsets), self.training)
        scores = score_linear(circuit, valid, probes)
        T, V = self.stories.length, self.checkpoint.config.vocab_size
        nothing = {
            o: score_unigram(train, valid[:, max(0, o) : T + min(0, o)], V) for o in self.offsets
        }
        seconds = (time.perf_counter() - started) / len(scores)
        return [
            {
                "key": self._key(place.layer, place.offset, kind),
                "kind": "probe",
                "checkpoint": self.checkpoint.provenance,
                "site": {"layer": place.layer, "part": "block"},
                "offset": place.offset,
                "method": kind,
                "settings": self._settings(kind),
                **_figures(score, nothing[place.offset]),
                "seconds": round(seconds, 4),
            }
            for (place, kind), score in scores.items()
        ]

    def _settings(self, kind: str) -> dict:
        trained = asdict(self.training) if kind == "softmax" else {}
        return {**asdict(self.stories), **trained}

    def _key(self, layer: int, offset: int, kind: str) -> str:
        return _key(self.checkpoint, "probe", layer, offset, kind, self._settings(kind))


@dataclass(frozen=True)
class Inversion:
    """A task: one trained inverter of a layer's slice."""

    checkpoint: Checkpoint
    stories: Stories
    layer: int
    slice: Slice
    decoding: Decoding

    @property
    def cost(self) -> float:
        """How long it is likely to take, in the unit of `Probes.cost`."""
        per_step = 12 * self.decoding.windows / 16 * self.stories.length / 64
        return per_step * (30 + self.decoding.steps) * self.checkpoint.config.d_model

    def keys(self) -> list[str]:
        """The row's key."""
        settings = {**asdict(self.stories), **asdict(self.decoding)}
        return [_key(self.checkpoint, "inverter", self.layer, str(self.slice), settings)]

    def run(self) -> list[Row]:
        """One row, with the shown (self) and the hidden (non-self) tokens apart."""
        started = time.perf_counter()
        train, valid = self.stories.load(self.checkpoint)
        circuit = Circuit(self.checkpoint.model, self.layer)
        inverter = fit_inverter(circuit, self.slice, train, self.decoding)
        scores = score_inverter(circuit, self.slice, valid, inverter)
        hidden = [t for t in range(self.stories.length) if t not in set(inverter.shown)]
        V = self.checkpoint.config.vocab_size
        figures = [
            _figures(score, score_unigram(train, valid[:, positions], V)) if positions else None
            for score, positions in zip(scores, (inverter.shown, hidden), strict=True)
        ]
        return [
            {
                "key": self.keys()[0],
                "kind": "probe",
                "checkpoint": self.checkpoint.provenance,
                "site": {"layer": self.layer, "part": "block"},
                "slice": str(self.slice),
                "length": self.stories.length,
                "hidden": len(hidden),
                "method": "inverter",
                "settings": {**asdict(self.stories), **asdict(self.decoding)},
                "self": figures[0],
                "nonself": figures[1],
                "seconds": round(time.perf_counter() - started, 4),
            }
        ]


Task = Probes | Inversion


def plan(
    checkpoint: Checkpoint,
    stories: Stories,
    layers: list[int] | None,
    offsets: list[int],
    training: Training,
    slices: list[Slice],
    decoding: Decoding,
    done: set[str],
) -> list[Task]:
    """The work that a checkpoint makes, less what is done already.

    Args:
        checkpoint: what is asked about.
        stories: the text, which is read once here so that bad text is refused before any work.
        layers: None for every block's output.
        offsets: of the linear probes.
        training: of the softmax probes.
        slices: what trained inverters are shown; none for no inverters.
        decoding: of the inverters.
        done: keys of rows that are there.

    Raises:
        RequestError: a layer, offset or slice that does not exist, or not enough text.
    """
    chosen = choose_layers(checkpoint, layers)
    for offset in offsets:
        if abs(offset) >= stories.length:
            raise RequestError(
                f"--offsets {offset}: windows have {stories.length} tokens; "
                "give an offset within them, or a longer --length"
            )
    for shown in slices:
        shown.positions(stories.length)
        shown.channels(checkpoint.config.d_model)
    stories.load(checkpoint)
    tasks: list[Task] = []
    probes = Probes(checkpoint, stories, chosen, tuple(offsets), training)
    left = {layer for key, (layer, *_) in probes.keys().items() if key not in done}
    if left:
        missing = tuple(layer for layer in chosen if layer in left)
        tasks.append(Probes(checkpoint, stories, missing, tuple(offsets), training))
    inversions = [
        Inversion(checkpoint, stories, layer, shown, decoding)
        for layer in chosen
        for shown in slices
    ]
    return tasks + [task for task in inversions if task.keys()[0] not in done]


def run_all(tasks: Iterable[Task], results: Results) -> Iterator[list[Row]]:
    """Runs tasks one after the other, each one's rows saved before the next begins."""
    for task in tasks:
        rows = task.run()
        results.append(rows)
        yield rows


def choose_layers(checkpoint: Checkpoint, layers: list[int] | None) -> tuple[int, ...]:
    """The layers asked for, or all blocks'.

    Raises:
        RequestError: one that does not exist.
    """
    depth = checkpoint.config.n_layers
    for layer in layers or []:
        if not 0 <= layer <= depth:
            raise RequestError(
                f"--layers {layer}: {checkpoint.path} has layers 0 (the embedding) to {depth}"
            )
    return tuple(dict.fromkeys(layers)) if layers else tuple(range(1, depth + 1))


def _figures(score: Score, nothing: Score) -> dict:
    known = nothing.record()
    figures = score.record()
    gain = None if figures["nats"] is None else known["nats"] - figures["nats"]
    return {**figures, "unigram": known, "gain": gain}


def _key(checkpoint: Checkpoint, *about: object) -> str:
    provenance = checkpoint.provenance
    return row_key(*(provenance[f] for f in ("name", "step", "weights_sha256")), *about)
