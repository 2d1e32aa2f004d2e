"""The tuned lens: the logit lens after a learnt affine map of each layer's stream.

Belrose et al., "Eliciting Latent Predictions from Transformers with the Tuned Lens", 2303.08112.
The maps of all layers are fitted together on stories: least squares to the last stream first, in
closed form, then a descent on D(output || layer). A layer keeps the identity, and its lens is the
plain one, unless the map is better on stories held back, beyond what chance explains. The figures
are of a third part of the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from arch import LanguageModel
from eval.artefacts import fitted
from eval.lenses.lens import Finding, Request, lens
from eval.lenses.logit_lens import WIDEST, draw, read_finding
from eval.lenses.stories import StoryWindows, stories, whole_windows
from eval.lenses.trace import gather
from eval.models import Checkpoint

HELD = 0.05  # windows to choose on, and as many to report on, in those to fit on
SURE = 2.0  # standard errors by which a map has to be better than the identity
STEP = 512  # tokens of text for a step of descent
POSITIONS = 32  # of a step, taken from one batch of windows
RATE = 2e-3  # Adam's first, for maps of streams of unit variance; it falls linearly to zero
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
    model: LanguageModel, windows: Sequence[StoryWindows], steps: int, seed: int = 0
) -> tuple[Tuned, dict[str, Tensor]]:
    """Fits on the first windows, chooses on the second, and reports on the third.

    Returns:
        The maps; which layers have `learnt` one that is not the identity, `(n,)`, and
        D(output || layer) of the `plain` and the `tuned` lens in bits, by window, `(N, n)`.
    """
    train, choice, report = windows
    identity, descended = Tuned.plain(model), least_squares(model, train)
    if steps:
        descended = descend(model, descended, train, steps, seed)
    plain, tuned = divergences(model, (identity, descended), choice)
    gain = plain - tuned
    learnt = gain.mean(0) > SURE * gain.std(0) / len(gain) ** 0.5
    best = Tuned(
        torch.where(learnt[:, None, None], descended.weight, identity.weight),
        torch.where(learnt[:, None], descended.bias, identity.bias),
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


@torch.enable_grad()
def descend(model: LanguageModel, start: Tuned, text: StoryWindows, steps: int, seed: int) -> Tuned:
    """Lowers the mean D(output || layer) of all layers together from a start."""
    generator = torch.Generator().manual_seed(seed)
    scale = text.streams(slice(8))[:-1].flatten(1).std(1)
    weight = (start.weight * scale[:, None, None]).requires_grad_()
    bias = start.bias.clone().requires_grad_()
    optimiser = torch.optim.Adam([weight, bias], lr=RATE, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: 1 - i / steps)
    count, length = text.tokens.shape
    rows = max(1, min(count, 2 * POSITIONS // length))
    for _ in range(steps):
        chosen = torch.randint(count, (rows,), generator=generator)
        with torch.no_grad():
            streams = text.streams(chosen.to(text.tokens.device)).flatten(1, 2)
            some = torch.randperm(streams.shape[1], generator=generator)[:POSITIONS]
            streams = streams[:, some.to(streams.device)]
            likely = model.logits(streams[-1]).float().softmax(-1)
        mapped = (streams[:-1] / scale[:, None, None]) @ weight + bias[:, None]
        leaf = mapped.detach().requires_grad_()
        for layer in leaf:  # logits of one layer at a time
            logs = model.logits(layer).float().log_softmax(-1)
            (-(likely * logs).sum(-1).mean()).backward()
        optimiser.zero_grad()
        mapped.backward(leaf.grad)
        optimiser.step()
        schedule.step()
    return Tuned((weight / scale[:, None, None]).detach(), bias.detach())


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
    held = max(2, round(HELD * count))
    choice = stories(checkpoint, request, "fitting", count + held).tokens[count:]
    return (
        stories(checkpoint, request, "fitting", count),
        StoryWindows(checkpoint.model, choice),
        stories(checkpoint, request, "evaluation", held),
    )


@lens("tuned", "The tuned lens", figures=draw, order=3)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """The logit lens after an affine map of each layer, fitted."""
    batch, model = gather(checkpoint, request.prompts), checkpoint.model
    steps = 1 + request.tokens // STEP
    windows = split_stories(checkpoint, request)

    def fit() -> dict[str, Tensor]:
        best, report = fit_tuned(model, windows, steps, request.seed)
        return best._asdict() | report

    about = {"lens": "tuned", "steps": steps, "tokens": POSITIONS, "rate": RATE}
    about["seed"] = request.seed
    texts = [text.tokens for text in windows]
    tensors = fitted(request.store, checkpoint, about, texts, fit)
    best = Tuned(tensors["weight"], tensors["bias"])

    def read(layer: int, stream: Tensor) -> Tensor:
        return best.read(model, layer, stream)

    finding = read_finding(checkpoint, request, batch, read)
    for method in ("plain", "tuned"):
        losses = tensors[method]
        means, errors = losses.mean(0), 1.96 * losses.std(0) / len(losses) ** 0.5
        for layer, (mean, error) in enumerate(zip(means.tolist(), errors.tolist(), strict=True)):
            limits = {"low": mean - error, "high": mean + error, "n": len(losses)}
            place = {"method": method, "layer": layer}
            finding.number("divergence on other stories", mean, **place, **limits)
    finding.notes["learnt"] = tensors["learnt"].tolist()
    return finding
