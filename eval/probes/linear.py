"""Linear probes: what a linear reader of one output says of the tokens around it.

For every layer and offset o a classifier from the output at position t to the token at t + o, in
three kinds: ridge and Gaussian in closed form (`moments`), and softmax regression by AdamW that
starts from the Gaussian one. Each batch of stories goes through the model once, for all of them.
Closed-form scores are turned into probabilities by one factor, fitted on windows held back, on top
of the tokens' own frequencies: a probe that finds nothing is left with those.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.circuit import Circuit
from eval.errors import RequestError
from eval.probes.moments import Classifier, Moments, gaussian, ridge
from eval.ranks import token_ranks

KINDS = ("ridge", "gaussian", "softmax")
BATCH = 4096  # tokens sent through the circuit together where nothing is trained
HELD_BACK = 0.05  # of the training windows, for the factor of closed-form scores
FACTOR_EXAMPLES = 512
FACTOR_STEPS = 10
DECAY = 0.01  # of the weights, in AdamW


class Place(NamedTuple):
    """Which output is read, and which token it is asked for."""

    layer: int
    offset: int


@dataclass(frozen=True)
class Training:
    """Softmax regression: AdamW at a rate that falls linearly to zero.

    Attributes:
        steps: number of steps; 0 leaves it out.
        windows: windows of a batch.
        rate: the first rate, in whitened features.
        seed: of the order of the windows.
    """

    steps: int = 200
    windows: int = 4
    rate: float = 3e-3
    seed: int = 0


@dataclass
class Score:
    """How a reader does on tokens: sums, and the figures made of them.

    Attributes:
        count: tokens asked for.
        vocabulary: V.
    """

    vocabulary: int
    count: int = 0
    _sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(FIGURES, 0.0))

    def add(self, logits: Tensor, tokens: Tensor) -> None:
        """Adds `(N, V)` logits for `(N,)` tokens."""
        rank = token_ranks(logits, tokens)
        self.count += len(tokens)
        self._sums["top1"] += int((rank == 0).sum())
        self._sums["top5"] += int((rank < 5).sum())
        self._sums["nats"] += float(F.cross_entropy(logits, tokens, reduction="sum"))

    def record(self) -> dict[str, Any]:
        """Top-1 and top-5 accuracy, cross entropy in nats, and I_e = 1 - CE / ln V.

        The last two are None, and a `reason` stands beside them, where logits were not finite.
        """
        figures: dict[str, Any] = {name: total / self.count for name, total in self._sums.items()}
        if not math.isfinite(figures["nats"]):
            figures |= {"nats": None, "information": None}
            return {"count": self.count, **figures, "reason": "logits are not finite"}
        information = 1 - figures["nats"] / math.log(self.vocabulary)
        return {"count": self.count, **figures, "information": information}


FIGURES = ("top1", "top5", "nats")


def fit_linear(
    circuit: Circuit, windows: Tensor, offsets: list[int], training: Training
) -> dict[tuple[Place, str], Classifier]:
    """Fits the probes of all of a circuit's layers and all offsets together.

    Args:
        circuit: of one or several layers.
        windows: stories to fit on, `(N, T)`; every offset shorter than T.
        offsets: o of the token at t + o that the output at t is asked for.
        training: of the softmax probes.

    Returns:
        Logits' classifiers by place and kind.

    Raises:
        RequestError: outputs that are not finite.
    """
    held = max(1, round(HELD_BACK * len(windows)))
    fitted = {}
    moments = _moments(circuit, windows[held:], offsets)
    for place, examples in _examples(circuit, windows[:held], offsets):
        x, y = (part[:FACTOR_EXAMPLES] for part in examples)
        known = moments[place]
        for kind, solve in (("ridge", ridge), ("gaussian", gaussian)):
            fitted[place, kind] = calibrated(
                solve(known, circuit.vocabulary), known.log_share().float(), x, y
            )
    if training.steps:
        start = {place: fitted[place, "gaussian"] for place in moments}
        trained = _train(circuit, windows[held:], offsets, moments, start, training)
        fitted |= {(place, "softmax"): probe for place, probe in trained.items()}
    return fitted


def calibrated(classify: Classifier, log_share: Tensor, x: Tensor, y: Tensor) -> Classifier:
    """Probabilities' logits, `factor * score + log share`, that predict some examples best.

    Newton's method, as it is convex in the factor.

    Args:
        classify: scores in any unit.
        log_share: of each token beforehand, `(V,)`.
        x: features of examples that the classifier was not fitted on, `(N, F)`.
        y: their tokens, `(N,)`.
    """
    scores = classify(x).double()
    scores = scores - scores.mean(dim=1, keepdim=True)
    unit = float(scores.std().clamp(min=1e-30))
    scores, factor = scores / unit, 1.0
    own = scores.gather(1, y[:, None]).mean()
    for _ in range(FACTOR_STEPS):
        p = (factor * scores + log_share).softmax(dim=1)
        expected = (p * scores).sum(dim=1)
        slope = expected.mean() - own
        curve = (p * scores.square()).sum(dim=1).mean() - expected.square().mean()
        moved = factor - float(slope / curve.clamp(min=1e-12))
        factor = min(max(moved, factor / 3), 3 * factor)
    factor /= unit
    return Classifier(classify.center, factor * classify.weight, factor * classify.bias + log_share)


@torch.no_grad()
def score_linear(
    circuit: Circuit, windows: Tensor, probes: dict[tuple[Place, str], Classifier]
) -> dict[tuple[Place, str], Score]:
    """How well probes read other stories, `(N, T)`, all in one pass of the model."""
    scores = {name: Score(len(circuit.vocabulary)) for name in probes}
    offsets = list(dict.fromkeys(place.offset for place, _ in probes))
    step = max(1, BATCH // windows.shape[1])
    for batch in windows.split(step):
        for place, (x, y) in _examples(circuit, batch, offsets):
            for kind in KINDS:
                if (place, kind) in probes:
                    scores[place, kind].add(probes[place, kind](x), y)
    return scores


def score_unigram(train: Tensor, valid: Tensor, vocabulary: int) -> Score:
    """What the tokens' frequencies in `train` alone say of `valid`: no output is looked at."""
    counts = torch.bincount(train.flatten(), minlength=vocabulary).double() + 0.5
    logits = (counts / counts.sum()).log().float()
    score, tokens = Score(vocabulary), valid.flatten()
    for some in tokens.split(BATCH):
        score.add(logits.expand(len(some), -1), some)
    return score


