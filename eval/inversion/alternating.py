"""Alternating exact search: hidden tokens from other positions' outputs, nothing given.

The first k tokens are hidden, and with them unknown a sweep of the visible ones has no true prefix.
So the two are found in turns: (a) sweep the visible positions under the present guess of the hidden
tokens (each token dominates its own position, so most are right even then); (b) try the whole
vocabulary at each hidden position, with the others held, and then every reordering of the hidden
tokens. A guess whose outputs lie at the floor is proved; one that does not improve is given up for
a new random start.

Both turns work on a window of the first few visible positions. Once that is at the floor, the
hidden tokens are known and one plain sweep finds the rest.
"""

import itertools
import time

import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.inversion.answer import Answer
from eval.inversion.problem import ACCEPT, Problem
from eval.inversion.sweep import BATCH, collisions, sweep_from

WINDOW = 6  # visible positions searched on; more cost time, fewer leave the wrong guesses tempting
PASSES = 10  # over the hidden positions before a turn ends; few are ever needed
ALL_ORDERS = 4  # up to here every permutation of the hidden tokens is tried, beyond only swaps


def alternating(
    problem: Problem, generators: list[torch.Generator], starts: int = 8, rounds: int = 6
) -> list[Answer]:
    """Recovers P prompts whose first k positions are hidden, `[:, k:, :]`.

    Args:
        problem: k >= 1.
        generators: the source of each prompt's random starts.
        starts: random starts before a prompt is given up; the nearest answer is returned then.
        rounds: turns of (a) and (b) per start.
    """
    return [
        _Search(problem, p, generators[p], starts, rounds).answer()
        for p in range(len(problem.target))
    ]


class _Search:
    """One prompt's search, counting what it costs."""

    def __init__(
        self, problem: Problem, p: int, generator: torch.Generator, starts: int, rounds: int
    ) -> None:
        assert problem.hidden
        self.circuit: Circuit = problem.circuit
        self.k = problem.hidden
        self.target, self.floor = problem.target[p : p + 1], problem.floor[p]
        self.window = self.target[:, :WINDOW]
        self.generator, self.starts, self.rounds = generator, starts, rounds
        self.vocabulary = self.circuit.vocabulary
        self.distances: dict[int, Tensor] = {}  # of every token at each hidden position, last tried
        self.evaluations = 0

    def answer(self) -> Answer:
        started = time.perf_counter()
        best: tuple[float, Tensor] | None = None
        for _ in range(self.starts):
            distance, hidden, proved = self._descend()
            if best is None or distance < best[0]:
                best = distance, hidden
            if proved:
                break
        assert best is not None
        return self._finish(best[1], started)

    def _descend(self) -> tuple[float, Tensor, bool]:
        """From one random start to where neither turn improves: distance, hidden tokens, proof."""
        V = len(self.vocabulary)
        hidden = torch.randint(V, (1, self.k), generator=self.generator).to(self.target.device)
        distance = torch.inf
        for _ in range(self.rounds):
            visible = self._sweep(hidden, self.window)
            before = hidden
            hidden, distance = self._search_hidden(hidden, visible)
            if self._at_floor(hidden, visible):
                return distance, hidden, True
            if hidden.equal(before):
                break
        return distance, hidden, False

    def _sweep(self, hidden: Tensor, target: Tensor) -> Tensor:
        """(a) The visible tokens under a guess of the hidden ones, `(1, S)`."""
        self.evaluations += target.shape[1] * len(self.vocabulary)
        return sweep_from(self.circuit, target, self.circuit.prefix(hidden)).tokens

    def _search_hidden(self, hidden: Tensor, visible: Tensor) -> tuple[Tensor, float]:
        """(b) Coordinates and orders of the hidden tokens, until nothing improves."""
        distance, held = torch.inf, 0  # held: coordinates in a row that stayed as they were
        for j in list(range(self.k)) * PASSES:
            distances = self._try_at(j, hidden, visible)
            self.distances[j] = distances
            nearest, distance = int(distances.argmin()), float(distances.min())
            held = held + 1 if nearest == hidden[0, j] else 1
            hidden = hidden.clone()
            hidden[0, j] = nearest
            if self._at_floor(hidden, visible):
                break
            if j == self.k - 1:
                better, distance = self._reorder(hidden, visible, distance)
                held = held if better.equal(hidden) else 0
                hidden = better
            if held >= self.k:
                break
        return hidden, distance

    def _try_at(self, j: int, hidden: Tensor, visible: Tensor) -> Tensor:
        """Distance of the window for every token at hidden position j, the others held, `(V,)`."""
        state = self.circuit.prefix(hidden[:, :j]) if j else None
        rest = self.circuit.model.embed(torch.cat([hidden[:, j + 1 :], visible], dim=1))
        distances = []
        for candidates in self.vocabulary.split(max(1, BATCH // (1 + rest.shape[1]))):
            tail = rest.expand(len(candidates), -1, -1)
            outputs = self.circuit.step(torch.cat([candidates[:, None], tail], dim=1), state)
            distances.append(self._distance(outputs[:, self.k - j :]))
        self.evaluations += len(self.vocabulary) * (1 + rest.shape[1])
        return torch.cat(distances)

    def _reorder(self, hidden: Tensor, visible: Tensor, distance: float) -> tuple[Tensor, float]:
        """The best reordering of the hidden tokens, if it is better than the present one."""
        orders = torch.tensor(_orders(self.k), device=hidden.device)
        tried = torch.cat([hidden[0][orders], visible.expand(len(orders), -1)], dim=1)
        distances = self._distance(self.circuit.of_tokens(tried)[:, self.k :])
        self.evaluations += tried.numel()
        nearest = int(distances.argmin())  # the present order stands first, and wins a tie
        if nearest == 0:
            return hidden, distance
        return tried[nearest : nearest + 1, : self.k], float(distances[nearest])

    def _distance(self, outputs: Tensor) -> Tensor:
        """Distance over the window, each position in its own length, `(N, S, D) -> (N,)`."""
        apart = torch.linalg.vector_norm(outputs - self.window, dim=-1)
        return (apart / self.window.norm(dim=-1)).norm(dim=-1)

    def _at_floor(self, hidden: Tensor, visible: Tensor) -> bool:
        outputs = self.circuit.of_tokens(torch.cat([hidden, visible], dim=1))[:, self.k :]
        apart = torch.linalg.vector_norm(outputs - self.window, dim=-1)[0]
        return bool((apart <= ACCEPT * self.floor[: apart.shape[0]]).all())

    def _finish(self, hidden: Tensor, started: float) -> Answer:
        """All visible tokens under the final hidden ones, and how each position stands out."""
        k, V = self.k, len(self.vocabulary)
        swept = sweep_from(self.circuit, self.target, self.circuit.prefix(hidden))
        self.evaluations += self.target.shape[1] * V
        tried = torch.stack([self.distances[j] for j in range(k)])
        distances = torch.cat([tried, swept.all[0]])
        return Answer(
            tokens=torch.cat([hidden, swept.tokens], dim=1)[0],
            scores=-distances,
            runner_up=swept.all[0].topk(2, dim=-1, largest=False).values[:, 1],
            collisions={k + t: c for t, c in collisions(swept.all[0], self.floor).items()},
            evaluations=self.evaluations,
            seconds=time.perf_counter() - started,
        )


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
