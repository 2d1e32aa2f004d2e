"""Alternating exact search: hidden tokens from other positions' outputs, nothing given.

The first k tokens are hidden, and with them unknown a sweep of the visible ones has no true prefix.
So the two are found in turns: (a) sweep the visible positions under the present guess of the hidden
tokens (each token dominates its own position, so most are right even then); (b) try the whole
vocabulary at each hidden position, with the others held, and then every reordering of the hidden
tokens; where that is stuck, try pairs of positions together. A guess whose outputs lie at the floor
is proved; one that does not improve is given up for another start. Starts are what a short gradient
descent proposes and random tokens, in turns.

Both turns work on a window of the first few visible positions. Once that is at the floor, the
hidden tokens are known and one plain sweep finds the rest.
"""

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.inversion.answer import Answer
from eval.inversion.batch import Batch
from eval.inversion.gradient import adam
from eval.inversion.problem import ACCEPT, Problem
from eval.inversion.sweep import BATCH, collisions, sweep_from

WINDOW = 6  # visible positions searched on; more cost time, fewer leave the wrong guesses tempting
SCREEN = 2  # visible positions on which all tokens are ranked before a few see the whole window
SHORTLIST = 64  # how many those are
PROPOSAL_STEPS = 150  # of the gradient descent that proposes the first start
PAIRS = 128  # exchanges of two tokens that are tried, of the V x V that are ranked
PASSES = 10  # over the hidden positions before a turn ends; few are ever needed
ALL_ORDERS = 4  # up to here every permutation of the hidden tokens is tried, beyond only swaps


def alternating(
    problem: Problem, generators: list[torch.Generator], starts: int = 8, rounds: int = 6
) -> list[Answer]:
    """Recovers P prompts whose first k positions are hidden, `[:, k:, :]`.

    Args:
        problem: k >= 1.
        generators: the source of each prompt's random starts.
        starts: starts before a prompt is given up; the nearest answer is returned then.
        rounds: turns of (a) and (b) per start.
    """
    proposals = adam(Batch((problem,)), generators, steps=PROPOSAL_STEPS)
    return [
        _Search(problem, p, proposal, generators[p], starts, rounds).answer()
        for p, proposal in enumerate(proposals)
    ]


