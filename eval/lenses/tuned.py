"""The tuned lens: the logit lens after a learnt affine map of each layer's stream.

Belrose et al., "Eliciting Latent Predictions from Transformers with the Tuned Lens", 2303.08112.
Each map is fitted on stories by least squares to the last stream, in closed form (theirs descends
on the divergence). A layer keeps the identity, and its lens is the plain one, unless the map lowers
D(output || layer) on stories held back, beyond what chance explains. The figures are of a third
part of the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from arch import LanguageModel
from eval.artefacts import fitted
from eval.lenses.lens import Request, lens
from eval.lenses.logit import WIDEST, add_readings, charts, draw_words
from eval.lenses.stories import StoryWindows, stories, whole_windows
from eval.lenses.table import Table
from eval.lenses.trace import PromptBatch
from eval.models import Checkpoint

HELD = 16  # windows to choose on, and as many to report on
SURE = 2.0  # standard errors by which a map has to be better than the identity
EXAMPLES = 32  # tokens for each feature, at most, for least squares
RIDGE = 1e-3  # of the mean variance of a feature


class Tuned(NamedTuple):
    """Affine maps `x @ weight + bias` of the streams of layers 0 ... n - 1; the last is itself."""

    weight: Tensor  # (n, D, D)
    bias: Tensor  # (n, D)

    def read(self, model: LanguageModel, layer: int, stream: Tensor) -> Tensor:
        """Logits of a layer's stream, `(..., D) -> (..., V)`."""
        if layer < len(self.weight):
            stream = stream @ self.weight[layer] + self.bias[layer]
        return model.logits(stream)

    @classmethod
    def plain(cls, model: LanguageModel) -> Tuned:
        """The identity everywhere."""
        weight = model.head.weight
        n, D = len(model.blocks), weight.shape[1]
        return cls(torch.eye(D).to(weight).repeat(n, 1, 1), weight.new_zeros(n, D))


def fit_tuned(
    model: LanguageModel, windows: Sequence[StoryWindows]
) -> tuple[Tuned, dict[str, Tensor]]:
    """Fits on the first windows, chooses on the second, and reports on the third.

    Returns:
        The maps; which layers have `learnt` one that is not the identity, `(n,)`, and
        D(output || layer) of the `plain` and the `tuned` lens in bits, by window, `(N, n)`.
    """
    train, choice, report = windows
    identity, mapped = Tuned.plain(model), least_squares(model, train)
    plain, tuned = divergences(model, (identity, mapped), choice)
    gain = plain - tuned
    learnt = gain.mean(0) > SURE * gain.std(0) / len(gain) ** 0.5
    best = Tuned(
        torch.where(learnt[:, None, None], mapped.weight, identity.weight),
        torch.where(learnt[:, None], mapped.bias, identity.bias),
    )
    plain, tuned = divergences(model, (identity, best), report)
    return best, {"plain": plain, "tuned": tuned, "learnt": learnt}


@torch.no_grad()
def least_squares(model: LanguageModel, text: StoryWindows) -> Tuned:
    """The affine map of each stream that comes nearest to the last one (ridge regression)."""
    n, D = len(model.blocks), model.head.weight.shape[1]
    device, count = model.head.weight.device, 0
    total = torch.zeros(n + 1, D, dtype=torch.float64, device=device)
    products = torch.zeros(n, D, 2 * D, dtype=torch.float64, device=device)
    near = text.streams(slice(8)).flatten(1, 2).mean(1)  # of the means, for precision
    for windows, streams in text.batches():
        streams = streams.flatten(1, 2) - near[:, None]
        total += streams.sum(1)
        turned = streams[:-1].transpose(1, 2)
        products += torch.cat([turned @ streams[:-1], turned @ streams[-1]], dim=-1)
        count += windows.numel()
        if count >= EXAMPLES * D:
            break
    mean = total / count
    covariance = products[..., :D] / count - mean[:-1, :, None] * mean[:-1, None]
    toward = products[..., D:] / count - mean[:-1, :, None] * mean[-1]
    ridge = RIDGE * covariance.diagonal(dim1=1, dim2=2).mean(-1).clamp(min=1e-12)
    eye = torch.eye(D, dtype=torch.float64, device=device)
    root = torch.linalg.cholesky(covariance + ridge[:, None, None] * eye)
    weight = torch.cholesky_solve(toward, root)
    mean = mean + near
    bias = mean[-1] - (mean[:-1, None] @ weight)[:, 0]
    dtype = model.head.weight.dtype
    return Tuned(weight.to(dtype), bias.to(dtype))


@torch.no_grad()
def divergences(model: LanguageModel, lenses: Sequence[Tuned], text: StoryWindows) -> Tensor:
    """Mean D(output || layer) in bits over every window's positions, of L lenses, `(L, N, n)`."""
    parts = []
    for _, streams in text.batches(WIDEST // model.config.vocab_size):
        output = model.logits(streams[-1]).float().log_softmax(-1)
        share = output.exp()
        floor = (share * output).sum(-1)
        means = []
        for maps, layer in product(lenses, range(len(streams) - 1)):
            logs = maps.read(model, layer, streams[layer]).float().log_softmax(-1)
            means.append((floor - (share * logs).sum(-1)).mean(1))
        parts.append(torch.stack(means).unflatten(0, (len(lenses), -1)).mT / math.log(2))
    return torch.cat(parts, dim=1)


def split_stories(
    checkpoint: Checkpoint, request: Request
) -> tuple[StoryWindows, StoryWindows, StoryWindows]:
    """Windows to fit on and to choose on, of stories for fitting; to report on, for evaluation.

    Raises:
        RequestError: too few tokens.
        CorpusError: the corpus cannot be read.
    """
    count = whole_windows(checkpoint, request, 2, "the tuned lens needs")
    choice = stories(checkpoint, request, "fitting", count + HELD).tokens[count:]
    return (
        stories(checkpoint, request, "fitting", count),
        StoryWindows(checkpoint.model, choice),
        stories(checkpoint, request, "evaluation", HELD),
    )


@lens("tuned", "The tuned lens", order=3, charts=charts("tuned"), draw=partial(draw_words, "tuned"))
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """The logit lens after an affine map of each layer, fitted by least squares."""
    model, windows = checkpoint.model, split_stories(checkpoint, request)

    def fit() -> dict[str, Tensor]:
        best, report = fit_tuned(model, windows)
        return best._asdict() | report

    tensors = fitted(request.store, checkpoint, {"lens": "tuned"}, [w.tokens for w in windows], fit)
    best = Tuned(tensors["weight"], tensors["bias"])
    add_readings(checkpoint, batch, request, table, partial(best.read, model))
    methods, layers = ("plain", "tuned"), range(len(best.weight))
    judged, name = torch.stack([tensors[one] for one in methods]), "divergence on other stories"
    table.add(name, judged, method=methods, story=range(HELD), layer=layers)
    kept = [str(layer) for layer, learnt in enumerate(tensors["learnt"].tolist()) if not learnt]
    if kept:
        table.say(
            "layers that keep the identity, as no map was better", ["layers"], [[" ".join(kept)]]
        )
