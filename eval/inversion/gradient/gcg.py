"""GCG: the gradient shortlists tokens at every position, random ones of them are tried exactly."""

from collections.abc import Iterator

from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient.guess import gradient_at, random_guess
from eval.inversion.gradient.loop import Rows, drive, random_tokens
from eval.inversion.solvers import NONE, Chance, Tools, solver
from eval.inversion.spaces import objective as by_name


@solver("gradient", random=True, cost=lambda V, T, k: 4096 * T, title="GCG")
def gcg(
    batch: Batch,
    chance: Chance,
    tools: Tools = NONE,
    *,
    steps: int = 500,
    width: int = 128,
    top: int = 64,
    objective: str = "relative",
    check: int = 25,
) -> list[Answer]:
    """The gradient shortlists tokens at every position; random ones of them are tried.

    Greedy coordinate gradient (Zou et al., 2307.15043). Each guess exchanges one token, at a random
    position, for a random one of that position's shortlist. The best is taken if it improves; a
    guess that is worse is never moved to.

    Args:
        batch: any slices.
        chance: the source of each row's start and guesses.
        tools: not used.
        steps: the most that a row takes.
        width: guesses tried in a step.
        top: tokens of a shortlist.
        objective: what is lowered.
        check: rows that are solved leave after every so many steps.
    """
    loss, W, T = by_name(objective), batch.circuit.vocabulary, batch.length
    listed = min(top, len(W))

    def search(rows: Rows) -> Iterator[None]:
        guess = random_guess(rows, loss)
        rows.scores = lambda: guess.scores
        while True:
            guess.estimates = -gradient_at(rows.batch, guess.tokens, loss) @ W.T
            shortlist = guess.estimates.topk(listed, dim=-1).indices.flatten(1)
            at, pick = random_tokens(rows.chance, (2, width), shortlist[0]).unbind(1)
            position = at % T
            guesses = guess.tokens[:, None].repeat(1, width, 1)
            chosen = shortlist.gather(1, position * listed + pick % listed)
            guesses = guesses.scatter(2, position[..., None], chosen[..., None])
            guess.try_all(rows.batch, guesses, loss)
            rows.spent += (3 + width) * T
            yield
            (guess,) = rows.kept(guess)

    return drive(batch, chance, search, steps, check)
