"""The search for the tokens behind captured outputs, and its answer held against these."""

from dataclasses import replace

import torch
from torch import Tensor

from eval.captured.arithmetic import EXACT
from eval.captured.captured import Captured, find_zeros
from eval.captured.certainty.certify import Certified
from eval.captured.certainty.verified import Found, verify
from eval.captured.locate import TRIED
from eval.inversion.problem import Problem
from eval.inversion.reading import Reading
from eval.inversion.solver import Solver, ask_solver

SEARCHES = 2  # the second with limits measured on the first one's answers
GUESSED = 512  # tokens that are tried at a damaged position, by what its own output still says


def search(captured: Captured, solver: Solver, seed: int) -> Found:
    """Asks the solver, a second time where wrong tokens kept within the limits of the first."""
    problem = captured.pose()
    B, T = len(problem.target), problem.length
    proofs, rows, evaluations = ["residual"] * B, list(range(B)), [0] * B
    tokens = torch.zeros(B, T, dtype=torch.long, device=problem.target.device)
    for _ in range(SEARCHES):
        generators = [torch.Generator().manual_seed(seed) for _ in rows]
        (found,) = ask_solver(solver, [problem.of(rows)], generators)
        for row, answer in zip(rows, found, strict=True):
            tokens[row], proofs[row] = answer.tokens, answer.certificate or "residual"
            evaluations[row] += answer.evaluations
        verified = verify(captured, problem, tokens)
        residual, measured, posed = verified.residual, verified.tolerance, problem.tolerance
        within = (residual <= measured.limit).all(dim=1)
        loose = ~within & (residual <= posed.limit).all(dim=1)
        if solver.name != "propose" or not (rows := loose.nonzero()[:, 0].tolist()):
            break
        problem = replace(problem, tolerance=posed.narrowed(measured))
    return Found(problem, verified, proofs, evaluations)


def try_exact(captured: Captured, found: Found) -> tuple[Captured, Found]:
    """The same in float32, where the answer fits it: a lower precision was only supposed."""
    exact = replace(captured, arithmetic=replace(captured.arithmetic, name=EXACT))
    verified = verify(exact, found.problem, found.verified.tokens)
    if not bool((verified.residual <= verified.tolerance.limit).all()):
        return captured, found
    return exact, replace(found, verified=verified)


def pass_over_damage(captured: Captured, found: Found, certified: Certified) -> Found | None:
    """Goes on behind a position whose own output no token fits; None where that leads nowhere.

    The tokens after it were searched for behind a token that may be wrong. Others are tried in its
    place, by whether some token after it fits the next output.
    """
    tokens, problem = certified.verified.tokens.clone(), found.problem
    changed, empty = False, find_zeros(captured.stored).tolist()
    for row, tail in enumerate(certified.left_out):
        behind = len(tail) > 1 and 0 < tail[0] == tail[1] - 1 and not empty[row][tail[1]]
        if behind and tail[1] in problem.positions:
            better = _search_behind(problem.of([row]), tokens[row], tail[0])
            if better is not None:
                tokens[row], changed = better, True
    return replace(found, verified=verify(captured, problem, tokens)) if changed else None


@torch.no_grad()
def _search_behind(problem: Problem, tokens: Tensor, damaged: int) -> Tensor | None:
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
