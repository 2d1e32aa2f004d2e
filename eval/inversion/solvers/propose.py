"""Exact search for shown tokens: a fitted map proposes, and the model verifies."""

from collections.abc import Iterator, Sequence
from time import perf_counter

from eval.inversion.problem import Generators, Problem
from eval.inversion.reading import Reading
from eval.inversion.solver import Answer, solver

LIKELY = 16  # tokens that the text makes likeliest, run at each position
SHORTLIST = 4  # tokens nearest by the read-back that are run at first


@solver(
    "search", title="exact search, propose and verify", hidden=range(1), layers=True, guesses=True
)
def propose(problems: Sequence[Problem], generators: Generators) -> Iterator[Answer]:
    """Guesses each token from the stream by a fitted linear map, and verifies it by running it.

    If no guess fits, more tokens are tried, in the end the whole vocabulary. All positions must be
    shown; all layers of a prompt share one pass. The map reads a token at its own position: without
    a residual stream that carries the token there, guesses are poor.

    Args:
        problems: of circuits that differ in their layers only, of the same prompts.
        generators: not used.
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
            answer = reading.search_alone(i, p, paths, good[i][p])
            yield Answer(
                tokens=answer.tokens,
                scores=answer.scores(problem, fits[i]),
                evaluations=answer.evaluations,
                seconds=shared + perf_counter() - started,
                notes={"alone": answer.searched, "swept": answer.swept},
            )