def _examples(
    circuit: Circuit, windows: Tensor, offsets: list[int]
) -> Iterator[tuple[Place, tuple[Tensor, Tensor]]]:
    """Outputs and the tokens asked for, `(N, D)` and `(N,)`, of every place; one pass."""
    outputs = circuit.of_tokens(windows).split(circuit.width // len(circuit.sites), dim=-1)
    T = windows.shape[1]
    for layer, output in zip(circuit.sites, outputs, strict=True):
        if not output.isfinite().all():
            raise RequestError(f"layer {layer} gives numbers that are not finite")
        for o in offsets:
            x = output[:, max(0, -o) : T - max(0, o)]
            y = windows[:, max(0, o) : T + min(0, o)]
            yield Place(layer, o), (x.flatten(0, 1), y.flatten())


@torch.no_grad()
def _moments(circuit: Circuit, windows: Tensor, offsets: list[int]) -> dict[Place, Moments]:
    V, device = len(circuit.vocabulary), circuit.vocabulary.device
    D = circuit.width // len(circuit.sites)
    sums = {Place(layer, o): Moments(V, D, device) for layer in circuit.sites for o in offsets}
    for batch in windows.split(max(1, BATCH // windows.shape[1])):
        for place, (x, y) in _examples(circuit, batch, offsets):
            sums[place].add(x, y)
    return sums


def _train(
    circuit: Circuit,
    windows: Tensor,
    offsets: list[int],
    moments: dict[Place, Moments],
    start: dict[Place, Classifier],
    training: Training,
) -> dict[Place, Classifier]:
    """Softmax regression in whitened features, where one rate suits all directions."""
    whiten, variables = {}, {}
    for place, known in moments.items():
        covariance = known.covariance
        eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
        covariance = covariance + 1e-6 * covariance.diagonal().mean() * eye
        root = torch.linalg.cholesky(covariance)
        whiten[place] = torch.linalg.inv(root).T.float()
        weight = (root.T @ start[place].weight.double()).float()
        variables[place] = [weight.requires_grad_(), start[place].bias.clone().requires_grad_()]
    flat = [variable for pair in variables.values() for variable in pair]
    optimiser = torch.optim.AdamW(flat, lr=training.rate, weight_decay=DECAY)
    generator = torch.Generator().manual_seed(training.seed)
    for i in range(training.steps):
        chosen = torch.randint(len(windows), (training.windows,), generator=generator)
        for place, (x, y) in _examples(circuit, windows[chosen.to(windows.device)], offsets):
            weight, bias = variables[place]
            with torch.enable_grad():
                z = (x - start[place].center) @ whiten[place]
                F.cross_entropy(z @ weight + bias, y).backward()
        optimiser.param_groups[0]["lr"] = training.rate * (1 - i / training.steps)
        optimiser.step()
        optimiser.zero_grad()
    return {
        place: Classifier(start[place].center, whiten[place] @ weight.detach(), bias.detach())
        for place, (weight, bias) in variables.items()
    }
