"""PEZ: continuous vectors, moved by the gradient at the tokens nearest to them."""

from collections.abc import Iterator

import torch

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.adam import scaled_rate
from eval.inversion.gradient.loop import Rows, drive, moments, random_tokens, with_gradient
from eval.inversion.solvers import NONE, Chance, Tools, solver
from eval.inversion.spaces import by_distance
from eval.inversion.spaces import objective as by_name


@solver("gradient", random=True, title="PEZ")
def pez(
    batch: Batch,
    chance: Chance,
    tools: Tools = NONE,
    *,
    steps: int = 1000,
    rate: float = 0.1,
    decay: float = 0.0,
    objective: str = "relative",
    check: int = 25,
) -> list[Answer]:
    """Vectors moved by the gradient at the tokens nearest to them.

    Hard prompts made easy (Wen et al., 2302.03668): projected gradients, by AdamW. The best guess
    on the way is the answer.

    Args:
        batch: any slices.
        chance: the source of each row's start, which is random tokens.
        tools: not used.
        steps: the most that a row takes.
        rate: in standard deviations of the embedding.
        decay: AdamW's decay of the weights.
        objective: what is lowered.
        check: rows that are solved leave after every so many steps.
    """
    loss, circuit, W = by_name(objective), batch.circuit, batch.circuit.vocabulary

    def descend(rows: Rows) -> Iterator[None]:
        x = best = W[random_tokens(chance, (batch.length,), W)]
        least = torch.full_like(x[:, 0, 0], torch.inf)
        step, state = scaled_rate(batch, rate), moments(x)
        rows.scores = lambda: by_distance(circuit, best)
        while True:
            tokens = by_distance(circuit, x).argmax(dim=-1)
            losses, gradient = with_gradient(lambda x: rows.batch.losses(x, loss), W[tokens])
            better = losses < least
            least = torch.where(better, losses, least)
            best = torch.where(better[:, None, None], x, best)
            x = x * (1 - step * decay) - step * state.direction(gradient)
            rows.spent += 3 * batch.length
            yield
            x, best, least, state = rows.kept(x, best, least, state)

    return drive(batch, chance, descend, steps, check)
