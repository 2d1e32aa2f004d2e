"""Certified enumeration: first an answer is searched for, then every other choice is ruled out.

With the visible tokens as recovered, one hidden token leaves V choices, and the alternating search
tries all; two leave V x V. Each pair can be run (`exact`, for a GPU or for patience: in bfloat16,
and again where that does not tell it from the target). Or it is ruled out by the additive model,
where its distance exceeds the largest interaction of two tokens that was seen, with a factor to
spare; what remains is run. That rules out nearly all before training and little after it: then the
answer stays proved by its residual alone. Both bounds, of bfloat16 and of the additive model, are
measured on random pairs, not derived: the certificate is "screened". Two hidden tokens that are not
neighbours are no pair: the alternating search tries all choices of each.
"""

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.inversion.answer import Answer
from eval.inversion.problem import Batch, Problem
from eval.inversion.search.alternating import alternating
from eval.inversion.solvers import Chance, ReadBacksOf, solver
from eval.models import candidates_at_once
from eval.tasks import SoFar, tell

PROBES = 2048  # random pairs run to see how far from additive, or from bfloat16, the model is
SPARE = 2.0  # times the largest of those counts as possible; the same of bfloat16's errors


@solver(
    "search",
    name="enumerate",
    hidden=range(1, 3),
    random=True,
    proves=True,
    cost=lambda V, T, k: V * 40 * k,
    title="exact search, enumeration",
    short="enumeration",
    word="enum.",
)
def enumerate_hidden(
    batch: Batch,
    chance: Chance,
    readback: ReadBacksOf,
    *,
    exact: bool = False,
    most: int = 50_000,
) -> list[Answer]:
    """Searches for an answer and then rules out every other choice of the one or two hidden tokens.

    Args:
        batch: one problem with one or two hidden positions before the last one shown.
        chance: the source of each prompt's random starts.
        readback: for guesses of visible tokens.
        exact: whether all V x V pairs are run in low precision, instead of screened by the additive
            model.
        most: pairs that are run at most where they are not; above that nothing is certified.
    """
    (problem,) = batch.problems
    answers = alternating(batch, chance, readback, rivals=True)
    shown = problem.slice.positions(problem.length)
    hidden = [t for t in range(shown[-1]) if t not in shown]
    if hidden[1:] == [hidden[0] + 1]:
        for p, answer in enumerate(answers):
            if answer.certificate:
                _rule_out(problem.of([p]), answer, hidden[0], chance[p], exact, most)
    return answers


def _rule_out(
    problem: Problem, answer: Answer, first: int, generator: torch.Generator, exact: bool, most: int
) -> None:
    """Completes an answer: the certificate, the nearest other pair, and pairs as good as it.

    Of one prompt whose hidden positions are `first` and the next one.
    """
    started = time.perf_counter()
    pairs = _Pairs(problem, answer.tokens, first)
    if exact:
        remaining = pairs.all(generator)
    else:
        remaining, allowance = pairs.possible(generator, most)
        answer.notes["allowance"] = allowance
    if remaining is not None:
        nearest, equal, count = pairs.run(remaining)
        answer.notes |= {"pairs": count, "nearest": nearest}
        shown = problem.slice.positions(problem.length)
        fitting = problem.explaining(equal, answer.tokens[shown])
        pairs.evaluations += equal.shape[0] * problem.length
        if (fitting == pairs.pair).all(dim=1).any():  # else it rules nothing out
            answer.certificate = "screened"
        if len(fitting) > 1:
            for j in range(2):
                answer.collisions[first + j] = fitting[:, j].unique().tolist()
    answer.evaluations += pairs.evaluations
    answer.seconds += time.perf_counter() - started


