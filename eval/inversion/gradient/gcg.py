"""GCG: the gradient shortlists tokens at every position, random ones of them are tried exactly."""

from torch import Tensor

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.candidates import TokenSolver, gradient_at
from eval.inversion.gradient.solver import Chance, drive, random_tokens
from eval.inversion.objective import objective as by_name


def gcg(
    batch: Batch,
    chance: Chance,
    *,
    steps: int = 500,
    width: int = 128,
    top: int = 64,
    objective: str = "relative",
    check: int = 25,
    start: Tensor | None = None,
) -> list[Answer]:
    """Greedy coordinate gradient (Zou et al., 2307.15043).

    Each guess exchanges one token, at a random position, for a random one of that position's
    shortlist. The best is taken if it improves; a guess that is worse is never moved to.

    Args:
        batch: any slices.
        chance: the source of each row's start and guesses.
        steps: the most that a row takes.
        width: guesses tried in a step.
        top: tokens of a shortlist.
        objective: by its name.
        check: rows that are solved leave after every so many steps.
        start: tokens to start from instead of random ones, `(B, T)`.
    """
    return drive(_Gcg(batch, chance, width, top, objective, start), steps, check)


class _Gcg(TokenSolver):
    def __init__(
        self,
        batch: Batch,
        chance: Chance,
        width: int,
        top: int,
        objective: str,
        start: Tensor | None,
    ) -> None:
        super().__init__(batch, chance)
        self.width, self.objective = width, by_name(objective)
        W = batch.circuit.vocabulary
        self.top = min(top, len(W))
        self.begin(random_tokens(chance, (batch.length,), W) if start is None else start)

    def step(self, i: int) -> int:
        T, N = self.batch.length, self.width
        gradient = gradient_at(self.batch, self.tokens, self.objective)
        self.estimates = -gradient @ self.batch.circuit.vocabulary.T
        shortlist = self.estimates.topk(self.top, dim=-1).indices.flatten(1)
        at, pick = random_tokens(self.chance, (2, N), shortlist[0]).unbind(1)
        position = at % T
        guesses = self.tokens[:, None].repeat(1, N, 1)
        chosen = shortlist.gather(1, position * self.top + pick % self.top)
        self.try_all(guesses.scatter(2, position[..., None], chosen[..., None]))
        return (3 + N) * T
