"""Linear probes of an output for the tokens around it; as tasks.

For every layer and offset o a classifier from the output at position t to the token at t + o, in
two kinds: Gaussian in closed form (`eval.measures.classifiers`), and softmax regression by AdamW
that starts from it. The stories go through the model once for each layer, and the outputs' second
moment, which is all but the same for every offset, is summed once; then one offset is fitted after
the other, so that one vocabulary's weights are in memory at a time. The Gaussian probe's scores are
turned into probabilities by one factor, fitted on windows held back, on top of the tokens' own
frequencies: a probe that learns nothing is left with those.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.measures.classifiers import (
    SMOOTHING,
    Classifier,
    TokenMoments,
    add_ridge,
    calibrated,
    gaussian,
    second_moment,
)
from eval.measures.ranks import token_ranks
from eval.messages import RequestError
from eval.models.checkpoint import Checkpoint
from eval.models.corpora import corpus_hash
from eval.models.memory import tokens_at_once
from eval.models.text import held_out_text
from eval.rows.fits import fitted
from eval.rows.store import Results, Row, row_key
from eval.sites.circuit import Circuit

KINDS = ("gaussian", "softmax")
SCORED = 4096  # tokens scored together, at most
LOGITS = 1 << 25  # held at once, at most
HELD_BACK = 0.05  # of the training windows, for the factor of the Gaussian scores
FACTOR_EXAMPLES = 512
DECAY = 0.01  # of the weights, in AdamW


@dataclass(frozen=True)
class ProbeText:
    """Where the text comes from, and how much of it is used."""

    corpus: str  # whose held-out stories are read
    length: int  # tokens of a window
    train: int  # windows of stories for fitting
    valid: int  # windows of stories for evaluation

    def load(self, checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
        """Windows to fit on and windows to judge on, `(N, length)`, on the model's device.

        Raises:
            RequestError: too long for the model, or not enough text.
        """
        checkpoint.check_length(self.length)
        text = held_out_text(checkpoint, self.corpus)

        def make() -> tuple[Tensor, Tensor]:
            device = checkpoint.model.embedding.weight.device
            train = text.windows("fitting", self.train, self.length)
            return train.to(device), text.windows("evaluation", self.valid, self.length).to(device)

        return checkpoint.keep((self, text), make)


@dataclass(frozen=True)
class Training:
    """Softmax regression: AdamW at a rate that falls linearly to zero."""

    steps: int = 200  # 0 leaves it out
    windows: int = 4  # of a batch
    rate: float = 3e-3  # the first rate, in whitened features
    seed: int = 0  # of the order of the windows


def token_figures(parts: Iterable[tuple[Tensor, Tensor]], vocabulary: int) -> dict[str, Any]:
    """How a reader does on tokens, by its logits `(N, V)` for tokens `(N,)`, part by part.

    Top-1 and top-5 accuracy, cross entropy in nats, and I_e = 1 - CE / ln V. The last two are None,
    and a `reason` stands beside them, where logits were not finite.
    """
    sums: Counter[str] = Counter()
    for logits, tokens in parts:
        rank, nats = token_ranks(logits, tokens), F.cross_entropy(logits, tokens, reduction="sum")
        hits = {"top1": int((rank == 0).sum()), "top5": int((rank < 5).sum())}
        sums.update(count=len(tokens), **hits, nats=float(nats))  # pyright: ignore
    count = sums.pop("count")
    figures: dict[str, Any] = {"count": count} | {name: sums[name] / count for name in sums}
    if math.isfinite(figures["nats"]):
        return figures | {"information": 1 - figures["nats"] / math.log(vocabulary)}
    return figures | {"nats": None, "information": None, "reason": "logits are not finite"}


@torch.no_grad()
def outputs_of(circuit: Circuit, windows: Tensor) -> Tensor:
    """A site's outputs for stories, `(N, T)` tokens to `(N, T, F)`.

    Raises:
        RequestError: numbers that are not finite.
    """
    batches = windows.split(max(1, tokens_at_once(circuit.model) // windows.shape[1]))
    outputs = torch.cat([circuit.of_tokens(batch) for batch in batches])
    if not outputs.isfinite().all():
        raise RequestError(f"layer {circuit.depth} gives numbers that are not finite")
    return outputs


class ProbeFit:
    """Fits the probes of a site; the second moment, which its offsets share, is summed once."""

    def __init__(
        self, outputs: Tensor, windows: Tensor, embedding: Tensor, training: Training | None = None
    ) -> None:
        """Takes a site's outputs `(N, T, F)` of stories, `(N, T)` tokens, N at least 2.

        Further the embedding of the vocabulary, `(V, D)`, and how the softmax probe is trained, if
        it is. The first windows set the factor of the Gaussian scores.
        """
        self.held = max(1, round(HELD_BACK * len(windows)))
        self.outputs, self.windows, self.embedding = outputs, windows, embedding
        self.training, self.second = training, second_moment(outputs[self.held :])

    def fit(self, offset: int) -> dict[str, Classifier]:
        """Classifiers that give logits of the token at t + offset, by kind.

        Raises:
            RequestError: too few examples.
        """
        x, y = aligned(self.outputs, self.windows, offset)
        known = x[: self.held].flatten(0, 1)[:FACTOR_EXAMPLES], y[: self.held].flatten()
        x, y, T, rest = x[self.held :], y[self.held :], x.shape[1], self.outputs[self.held :]
        edge = rest[:, T:] if offset > 0 else rest[:, : rest.shape[1] - T]
        second = self.second - second_moment(edge)
        moments = TokenMoments.of(x, y, len(self.embedding), second)
        log_shares = moments.log_share().float()
        try:
            scores = gaussian(moments, self.embedding)
            start = calibrated(scores, log_shares, known[0], known[1][:FACTOR_EXAMPLES])
            if not self.training:
                return {"gaussian": start}
            softmax = _train(x, y, moments.covariance, start, self.training)
        except torch.linalg.LinAlgError:  # pyright: ignore
            raise RequestError(
                f"--train-tokens: {y.numel()} examples are left for offset {offset}, too few or "
                "all alike; give more"
            ) from None
        return {"gaussian": start, "softmax": softmax}


@torch.no_grad()
def score_probes(
    outputs: Tensor, windows: Tensor, offset: int, probes: Mapping[str, Classifier]
) -> dict[str, dict[str, Any]]:
    """The figures of probes of a site and an offset on other stories, by kind."""
    read, of = (part.flatten(0, 1) for part in aligned(outputs, windows, offset))
    V = len(next(iter(probes.values())).bias)
    parts = list(zip(read.split(_scored(V)), of.split(_scored(V)), strict=True))
    return {
        kind: token_figures(((probe(x), y) for x, y in parts), V) for kind, probe in probes.items()
    }


def score_unigram(train: Tensor, valid: Tensor, vocabulary: int) -> dict[str, Any]:
    """The figures on `valid` of the tokens' frequencies in `train`, without any output."""
    counts = torch.bincount(train.flatten(), minlength=vocabulary).double() + SMOOTHING
    logits = (counts / counts.sum()).log().float()
    parts = valid.flatten().split(_scored(vocabulary))
    return token_figures(((logits.expand(len(part), -1), part) for part in parts), vocabulary)


