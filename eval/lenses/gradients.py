"""Attribution by gradients: gradient x input, and integrated gradients.

Captum, against which both are tested, would take longer to import than they do to run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from arch import LanguageModel
from eval.errors import RequestError

KINDS = ("logit", "log_probability", "every_logit")
"""Of one token; `every_logit` is the sum over the vocabulary, what Badger's post differentiates."""
TOLERANCE = 1e-3  # of the attributions' sum against the change of the output
NODES = 8  # gradients on each piece of the line that is integrated along
HALVINGS = 8  # of a piece, at most
BATCH = 4096  # tokens of a quadrature's batch


@dataclass(frozen=True)
class Output:
    """What is attributed.

    Attributes:
        position: whose next token.
        token: which.
        kind: one of `KINDS`.
    """

    position: int
    token: int
    kind: str = "logit"

    def __post_init__(self) -> None:
        """Checks the kind."""
        if self.kind not in KINDS:
            raise RequestError(
                f"output {self.kind!r} does not exist; use one of {', '.join(KINDS)}"
            )

    def read(self, logits: Tensor) -> Tensor:
        """`(..., V)` logits of the position to `(...)`."""
        if self.kind == "every_logit":
            return logits.sum(-1)
        if self.kind == "log_probability":
            logits = logits.log_softmax(-1)
        return logits[..., self.token]

    def of(self, model: LanguageModel, embeddings: Tensor) -> Tensor:
        """`(B, T, D)` embeddings to `(B,)`."""
        before = embeddings[:, : self.position + 1]
        hidden = model.hidden(before, len(model.blocks))
        return self.read(model.logits(hidden[:, -1:])[:, 0])


@dataclass(frozen=True)
class Integral:
    """Integrated gradients, and how exact they are.

    Attributes:
        scores: `(T,)`, what each token adds between the baseline and the prompt.
        change: of the output between the two, which the scores sum to.
        error: of that sum, relative to the change.
        steps: gradients that were taken.
    """

    scores: Tensor
    change: float
    error: float
    steps: int


@torch.no_grad()
def own_answer(model: LanguageModel, tokens: Tensor, position: int = -1) -> Output:
    """The likeliest next token of a prompt `(T,)`, as an output."""
    position %= len(tokens)
    logits = model(tokens[None, : position + 1])[0, -1]
    return Output(position, int(logits.argmax()))


def gradient_x_input(model: LanguageModel, tokens: Tensor, output: Output) -> Tensor:
    """Gradient times embedding, every feature by itself, `(T, D)`.

    Summed over features it is what a linear model's tokens add; Badger's post takes absolute values
    first and sums those. Tokens after the output's position get zero.
    """
    embeddings = model.embed(tokens[None])
    return (_gradients(model, embeddings, output) * embeddings)[0]


def integrated_gradients(
    model: LanguageModel,
    tokens: Tensor,
    output: Output,
    baseline: Tensor,
    tolerance: float = TOLERANCE,
) -> Integral:
    """Integrated gradients (Sundararajan et al., 1703.01365) from a baseline embedding.

    By Gauss-Legendre on pieces of the line from the baseline to the prompt. On each piece the
    scores have to add up to the change of the output, so pieces that do not are halved: most of
    the change can be in a small part of the line, where the norms turn.

    Args:
        model: any language model.
        tokens: `(T,)`.
        output: what is attributed.
        baseline: `(D,)` or `(T, D)`.
        tolerance: relative error of the sum that is good enough.
    """
    end = model.embed(tokens[None])
    start = baseline.expand_as(end)
    nodes, weights = (torch.from_numpy(x).to(end) for x in np.polynomial.legendre.leggauss(NODES))
    places, shares = (1 + nodes) / 2, weights / 2  # of [0, 1] instead of [-1, 1]
    change = float(output.of(model, end) - output.of(model, start))

    def walk(edges: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of each piece `(P, T)` and the errors of their sums `(P,)`, for edges `(P, 2)`."""
        length = edges[:, 1:] - edges[:, :1]
        at = edges[:, :1] + length * places
        slopes = [
            (
                _gradients(model, start + some[:, None, None] * (end - start), output)
                * (end - start)
            ).sum(-1)
            for some in at.flatten().split(max(1, BATCH // len(tokens)))
        ]
        found = torch.cat(slopes).unflatten(0, (len(edges), NODES))
        scores = torch.einsum("pnt,pn->pt", found, length * shares)
        before, after = (start + edge[:, None, None] * (end - start) for edge in edges.T)
        return scores, scores.sum(-1) - (output.of(model, after) - output.of(model, before))

    allowed, steps = tolerance * abs(change), 0
    edges = torch.tensor([[0.0, 1.0]], device=end.device)
    total, error = torch.zeros_like(end[0, :, 0]), 0.0
    for halvings in range(HALVINGS + 1):
        scores, missed = walk(edges)
        steps += NODES * len(edges)
        enough = halvings == HALVINGS or abs(error + float(missed.sum())) <= allowed
        done = (missed.abs() <= allowed / 4) | enough
        total, error = total + scores[done].sum(0), error + float(missed[done].sum())
        if done.all():
            break
        left, right = edges[~done].unbind(1)
        middle = (left + right) / 2
        edges = torch.cat([torch.stack([left, middle], 1), torch.stack([middle, right], 1)])
    return Integral(total, change, abs(error) / max(abs(change), 1e-6), steps)


def _gradients(model: LanguageModel, embeddings: Tensor, output: Output) -> Tensor:
    """Of an output by embeddings `(B, T, D)`, each row by itself."""
    x = embeddings.detach().requires_grad_()
    with torch.enable_grad():
        (found,) = torch.autograd.grad(output.of(model, x).sum(), x)
    return found