class _Pairs:
    """All pairs of hidden tokens from position `first`, before one visible token."""

    def __init__(self, problem: Problem, tokens: Tensor, first: int) -> None:
        self.circuit, self.shown = problem.circuit, problem.slice
        self.V = len(self.circuit.vocabulary)
        self.before, self.pair, self.visible = tokens[: first + 3].split([first, 2, 1])
        # as many positions are shown before the pair
        self.target, self.limit = problem.target[0, first], problem.limit[0, first]
        self.evaluations = 0
        self.at_once = candidates_at_once(self.circuit.model)

    def all(self, generator: torch.Generator) -> Iterator[Tensor]:
        """Every pair that bfloat16 does not tell from the target, `(n, 2)` at a time.

        All V x V are run in it, each second token on the remembered first one.
        """
        coarse, second = self.circuit.coarse, torch.arange(self.V, device=self.pair.device)
        visible = self.circuit.embed(self.visible).expand(self.V, 1, -1)
        both = torch.cat([self.circuit.vocabulary[:, None], visible], dim=1)
        drawn = torch.randint(self.V, (PROBES, 2), generator=generator).to(self.pair.device)
        off = self._outputs(drawn) - self._outputs(drawn, coarse)
        blur = self.limit + SPARE * torch.linalg.vector_norm(off, dim=-1).max()
        self.evaluations += 2 * self.V * self.V
        before = coarse.prefix(self.before[None]) if len(self.before) else None
        for first in range(self.V):
            state = coarse.prefix(second[first : first + 1, None], before)
            parts = [coarse.step(some, state)[:, 1] for some in both.split(self.at_once)]
            outputs = self.shown.narrow(torch.cat(parts))
            apart = torch.linalg.vector_norm(outputs - self.target, dim=-1)
            near = second[apart <= blur]
            yield torch.stack([torch.full_like(near, first), near], dim=1)

    def possible(
        self, generator: torch.Generator, most: int
    ) -> tuple[Iterator[Tensor] | None, float]:
        """The pairs that the additive model cannot rule out, and the distance it may err by.

        None if there are more than `most`.
        """
        base = self._outputs(self.pair[None])
        changes = []
        for j in range(2):
            tried = self.pair.repeat(self.V, 1)
            tried[:, j] = torch.arange(self.V)
            parts = [self._outputs(some) for some in tried.split(self.at_once)]
            changes.append(torch.cat(parts) - base)
        drawn = torch.randint(self.V, (PROBES, 2), generator=generator).to(self.pair.device)
        added = base + changes[0][drawn[:, 0]] + changes[1][drawn[:, 1]]
        off = torch.linalg.vector_norm(self._outputs(drawn) - added, dim=-1)
        allowance = SPARE * float(off.max())
        missing = (self.target - base) - changes[0]  # (V, C): to be added by a second token
        second = changes[1].double()  # in float32, cdist errs by more than the limit
        kept, count = [], 0
        for start, some in zip(range(0, self.V, 256), missing.double().split(256), strict=True):
            near = torch.cdist(some, second) <= self.limit + allowance
            pairs = near.nonzero()
            pairs[:, 0] += start
            kept.append(pairs)
            count += len(pairs)
            if count > most:
                return None, allowance
        return iter(torch.cat(kept).split(self.at_once)), allowance

    def run(self, remaining: Iterator[Tensor]) -> tuple[float | None, Tensor, int]:
        """Distance of the nearest other pair (None: no other), those within the limit, how many.

        Only pairs that had to be run are looked at, and only the first visible position.
        """
        nearest, equal, count = float("inf"), [self.pair.new_empty(0, 2)], 0
        for pairs in remaining:
            tell(SoFar())
            if not len(pairs):
                continue
            apart = torch.linalg.vector_norm(self._outputs(pairs) - self.target, dim=-1)
            other = (pairs != self.pair).any(dim=-1)
            if other.any():
                nearest = min(nearest, float(apart[other].min()))
            equal.append(pairs[apart <= self.limit])
            count += len(pairs)
        return None if nearest == float("inf") else nearest, torch.cat(equal), count

    def _outputs(self, pairs: Tensor, circuit: Circuit | None = None) -> Tensor:
        """The first visible output after pairs, `(n, 2)`, as far as it is shown: `(n, C)`."""
        before, after = (t.expand(len(pairs), -1) for t in (self.before, self.visible))
        whole = torch.cat([before, pairs, after], dim=1)
        self.evaluations += whole.numel()
        return self.shown.narrow((circuit or self.circuit).of_tokens(whole)[:, -1])
