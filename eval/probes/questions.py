"""What the probes ask of checkpoints: tasks that give rows."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

from torch import Tensor

from eval.artefacts import fitted
from eval.circuit import Circuit
from eval.classifiers import Classifier
from eval.errors import RequestError
from eval.models import Checkpoint, tokens_at_once
from eval.probes.inverter import Decoding, Inverter, fit_inverter, score_inverter
from eval.probes.linear import (
    KINDS,
    Score,
    Training,
    fit_linear,
    outputs_of,
    score_linear,
    score_unigram,
)
from eval.rows import Results, Row, row_key
from eval.slices import Slice
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

    @property
    def fit(self) -> dict[str, Any]:
        """What a fit depends on."""
        return {"corpus": self.corpus, "length": self.length, "train": self.train}

    def load(self, checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
        """Windows to fit on and windows to judge on, `(N, length)`, on the model's device.

        Raises:
            RequestError: too long for the model, or not enough text.
        """
        checkpoint.check_length(self.length)

        def make() -> tuple[Tensor, Tensor]:
            device = checkpoint.model.embedding.weight.device
            text = held_out_text(checkpoint, self.corpus)
            return (
                text.windows("fitting", self.train, self.length).to(device),
                text.windows("evaluation", self.valid, self.length).to(device),
            )

        return checkpoint.keep(self, make)


@dataclass(frozen=True)
class Probes:
    """A task: linear probes of all offsets of a layer."""

    checkpoint: Checkpoint
    stories: Stories
    layer: int
    offsets: tuple[int, ...]
    training: Training

    @property
    def cost(self) -> float:
        """How long it is likely to take, in no unit."""
        return len(self.offsets) * (30 + self.training.steps) * self.checkpoint.config.d_model

    @property
    def keys(self) -> list[str]:
        """The rows' keys."""
        kinds = KINDS if self.training.steps else KINDS[:2]
        return [self._key(offset, kind) for offset in self.offsets for kind in kinds]

    def run(self, results: Results) -> list[Row]:
        """One row per offset and kind of probe; what is fitted is kept, or read where it was."""
        train, valid = self.stories.load(self.checkpoint)
        circuit = Circuit(self.checkpoint.model, self.layer)
        read, outputs = outputs_of(circuit, valid), cache(partial(outputs_of, circuit, train))
        T, V = self.stories.length, self.checkpoint.config.vocab_size
        rows = []
        for offset in self.offsets:
            started = time.perf_counter()
            about = {"probe": "linear", **self._fit(offset)}
            fit = partial(self._tensors, circuit, outputs, train, offset)
            tensors = fitted(results.directory, self.checkpoint, about, [train], fit)
            scores = score_linear(read, valid, offset, _classifiers(tensors))
            nothing = score_unigram(train, valid[:, max(0, offset) : T + min(0, offset)], V)
            seconds = round((time.perf_counter() - started) / len(scores), 4)
            rows += [
                {
                    "key": self._key(offset, kind),
                    "kind": "probe",
                    "checkpoint": self.checkpoint.provenance,
                    "site": {"layer": self.layer, "part": "block"},
                    "offset": offset,
                    "method": kind,
                    "settings": self._settings(kind),
                    **_figures(score, nothing),
                    "tokens_at_once": tokens_at_once(self.checkpoint.model),
                    "seconds": seconds,
                }
                for kind, score in scores.items()
            ]
        return rows

    def _tensors(
        self, circuit: Circuit, outputs: Callable[[], Tensor], train: Tensor, offset: int
    ) -> dict[str, Tensor]:
        probes = fit_linear(outputs(), train, offset, circuit.vocabulary, self.training)
        return {f"{k}.{n}": t for k, p in probes.items() for n, t in p._asdict().items()}

    def _fit(self, offset: int) -> dict[str, Any]:
        """What the fit depends on, beside the model."""
        trained = asdict(self.training) if self.training.steps else {}
        return {"layer": self.layer, "offset": offset, **self.stories.fit, **trained}

    def _settings(self, kind: str) -> dict[str, Any]:
        trained = asdict(self.training) if kind == "softmax" else {}
        return {**asdict(self.stories), **trained}

    def _key(self, offset: int, kind: str) -> str:
        about = self.checkpoint.identity
        return row_key(*about, "probe", self.layer, offset, kind, self._settings(kind))


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

    @property
    def keys(self) -> list[str]:
        """The row's key."""
        about = self.checkpoint.identity
        return [row_key(*about, "inverter", self.layer, str(self.slice), self._settings)]

    def run(self, results: Results) -> list[Row]:
        """One row, with the shown (self) and the hidden (non-self) tokens apart."""
        started = time.perf_counter()
        train, valid = self.stories.load(self.checkpoint)
        circuit = Circuit(self.checkpoint.model, self.layer)
        about = {"probe": "inverter", "layer": self.layer, "slice": str(self.slice)}
        about |= {**self.stories.fit, **asdict(self.decoding)}
        state = fitted(
            results.directory,
            self.checkpoint,
            about,
            [train],
            lambda: fit_inverter(circuit, self.slice, train, self.decoding).state_dict(),
        )
        inverter = Inverter.read(state, self.decoding).to(valid.device)
        scores = score_inverter(circuit, self.slice, valid, inverter)
        hidden = [t for t in range(self.stories.length) if t not in set(inverter.shown)]
        V = self.checkpoint.config.vocab_size
        figures = [
            _figures(score, score_unigram(train, valid[:, positions], V)) if positions else None
            for score, positions in zip(scores, (inverter.shown, hidden), strict=True)
        ]
        return [
            {
                "key": self.keys[0],
                "kind": "probe",
                "checkpoint": self.checkpoint.provenance,
                "site": {"layer": self.layer, "part": "block"},
                "slice": str(self.slice),
                "length": self.stories.length,
                "hidden": len(hidden),
                "method": "inverter",
                "settings": self._settings,
                "self": figures[0],
                "nonself": figures[1],
                "tokens_at_once": tokens_at_once(self.checkpoint.model),
                "seconds": round(time.perf_counter() - started, 4),
            }
        ]

    @property
    def _settings(self) -> dict[str, Any]:
        return {**asdict(self.stories), **asdict(self.decoding)}


