"""PEZ: continuous vectors, moved by the gradient at the tokens nearest to them."""

from collections.abc import Iterator

import torch

from eval.inversion.gradient.adam import scaled_rate
from eval.inversion.gradient.loop import Rows, gradient, moments, random_tokens, with_gradient
from eval.inversion.spaces import by_distance


@gradient(steps=1000, random=True, title="PEZ")
def pez(rows: Rows, *, rate: float = 0.1, decay: float = 0.0) -> Iterator[None]:
    """Vectors moved by the gradient at the tokens nearest to them.

    Hard prompts made easy (Wen et al., 2302.03668): projected gradients, by AdamW. The best guess
    on the way is the answer.

    Args:
        rows: of any slices, each from random tokens.
        rate: in standard deviations of the embedding.
        decay: AdamW's decay of the weights.
    """
    W = rows.vocabulary
    x = best = W[random_tokens(rows.chance, (rows.length,), W)]
    least = torch.full_like(x[:, 0, 0], torch.inf)
    step, state = scaled_rate(rows.batch, rate), moments(x)
    rows.scores = lambda: by_distance(rows.circuit, best)
    while True:
        tokens = by_distance(rows.circuit, x).argmax(dim=-1)
        losses, slope = with_gradient(rows.losses, W[tokens])
        better = losses < least
        least = torch.where(better, losses, least)
        best = torch.where(better[:, None, None], x, best)
        x = x * (1 - step * decay) - step * state.direction(slope)
        rows.spent += 3 * rows.length
        yield
        x, best, least, state = rows.kept(x, best, least, state)