def _scored(vocabulary: int) -> int:
    """How many tokens are scored together."""
    return max(1, min(SCORED, LOGITS // vocabulary))


def aligned(outputs: Tensor, windows: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """Outputs at the positions that have a token so far away, and those tokens, `(N, T - |o|)`."""
    T = windows.shape[1]
    read = outputs[:, max(0, -offset) : T - max(0, offset)]
    return read, windows[:, max(0, offset) : T + min(0, offset)]


def _train(
    outputs: Tensor, tokens: Tensor, covariance: Tensor, start: Classifier, training: Training
) -> Classifier:
    """Softmax regression in whitened features, where one rate suits all directions."""
    root = torch.linalg.cholesky(add_ridge(covariance, 1e-6))
    whiten = torch.linalg.inv(root).T.float()
    weight = (root.T @ start.weight.double()).float().requires_grad_()
    bias = start.bias.clone().requires_grad_()
    optimiser = torch.optim.AdamW([weight, bias], lr=training.rate, weight_decay=DECAY)
    generator = torch.Generator().manual_seed(training.seed)
    for i in range(training.steps):
        chosen = torch.randint(len(tokens), (training.windows,), generator=generator)
        chosen = chosen.to(tokens.device)
        x = (outputs[chosen].flatten(0, 1).float() - start.center) @ whiten
        with torch.enable_grad():
            F.cross_entropy(x @ weight + bias, tokens[chosen].flatten()).backward()
        optimiser.param_groups[0]["lr"] = training.rate * (1 - i / training.steps)
        optimiser.step()
        optimiser.zero_grad()
    return Classifier(start.center, whiten @ weight.detach(), bias.detach())


def pack(probes: Mapping[Any, Classifier]) -> dict[str, Tensor]:
    """Classifiers by a key as tensors by name, for a file; `unpack` reads them."""
    return {f"{key}.{n}": t for key, probe in probes.items() for n, t in probe._asdict().items()}


def unpack(tensors: Mapping[str, Tensor], key: Any) -> Classifier:
    """The classifier of a key."""
    return Classifier(*(tensors[f"{key}.{name}"] for name in Classifier._fields))


@dataclass(frozen=True)
class ProbeTask:
    """A task: linear probes of all offsets of a layer."""

    checkpoint: Checkpoint
    stories: ProbeText
    layer: int
    offsets: tuple[int, ...]
    training: Training

    @property
    def corpus(self) -> str:
        """Whose stories are read."""
        return self.stories.corpus

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of probes that are fitted."""
        return KINDS if self.training.steps else KINDS[:1]

    @property
    def keys(self) -> list[str]:
        """The keys of the task's rows."""
        return [self._key(offset, kind) for offset in self.offsets for kind in self.kinds]

    def run(self, results: Results) -> list[Row]:
        """One row per offset and kind of probe; fits are kept, or read where they were kept."""
        train, valid = self.stories.load(self.checkpoint)
        circuit, training = Circuit(self.checkpoint.model, self.layer), self.training

        @cache
        def fit() -> ProbeFit:
            softmax = training if training.steps else None
            return ProbeFit(outputs_of(circuit, train), train, circuit.vocabulary, softmax)

        judged, rows, text = outputs_of(circuit, valid), [], corpus_hash(self.corpus)
        for offset in self.offsets:
            started = time.perf_counter()
            about = {"probe": "linear", "layer": self.layer, "offset": offset}
            about |= asdict(training) if training.steps else {}
            make = partial(lambda o: pack(fit().fit(o)), offset)
            tensors = fitted(results.directory, self.checkpoint, about, [train], make)
            probes = {kind: unpack(tensors, kind) for kind in self.kinds}
            scores = score_probes(judged, valid, offset, probes)
            truth = aligned(judged, valid, offset)[1]
            unigram = score_unigram(train, truth, self.checkpoint.config.vocab_size)
            seconds = round((time.perf_counter() - started) / len(scores), 4)
            for kind, figures in scores.items():
                nats = figures["nats"]
                rows.append(
                    {
                        "key": self._key(offset, kind),
                        "kind": "probe",
                        "checkpoint": self.checkpoint.provenance,
                        "site": {"layer": self.layer, "part": "block"},
                        "offset": offset,
                        "method": kind,
                        "settings": self._settings(kind),
                        "corpus_hash": text,
                        **figures,
                        "unigram": unigram,
                        "gain": None if nats is None else unigram["nats"] - nats,
                        "tokens_at_once": tokens_at_once(self.checkpoint.model),
                        "seconds": seconds,
                    }
                )
        return rows

    def _settings(self, kind: str) -> dict[str, Any]:
        return asdict(self.stories) | (asdict(self.training) if kind == "softmax" else {})

    def _key(self, offset: int, kind: str) -> str:
        about = self.checkpoint.identity
        return row_key(*about, "probe", self.layer, offset, kind, self._settings(kind))