class _Search:
    """One prompt's search, counting what it costs."""

    def __init__(
        self,
        problem: Problem,
        p: int,
        proposal: Answer,
        generator: torch.Generator,
        starts: int,
        rounds: int,
    ) -> None:
        assert problem.hidden
        self.circuit: Circuit = problem.circuit
        self.k = problem.hidden
        self.target, self.floor = problem.target[p : p + 1], problem.floor[p]
        self.problem = replace(problem, target=self.target, floor=problem.floor[p : p + 1])
        self.window = self.target[:, :WINDOW]
        self.generator, self.starts, self.rounds = generator, starts, rounds
        self.vocabulary = self.circuit.vocabulary
        self.proposal = proposal
        self.evaluations = proposal.evaluations

    def answer(self) -> Answer:
        started = time.perf_counter()
        ends = []
        for start in range(self.starts):
            ends.append(self._descend(self._start(start)))
            if ends[-1].proved:
                break
        return self._finish(min(ends, key=lambda end: end.distance), started)

    def _start(self, number: int) -> Tensor:
        """Hidden tokens to start from: a descent's proposal and random ones, in turns."""
        if number == 0:
            return self.proposal.tokens[None, : self.k]
        if number % 2 == 0:
            (proposal,) = adam(Batch((self.problem,)), [self.generator], steps=2 * PROPOSAL_STEPS)
            self.evaluations += proposal.evaluations
            return proposal.tokens[None, : self.k]
        V = len(self.vocabulary)
        return torch.randint(V, (1, self.k), generator=self.generator).to(self.target.device)

    def _descend(self, hidden: Tensor) -> "_End":
        """From a start to where neither turn improves."""
        distance = torch.inf
        for _ in range(self.rounds):
            visible = self._sweep(hidden, self.window)
            before = hidden
            hidden, distance = self._search_hidden(hidden, visible)
            if self._at_floor(hidden, visible):
                return _End(hidden, 0.0, True)
            if hidden.equal(before):
                hidden, distance = self._search_pairs(hidden, visible)
                if hidden.equal(before):
                    break
        return _End(hidden, distance, False)

    def _sweep(self, hidden: Tensor, target: Tensor) -> Tensor:
        """(a) The visible tokens under a guess of the hidden ones, `(1, S)`."""
        self.evaluations += target.shape[1] * len(self.vocabulary)
        return sweep_from(self.circuit, target, self.circuit.prefix(hidden)).tokens

    def _search_hidden(self, hidden: Tensor, visible: Tensor) -> tuple[Tensor, float]:
        """(b) Coordinates and orders of the hidden tokens, until nothing improves."""
        distance, held = torch.inf, 0  # held: coordinates in a row that stayed as they were
        for j in list(range(self.k)) * PASSES:
            before = hidden
            hidden, distance = self._search_at(j, hidden, visible)
            held = held + 1 if hidden.equal(before) else 1
            if self._at_floor(hidden, visible):
                break
            if j == self.k - 1:
                before = hidden
                hidden, distance = self._reorder(hidden, visible)
                held = held if hidden.equal(before) else 0
            if held >= self.k:
                break
        return hidden, distance

    def _search_at(self, j: int, hidden: Tensor, visible: Tensor) -> tuple[Tensor, float]:
        """The best token at hidden position j, the others held.

        All tokens are ranked on the first few visible positions, the best ones on the window.
        """
        screened = self._try_at(j, hidden, visible[:, :SCREEN])
        best = torch.cat([screened.topk(SHORTLIST, largest=False).indices, hidden[0, j : j + 1]])
        guesses = hidden.repeat(len(best), 1)
        guesses[:, j] = best
        return self._nearest(guesses, visible)

    def _try_at(self, j: int, hidden: Tensor, visible: Tensor) -> Tensor:
        """Distance for every token at hidden position j, the others held, `(V,)`."""
        return torch.cat([self._distance(o) for o in self._outputs_at(j, hidden, visible)])

    def _outputs_at(self, j: int, hidden: Tensor, visible: Tensor) -> Iterator[Tensor]:
        """The window's outputs for every token at hidden position j, in batches `(N, S, D)`."""
        state = self.circuit.prefix(hidden[:, :j]) if j else None
        rest = self.circuit.model.embed(torch.cat([hidden[:, j + 1 :], visible], dim=1))
        self.evaluations += len(self.vocabulary) * (1 + rest.shape[1])
        for candidates in self.vocabulary.split(max(1, BATCH // (1 + rest.shape[1]))):
            tail = rest.expand(len(candidates), -1, -1)
            outputs = self.circuit.step(torch.cat([candidates[:, None], tail], dim=1), state)
            yield outputs[:, self.k - j :]

    def _search_pairs(self, hidden: Tensor, visible: Tensor) -> tuple[Tensor, float]:
        """The best exchange of two hidden tokens at once; the guess as it is if there is none.

        The changes that two tokens make to the outputs nearly add up. So the distance of all V x V
        pairs follows from V changes at each position, by one product; the nearest are then tried.
        """
        unit = self.window.norm(dim=-1, keepdim=True)
        base = self.circuit.of_tokens(torch.cat([hidden, visible], dim=1))[:, self.k :]
        missing = ((self.window - base) / unit).flatten()
        changes = {
            j: torch.cat(
                [((o - base) / unit).flatten(1) for o in self._outputs_at(j, hidden, visible)]
            )
            for j in (range(self.k) if self.k > 1 else ())
        }
        tried = [hidden]
        for i, j in itertools.combinations(changes, 2):
            left = missing - changes[i]
            apart = (
                left.square().sum(1)[:, None] + changes[j].square().sum(1) - 2 * left @ changes[j].T
            )
            nearest = apart.flatten().topk(PAIRS, largest=False).indices
            pairs = hidden.repeat(PAIRS, 1)
            pairs[:, i], pairs[:, j] = nearest // len(changes[j]), nearest % len(changes[j])
            tried.append(pairs)
        return self._nearest(torch.cat(tried), visible)

    def _reorder(self, hidden: Tensor, visible: Tensor) -> tuple[Tensor, float]:
        """The best order of the hidden tokens; the present one stands first, and wins a tie."""
        orders = torch.tensor(_orders(self.k), device=hidden.device)
        return self._nearest(hidden[0][orders], visible)

    def _nearest(self, guesses: Tensor, visible: Tensor) -> tuple[Tensor, float]:
        """The guess of `(N, k)` hidden tokens that comes nearest; the first of equals."""
        tried = torch.cat([guesses, visible.expand(len(guesses), -1)], dim=1)
        self.evaluations += tried.numel()
        distances = self._distance(self.circuit.of_tokens(tried)[:, self.k :])
        best = int(distances.argmin())
        return guesses[best : best + 1], float(distances[best])

    def _distance(self, outputs: Tensor) -> Tensor:
        """Distance over the first S visible positions, each in its own length: `(N,)`."""
        window = self.window[:, : outputs.shape[1]]
        apart = torch.linalg.vector_norm(outputs - window, dim=-1)
        return (apart / window.norm(dim=-1)).norm(dim=-1)

    def _at_floor(self, hidden: Tensor, visible: Tensor) -> bool:
        outputs = self.circuit.of_tokens(torch.cat([hidden, visible], dim=1))[:, self.k :]
        apart = torch.linalg.vector_norm(outputs - self.window, dim=-1)[0]
        return bool((apart <= ACCEPT * self.floor[: apart.shape[0]]).all())

    def _finish(self, end: "_End", started: float) -> Answer:
        """All visible tokens under the final hidden ones, and how each position stands out."""
        k, V = self.k, len(self.vocabulary)
        swept = sweep_from(self.circuit, self.target, self.circuit.prefix(end.hidden))
        self.evaluations += self.target.shape[1] * V
        if end.proved:  # nothing else comes as near: no other token need be ranked
            scores = torch.nn.functional.one_hot(end.hidden[0], V).to(swept.all)
        else:
            window = swept.tokens[:, : self.window.shape[1]]
            scores = -torch.stack([self._try_at(j, end.hidden, window) for j in range(k)])
        return Answer(
            tokens=torch.cat([end.hidden, swept.tokens], dim=1)[0],
            scores=torch.cat([scores, -swept.all[0]]),
            runner_up=swept.all[0].topk(2, dim=-1, largest=False).values[:, 1],
            collisions={k + t: c for t, c in collisions(swept.all[0], self.floor).items()},
            evaluations=self.evaluations,
            seconds=time.perf_counter() - started + self.proposal.seconds,
        )


class _End(NamedTuple):
    """Where a descent came to rest."""

    hidden: Tensor
    distance: float
    proved: bool


def _orders(k: int) -> list[tuple[int, ...]]:
    """The order as it is, then all permutations of a few, or all swaps and rotations of many."""
    if k <= ALL_ORDERS:
        return list(itertools.permutations(range(k)))
    start = list(range(k))
    orders = [tuple(start)]
    for i, j in itertools.combinations(start, 2):
        swapped = start.copy()
        swapped[i], swapped[j] = j, i
        moved_right = [*start[:i], *start[i + 1 : j + 1], i, *start[j + 1 :]]
        moved_left = [*start[:i], j, *start[i:j], *start[j + 1 :]]
        orders += [tuple(swapped), tuple(moved_right), tuple(moved_left)]
    return orders
