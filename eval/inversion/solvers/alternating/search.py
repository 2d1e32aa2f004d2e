"""Alternating exact search: hidden tokens from other positions' outputs, nothing given.

The first k tokens are hidden; without them the visible ones have no true prefix. So both are
searched for in turns: (a) read the visible tokens under the present guess of the hidden ones (each
token dominates its own position, so most are right even then); (b) try many tokens at each hidden
position, explain what is missing by the changes' sum (`additive`), and run the best choices
exactly, with single changes and reorderings of the present guess beside them. A guess whose outputs
lie at the floor is proved; one that no longer improves is given up for another start. Starts are
random tokens, the first the problem's guess if it has one, and from the third on every other one
combines the ends of earlier starts. A run that no start proves is searched for once more with its
first visible token hidden too, which may have been read wrongly.

Both turns work on a window of the first few visible positions; once that is at the floor, the rest
is read. A fitted linear map reads tokens (`reading`). At the first start the changes of hidden ones
are guessed from a sample, from the second on those of the whole vocabulary are computed; of a large
vocabulary, where that would cost too much, all starts have a sample. Each run of hidden tokens is
searched for by the visible ones between it and the next, after the tokens recovered before it.

All prompts take their turns together: their candidates go through the model in one batch, and the
host waits for the device three times a turn, however many prompts and positions there are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from eval.inversion.problem import Generators, Problem
from eval.inversion.reading import Reading
from eval.inversion.solver import ANY, COLLISIONS, Answer, solver
from eval.inversion.solvers.alternating.turns import LIKELY, SCREENS, Turns
from eval.inversion.solvers.sweep import find_collisions, try_tokens
from eval.rows.progress import Progress, report_progress

FINALLY = 16, 4  # tokens tried as `LIKELY` are, once the hidden ones are known, without noise
LARGE = 16_384  # vocabularies from here on are never run as a whole
CROSSED = 5  # of the nearest ends of earlier starts whose tokens are combined
COMBINED = 1024  # combinations that are run, at most
UNBOUNDED = 1 << 40  # tokens run forward, more than any search takes


@solver(
    "search", title="exact search, alternating", hidden=range(1, ANY), random=True, guesses=True
)
def alternating(
    problem: Problem,
    generators: Generators,
    *,
    starts: int = 24,
    rounds: int = 8,
    budget: int = UNBOUNDED,
) -> list[Answer]:
    """Takes turns between the shown positions and the hidden ones, until the outputs agree.

    A turn finds the shown tokens under a guess of the hidden ones, then tries many tokens at each
    hidden position. The search ends when the outputs agree to within rounding. No token is given.

    Args:
        problem: with k >= 1 hidden positions before the last one shown.
        generators: of each prompt's random starts.
        starts: most starts for a run of hidden tokens; then the nearest answer is returned.
        rounds: turns of a start.
        budget: tokens run for a prompt; the turn that reaches it is the last.
    """
    (fit,) = problem.readbacks([problem.circuit])
    before = torch.empty(len(generators), 0, dtype=torch.long, device=problem.target.device)
    unspent, parts = torch.full((len(generators),), budget), []
    for run in problem.runs():
        search = _Search(Turns(run, before, fit, generators), rounds, unspent)
        parts.append(search.answers(starts))
        before = torch.cat([before, torch.stack([part.tokens for part in parts[-1]])], dim=1)
        unspent = unspent - search.turns.spent
    return [_join(of_prompt) for of_prompt in zip(*parts, strict=True)]


def _join(parts: Sequence[Answer]) -> Answer:
    """The answer to a prompt whose runs of tokens were recovered in turn, in their order."""
    collisions, length, scores = {}, 0, []
    for part in parts:
        collisions |= {length + t: alike for t, alike in part.collisions.items()}
        length += len(part.tokens)
        scores.append(part.scores)
    return Answer(
        tokens=torch.cat([part.tokens for part in parts]),
        scores=torch.cat(scores),
        enumerated=all(part.enumerated for part in parts),
        collisions=collisions,
        evaluations=sum(part.evaluations for part in parts),
        notes={
            "starts": sum(part.notes["starts"] for part in parts),
            "distance": max(part.notes["distance"] for part in parts),
        },
    )


class _End(NamedTuple):
    """Where a descent came to rest."""

    distance: float
    hidden: Tensor
    proved: bool


def _by_distance(ends: list[_End]) -> list[_End]:
    return sorted(ends, key=lambda end: end.distance)


class _Search:
    """The search for the hidden tokens before one run of shown ones, from start to start.

    Methods take the numbers of the prompts that are at work, `rows`.

    Args:
        turns: of the P prompts.
        rounds: turns per start.
        budget: of each prompt, `(P,)`.
    """

    def __init__(self, turns: Turns, rounds: int, budget: Tensor) -> None:
        self.turns, self.rounds, self.budget = turns, rounds, budget
        self.ends: list[list[_End]] = [[] for _ in budget]

    def answers(self, starts: int) -> list[Answer]:
        """The nearest of where starts come to rest, and of those with one more token hidden.

        A wrong hidden token and a wrong token after it can hold each other up in the first turn and
        the second; searched for together they cannot.
        """
        turns = self.turns
        best = [_End(0.0, hidden, proved=True) for hidden in turns.hidden]
        counts = [0] * len(best)
        if turns.k:
            self.descend_from(starts)
            best = [_by_distance(ends)[0] for ends in self.ends]
            counts = [len(ends) for ends in self.ends]
        unspent = self.budget - turns.spent
        open_ = (unspent > 0).tolist()
        rows = [p for p, end in enumerate(best) if not end.proved and open_[p]]
        if rows and turns.problem.target.shape[1] > 1:
            one_more = turns.problem.of(rows).showing(slice(1, None))
            generators = [turns.generators[p] for p in rows]
            wider = Turns(one_more, turns.before[rows], turns.readback, generators)
            search = _Search(wider, self.rounds, unspent[rows])
            search.descend_from(starts)
            turns.spent[rows] += wider.spent
            for p, ends in zip(rows, search.ends, strict=True):
                counts[p] += len(ends)
                if ends[-1].proved:
                    best[p] = ends[-1]._replace(hidden=ends[-1].hidden[: turns.k])
        turns.hidden = torch.stack([end.hidden for end in best])
        answers = self._finish()
        for answer, end, count in zip(answers, best, counts, strict=True):
            answer.notes |= {"starts": count, "distance": end.distance}
        return answers

    def descend_from(self, starts: int) -> None:
        """Descends from starts until one is proved, or the budget is spent."""
        turns, rows = self.turns, list(range(len(self.ends)))
        for start in range(starts):
            turns.screen = SCREENS[min(start, 1)]
            turns.draw(rows, everything=start > 0 and len(turns.vocabulary) < LARGE)
            crossed = self._cross(rows) if start > 1 and start % 2 == 0 else []
            guess = None if start else turns.problem.guess
            if guess is not None and guess.shape[1] != turns.first:
                guess = None
            for p in rows:
                if guess is not None:
                    turns.hidden[p] = guess[p]
                elif p not in crossed:
                    size, generator = (turns.k,), turns.generators[p]
                    drawn = torch.randint(len(turns.vocabulary), size, generator=generator)
                    turns.hidden[p] = drawn.to(turns.hidden)
            self._descend(rows)
            over = (turns.spent >= self.budget).tolist()
            rows = [p for p in rows if not self.ends[p][-1].proved and not over[p]]
            if not rows:
                break

    def _cross(self, rows: list[int]) -> list[int]:
        """Combines the tokens of ends at each position; the prompts where that gives a new start.

        Ends that are wrong are mostly wrong at different positions.
        """
        turns = self.turns
        nearest = [_by_distance(self.ends[p])[:CROSSED] for p in rows]
        ends = torch.stack([torch.stack([end.hidden for end in group]) for group in nearest])
        count = ends.shape[1]
        if count**turns.k <= COMBINED:
            choices = torch.cartesian_prod(*[torch.arange(count)] * turns.k).view(-1, turns.k)
            choices = choices.expand(len(rows), -1, -1)
        else:
            size = COMBINED, turns.k
            drawn = [torch.randint(count, size, generator=turns.generators[p]) for p in rows]
            choices = torch.stack(drawn)
        guesses = torch.cat([ends, ends.gather(1, choices.to(ends.device))], dim=1)
        turns.hidden[rows] = ends[:, 0]
        best, _ = turns.nearest(rows, guesses, turns.read(rows))
        turns.hidden[rows] = best
        new = (best[:, None] != ends).any(dim=2).all(dim=1).tolist()
        return [p for p, is_new in zip(rows, new, strict=True) if is_new]

    def _descend(self, rows: list[int]) -> None:
        """From a start to where neither turn improves."""
        for turn in range(self.rounds):
            ends, going_on = self._turn(rows), []
            over = (self.turns.spent >= self.budget).tolist()
            for p, (end, stuck) in zip(rows, ends, strict=True):
                if end.proved or stuck or over[p] or turn == self.rounds - 1:
                    self.ends[p].append(end)
                else:
                    going_on.append(p)
            if not going_on:
                break
            rows = going_on

    def _turn(self, rows: list[int]) -> list[tuple[_End, bool]]:
        """Both turns: where each prompt is then, and whether that is where it was."""
        turns = self.turns
        hidden, visible = turns.hidden[rows], turns.read(rows)
        report_progress(Progress(turns.whole(rows, hidden, visible)))
        solved = turns.solved(rows, hidden, visible).tolist()
        states = [(_End(0.0, choice, proved=True), False) for choice in hidden]
        others, at_once = [i for i, choice in enumerate(solved) if not choice], turns.at_once()
        for batch in (others[i : i + at_once] for i in range(0, len(others), at_once)):
            chosen, read = [rows[i] for i in batch], visible[batch]
            better, distance = turns.improve(chosen, read)
            flags = turns.solved(chosen, better, read), (better == hidden[batch]).all(dim=1)
            turns.hidden[chosen] = better
            seen = torch.stack([distance, *(flag.to(distance) for flag in flags)], dim=1).tolist()
            for i, tokens, (length, proved, stuck) in zip(batch, better, seen, strict=True):
                states[i] = _End(0.0 if proved else length, tokens, bool(proved)), bool(stuck)
            if any(proved for _, proved, _ in seen):
                report_progress(Progress(turns.whole(chosen, better, read)))
        return states

    def _finish(self) -> list[Answer]:
        """All visible tokens under the final hidden ones, and how other tokens would fit.

        A single hidden token's rivals are tried all, at every visible position that is needed to
        tell them from it. So are those of each visible token, where at most one token is hidden.
        """
        turns, problem, k = self.turns, self.turns.problem, self.turns.k
        V, rows = len(turns.vocabulary), list(range(len(self.ends)))
        counts = (LIKELY, LIKELY) if problem.noise.any() else FINALLY
        reading = Reading([problem], [turns.readback], *counts)
        paths = reading.search_together(turns.whole(rows, turns.hidden))
        good = paths.good[0].tolist()
        read = [reading.search_alone(0, p, paths, good[p]) for p in rows]
        turns.spent += turns.first + torch.tensor([end.evaluations for end in read])
        proved, collisions = one_hot(turns.hidden, V).to(turns.unit), [{} for _ in rows]
        scores = [proved[p] if end.proved else turns.fits[p] for p, end in enumerate(read)]
        enumerated = k < 2 and V < LARGE
        if k == 1 and enumerated:  # every other choice is run
            visible = torch.stack([end.tokens[turns.first :] for end in read])
            offsets = turns.rivals(rows, visible[:, : SCREENS[0]])
            scores = [-of_prompt.norm(dim=-1)[None] for of_prompt in offsets]
            collisions = self._collisions(offsets, visible)
        tried = [p for p, end in enumerate(read) if enumerated and end.proved]
        if tried:
            shown = self._shown_collisions(tried, torch.stack([read[p].tokens for p in tried]))
            for p, alike in zip(tried, shown, strict=True):
                collisions[p] |= alike
        return [
            Answer(
                tokens=end.tokens[turns.before.shape[1] :],
                scores=torch.cat([scores[p], end.scores(problem, turns.readback)]),
                enumerated=p in tried,
                collisions=collisions[p] if end.proved else {},
                evaluations=spent,
            )
            for p, (end, spent) in enumerate(zip(read, turns.spent.tolist(), strict=True))
        ]

    def _collisions(self, offsets: Tensor, visible: Tensor) -> list[dict[int, list[int]]]:
        """Each prompt's nearest choices of a single hidden token within the limit, if several are.

        By how far each choice's outputs lie off at the first positions shown, `(P, V, S)`, in units
        of the targets' lengths, and all tokens shown.
        """
        turns, S = self.turns, offsets.shape[-1]
        within = offsets * turns.unit[:, None, :S, 0] <= turns.window.tolerance.limit[:, None, :S]
        collisions: list[dict[int, list[int]]] = [{} for _ in visible]
        fits = within.all(dim=-1)
        for p, count in enumerate(fits.sum(dim=-1).tolist()):
            if count > 1:  # the screen does not tell them apart; later positions may
                fitting = fits[p].nonzero()
                turns.spent[p] += len(fitting) * turns.problem.length
                whole = turns.whole([p], fitting[None])[0]
                rivals = turns.problem.of([p]).explaining(whole, visible[p])[:, -1]
                distances = offsets[p, rivals].norm(dim=-1)
                nearest = distances.topk(min(COLLISIONS, len(rivals)), largest=False).indices
                if len(rivals) > 1:
                    collisions[p] = {0: sorted(rivals[nearest].tolist())}
        return collisions

    def _shown_collisions(self, rows: list[int], tokens: Tensor) -> list[dict[int, list[int]]]:
        """Each prompt's shown positions at which several tokens lie within the limit.

        The whole vocabulary is run at each of them, after the tokens found, `(A, T)`.
        """
        turns, problem = self.turns, self.turns.problem.of(rows)
        state = problem.circuit.prefix(tokens[:, : turns.first]) if turns.first else None
        collisions: list[dict[int, list[int]]] = [{} for _ in rows]
        for s, token in enumerate(tokens[:, turns.first :].T):
            distances = try_tokens(problem, s, state)[:, None]
            limit = problem.tolerance.limit[:, s, None]
            for alike, of_prompt in zip(find_collisions(distances, limit), collisions, strict=True):
                if alike:
                    of_prompt[turns.k + s] = alike[0]
            state = problem.circuit.prefix(token[:, None], state)
            turns.spent[rows] += len(turns.vocabulary)
        return collisions
