"""Exact search for shown tokens: a fitted map proposes, and the model verifies."""

from collections.abc import Iterator, Sequence
from time import perf_counter

from eval.inversion.problem import Chance, Problem
from eval.inversion.reading import Reading
from eval.inversion.solver import Answer, solver

LIKELY = 16  # tokens that the text makes likeliest, run at each position
SHORTLIST = 4  # tokens nearest by the read-back that are run at first


@solver(
    "search", title="exact search, propose and verify", hidden=range(1), layers=True, guesses=True
)
def propose(problems: Sequence[Problem], chance: Chance) -> Iterator[Answer]:
    """Reads each token off the stream by a fitted linear map and verifies it by running it.

    Where a guess does not hit, more tokens are tried, by and by the whole vocabulary. For positions
    that are shown; all layers of a prompt share one pass. A token is looked for at its own
    position: where no residual stream carries it there, guesses are worth little.

    Args:
        problems: of circuits that differ in their layers only, of the same prompts.
        chance: not used.
    """
    started = perf_counter()
    fits = problems[0].readbacks([problem.circuit for problem in problems])
    reading = Reading(problems, fits, LIKELY, SHORTLIST)
    paths = reading.search_together()
    good = paths.good.tolist()
    shared = (perf_counter() - started) / (len(problems) * len(problems[0].target))
    for i, problem in enumerate(problems):
        for p in range(len(problem.target)):
            started = perf_counter()
            row = reading.search_alone(i, p, paths, good[i][p])
            yield Answer(
                tokens=row.tokens,
                scores=row.scores(problem, fits[i]),
                evaluations=row.evaluations,
                seconds=shared + perf_counter() - started,
                notes={"alone": row.searched, "swept": row.swept},
            )
