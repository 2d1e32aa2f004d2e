"""Guesses of tokens from outputs: a circuit's read-back. Solvers verify them.

After one and the same prefix, outputs of different tokens are x A + c + scatter: x is a token's
embedding, A the slopes, c what the prefix adds. Slopes and the scatter's covariance are fitted on
tokens that stand after prefixes of ordinary text, each prefix's mean taken out. Where the output of
some token after the prefix is known, c drops out, and every other token is judged by the distance
of the target from where the slopes put it, in the scatter's metric: linear discriminant analysis
with class means that are linear in the embedding. At the first position nothing stands before, so
that c is one constant, which is fitted as well. One pass serves the circuits of all layers; each
layer's map is fitted on its own outputs alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from eval.models.checkpoint import Checkpoint
from eval.models.text import held_out_text
from eval.rows.fits import fitted
from eval.sites.circuit import Circuit, join

PREFIXES = 128
"""Prefixes of text, after which candidates are run.

In half of the prefixes, half of the tokens are replaced by random ones."""
CANDIDATES = 64  # tokens after each: half of them drawn from text, half from the vocabulary
ALONE = 4096  # tokens run at the first position
TOGETHER = 1024  # of them at once
SHRINK = 1e-3  # of the mean variance, added to the embeddings' and to each channel's scatter
LEAST = 1e-6  # of the mean variance of channels: no channel's scatter is taken for less


class Guesser:
    """Guesses tokens from shown channels.

    Args:
        embeddings: of all tokens, `(V, D)`.
        metric: turns a difference of outputs into one of unit scatter, `(C, C)`.
        slopes: the same for a difference of embeddings, `(D, C)`.
    """

    def __init__(self, embeddings: Tensor, metric: Tensor, slopes: Tensor) -> None:
        self.embeddings, self.metric, self.slopes = embeddings, metric, slopes
        parts = [(part @ slopes).square().sum(dim=-1) for part in embeddings.split(TOGETHER)]
        self.lengths = torch.cat(parts) / 2

    def read(self, target: Tensor, output: Tensor, embedding: Tensor) -> Tensor:
        """The weights of embeddings in `scores`, `(P, D)`.

        Args:
            target: the outputs shown, `(P, C)`.
            output: those of known tokens after the same prefix, or means of several, `(P, C)`.
            embedding: of these tokens, `(P, D)`.
        """
        return ((target - output) @ self.metric + embedding @ self.slopes) @ self.slopes.T

    def scores(self, read: Tensor) -> Tensor:
        """How well each token of the vocabulary fits, `(P, D)` to `(P, V)`; higher is better."""
        return read @ self.embeddings.T - self.lengths

    def nearest(self, target: Tensor, outputs: Tensor) -> Tensor:
        """The number of the output nearest to a target `(C,)` among `(N, C)`, in the metric."""
        return ((outputs - target) @ self.metric).square().sum(dim=-1).argmin()


@dataclass(frozen=True)
class ReadBack:
    """The map fitted from a circuit's outputs back to tokens.

    Attributes:
        embeddings: of all tokens, `(V, D)`.
        tensors: `slopes` `(D, width)` and `scatter` `(width, width)` after a prefix; the same at
            the first position, `first.slopes` and `first.scatter`, with the means `first.embedding`
            `(D,)` and `first.output` `(width,)`.
    """

    embeddings: Tensor
    tensors: dict[str, Tensor]
    _guessers: dict[tuple[int, int | None, bool], Guesser] = field(default_factory=dict)

    def guesser(self, low: int, high: int | None, first: bool) -> Guesser:
        """Guesses from the channels low ... high, at the first position or after a prefix."""
        key = low, high, first
        if key not in self._guessers:
            slopes, scatter = self._fit(first)
            shown = slice(low, high)
            self._guessers[key] = self._guesser(slopes[:, shown], scatter[shown, shown])
        return self._guessers[key]

    def guesser_through(self, rows: Tensor, first: bool) -> Guesser:
        """Guesses from `(k,)` products of the outputs with rows `(k, width)`; not remembered."""
        slopes, scatter = self._fit(first)
        rows = rows.double()
        return self._guesser(slopes @ rows.T, rows @ scatter @ rows.T)

    def _fit(self, first: bool) -> tuple[Tensor, Tensor]:
        kind = "first." if first else ""
        return self.tensors[f"{kind}slopes"].double(), self.tensors[f"{kind}scatter"].double()

    def _guesser(self, slopes: Tensor, scatter: Tensor) -> Guesser:
        metric, E = whitening(scatter, SHRINK), self.embeddings
        return Guesser(E, metric.to(E), (slopes @ metric).to(E))

    def start(self, low: int, high: int | None) -> tuple[Tensor, Tensor]:
        """The mean output at the first position, `(1, C)`, and the embedding behind it."""
        output, embedding = self.tensors["first.output"], self.tensors["first.embedding"]
        return output[None, low:high].to(self.embeddings), embedding[None].to(self.embeddings)


def whitening(scatter: Tensor, shrink: float) -> Tensor:
    """Matrices `(..., C, C)` that give differences of a scatter `(..., C, C)` unit scatter.

    To each channel's variance, above 0, the fraction `shrink` of it is added.
    """
    size = scatter.diagonal(dim1=-2, dim2=-1).sqrt()[..., None]
    unit = torch.eye(scatter.shape[-1]).to(scatter)
    lower = torch.linalg.cholesky_ex(scatter / size / size.mT + shrink * unit).L
    return torch.linalg.solve_triangular(lower, unit, upper=False).mT / size


class _Moments:
    """Sums of embeddings `(N, D)` and outputs `(N, width)` around a shift, in float64."""

    def __init__(self) -> None:
        self.count, self.shift, self.sums = 0, None, []

    def add(self, x: Tensor, y: Tensor, centred: bool = False) -> None:
        """Adds more: each batch around its own mean if `centred`, else all around the first's."""
        x, y = x.double(), y.double()
        if centred or self.shift is None:
            self.shift = x.mean(dim=0), y.mean(dim=0)
        x, y = x - self.shift[0], y - self.shift[1]
        more = [x.sum(dim=0), y.sum(dim=0), x.T @ x, x.T @ y, y.T @ y]
        self.sums = [a + b for a, b in zip(self.sums, more, strict=True)] if self.sums else more
        self.count += len(x)

    def fit(self) -> dict[str, Tensor]:
        """Slopes, the scatter around them, and the means."""
        assert self.shift
        x, y, xx, xy, yy = (total / self.count for total in self.sums)
        xx, xy, yy = xx - x[:, None] * x, xy - x[:, None] * y, yy - y[:, None] * y
        tiny = torch.finfo(torch.float32).tiny  # where all embeddings are equal
        ridge = (SHRINK * xx.diagonal().mean()).clamp_min(tiny) * torch.eye(len(xx)).to(xx)
        slopes = torch.linalg.solve(xx + ridge, xy)
        scatter = yy - slopes.T @ xy - xy.T @ slopes + slopes.T @ xx @ slopes
        least = LEAST * yy.diagonal().mean() + tiny
        scatter.diagonal().clamp_(min=least)
        means = {"embedding": self.shift[0] + x, "output": self.shift[1] + y}
        fit = {"slopes": slopes, "scatter": scatter} | means
        return {name: tensor.float() for name, tensor in fit.items()}