def plan(
    checkpoint: Checkpoint,
    stories: Stories,
    layers: Sequence[int] | None,
    offsets: Sequence[int],
    training: Training,
    slices: Sequence[Slice],
    decoding: Decoding,
) -> list[Probes | Inversion]:
    """The work that a checkpoint makes.

    Args:
        checkpoint: what is asked about.
        stories: the text, which is read once here so that bad text is refused before any work.
        layers: None for every block's output.
        offsets: of the linear probes.
        training: of the softmax probes.
        slices: what trained inverters are shown; none for no inverters.
        decoding: of the inverters.

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
    probes = [Probes(checkpoint, stories, layer, tuple(offsets), training) for layer in chosen]
    return probes + [
        Inversion(checkpoint, stories, layer, shown, decoding)
        for layer in chosen
        for shown in slices
    ]


def choose_layers(checkpoint: Checkpoint, layers: Sequence[int] | None) -> tuple[int, ...]:
    """The layers asked for, or all blocks'.

    Raises:
        RequestError: one that does not exist.
    """
    for layer in layers or []:
        checkpoint.check_layer(layer)
    return tuple(dict.fromkeys(layers or range(1, checkpoint.config.n_layers + 1)))


def _classifiers(tensors: Mapping[str, Tensor]) -> dict[str, Classifier]:
    kinds = dict.fromkeys(name.partition(".")[0] for name in tensors)
    return {
        kind: Classifier(*(tensors[f"{kind}.{name}"] for name in Classifier._fields))
        for kind in sorted(kinds, key=KINDS.index)
    }


def _figures(score: Score, nothing: Score) -> dict[str, Any]:
    unigram, figures = nothing.record(), score.record()
    gain = None if figures["nats"] is None else unigram["nats"] - figures["nats"]
    return {**figures, "unigram": unigram, "gain": gain}
