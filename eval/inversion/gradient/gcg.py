"""GCG: the gradient shortlists tokens at every position, random ones of them are tried exactly."""

from collections.abc import Iterator

from eval.inversion.gradient.guess import gradient_at, random_guess
from eval.inversion.gradient.loop import Rows, gradient, random_tokens


@gradient(steps=500, random=True, cost=lambda V, T, k: 4096 * T, title="GCG")
def gcg(rows: Rows, *, width: int = 128, top: int = 64) -> Iterator[None]:
    """The gradient shortlists tokens at every position; random ones of them are tried.

    Greedy coordinate gradient (Zou et al., 2307.15043). Each guess exchanges one token, at a random
    position, for a random one of that position's shortlist. The best is taken if it improves; a
    guess that is worse is never moved to.

    Args:
        rows: of any slices.
        width: guesses tried in a step.
        top: tokens of a shortlist.
    """
    W, T = rows.vocabulary, rows.length
    listed, guess = min(top, len(W)), random_guess(rows)
    rows.scores = lambda: guess.scores
    while True:
        guess.estimates = -gradient_at(rows.batch, guess.tokens, rows.objective) @ W.T
        shortlist = guess.estimates.topk(listed, dim=-1).indices.flatten(1)
        at, pick = random_tokens(rows.chance, (2, width), shortlist[0]).unbind(1)
        position = at % T
        guesses = guess.tokens[:, None].repeat(1, width, 1)
        chosen = shortlist.gather(1, position * listed + pick % listed)
        guesses = guesses.scatter(2, position[..., None], chosen[..., None])
        guess.try_all(rows, guesses)
        rows.spent += (3 + width) * T
        yield
        (guess,) = rows.kept(guess)