@torch.no_grad()
def fit_readbacks(circuits: Sequence[Circuit], text: Tensor) -> list[dict[str, Tensor]]:
    """The tensors of each circuit's `ReadBack`, in one pass for all.

    Args:
        circuits: they differ in their layers only.
        text: windows of ordinary text, `(N, M)`, none of it ever asked about.
    """
    whole, cut = join(circuits)
    generator, (V, _) = torch.Generator().manual_seed(0), whole.vocabulary.shape
    after, first = ([_Moments() for _ in circuits] for _ in range(2))

    def drawn(count: int) -> Tensor:
        return torch.randint(V, (count,), generator=generator).to(text.device)

    def from_text(count: int) -> Tensor:
        positions = torch.randint(text.numel(), (count,), generator=generator)
        return text.flatten()[positions.to(text.device)]

    tokens = torch.arange(V, device=text.device) if V <= ALONE else drawn(ALONE)
    for batch in tokens.split(TOGETHER):
        x = whole.vocabulary[batch]
        for moments, y in zip(first, cut(whole.step(x[:, None], None)[:, 0]), strict=True):
            moments.add(x, y)
    longest = min(text.shape[1], whole.model.config.context - 1)
    for number in range(PREFIXES if longest else 0):
        length = 1 + number % longest
        start = int(torch.randint(text.shape[1] - length + 1, (), generator=generator))
        prefix = text[number % len(text), start : start + length].clone()
        if number // len(text) % 2:
            changed = torch.rand(length, generator=generator).to(text.device) < 0.5
            prefix[changed] = drawn(int(changed.sum()))
        half = CANDIDATES // 2
        x = whole.vocabulary[torch.cat([from_text(half), drawn(CANDIDATES - half)])]
        outputs = whole.step(x[:, None], whole.prefix(prefix[None]))[:, 0]
        for moments, y in zip(after, cut(outputs), strict=True):
            moments.add(x, y, centred=True)
    fits = []
    for alone, later in zip(first, after, strict=True):
        fit = {f"first.{name}": tensor for name, tensor in alone.fit().items()}
        slopes = (later if later.count else alone).fit()
        fits.append({name: slopes[name] for name in ("slopes", "scatter")} | fit)
    return fits


def open_readbacks(
    checkpoint: Checkpoint,
    corpus: str,
    circuits: list[Circuit],
    directory: str | Path | None = None,
) -> list[ReadBack]:
    """Returns the read-backs of circuits that differ in their layers only, kept with the model.

    Those not fitted yet are fitted in one pass, on background text, and kept in a results
    directory if one is given.
    """
    text = held_out_text(checkpoint, corpus)
    readbacks: dict[Circuit, ReadBack] = checkpoint.keep(("readbacks", text), dict)
    missing = [circuit for circuit in circuits if circuit not in readbacks]
    if missing:
        windows = text.background.to(checkpoint.model.embedding.weight.device)
        fits = cache(lambda: fit_readbacks(missing, windows))
        for i, circuit in enumerate(missing):
            site = {"layers": circuit.layer_numbers, "part": circuit.part}
            about = {"fit": "readback", **site, "without": sorted(circuit.without)}
            tensors = fitted(directory, checkpoint, about, [windows], lambda i=i: fits()[i])
            readbacks[circuit] = ReadBack(circuit.vocabulary, tensors)
    return [readbacks[circuit] for circuit in circuits]
