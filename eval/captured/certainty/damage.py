"""A damaged position of captured outputs: its token is found by what comes after it."""

import torch
from torch import Tensor

from eval.captured.locate import TRIED
from eval.inversion.problem import Problem
from eval.inversion.reading import Reading

GUESSED = 512  # tokens that are tried at such a position, by what its own output still says


@torch.no_grad()
def search_behind(problem: Problem, tokens: Tensor, damaged: int) -> Tensor | None:
    """The tokens with another one at a damaged position, if some token then fits the next output.

    Args:
        problem: of one prompt.
        tokens: its answer so far, `(T,)`.
        damaged: a position whose own output no token fits; the next one is shown.

    Returns:
        `(T,)`: the tokens before it as they are, those after it searched for anew; or None.
    """
    (fit,) = readbacks = problem.readbacks([problem.circuit])
    shown, next_one = problem.positions, problem.positions.index(damaged + 1)
    guesses = tokens[damaged, None]
    if damaged in shown:
        guesser = fit.guesser(problem.slice.low, problem.slice.high, first=not damaged)
        own = problem.circuit.of_tokens(tokens[None])[:, damaged]
        embedding = problem.circuit.embed(tokens[None, damaged])
        target = problem.target[:, shown.index(damaged)]
        scores = guesser.scores(guesser.read(target, problem.slice.narrow(own), embedding))[0]
        guesses = torch.cat([guesses, scores.topk(min(GUESSED, len(scores))).indices])
    versions = torch.cat([tokens[:damaged].repeat(len(guesses), 1), guesses[:, None]], dim=1)
    behind = problem.showing(slice(next_one, next_one + 1), damaged + 2)
    paths = Reading([behind.of([0] * len(guesses))], readbacks, *TRIED).search_together(versions)
    good, away = paths.good[0, :, 0], paths.distances[0, :, 0]
    if not bool(good.any()):
        return None
    given = versions[int(away.masked_fill(~good, torch.inf).argmin())][None]
    rest = Reading([problem.showing(slice(next_one, None))], readbacks, *TRIED)
    return rest.search_together(given).path[0]
