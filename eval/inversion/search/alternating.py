"""Alternating exact search: hidden tokens from other positions' outputs, nothing given.

The first k tokens are hidden; without them the visible ones have no true prefix. So both are
searched for in turns: (a) read the visible tokens under the present guess of the hidden ones (each
token dominates its own position, so most are right even then); (b) try many tokens at each hidden
position, explain what is missing by the changes' sum (`additive`), and run the best choices
exactly, with single changes and reorderings of the present guess beside them. A guess whose outputs
lie at the floor is proved; one that no longer improves is given up for another start. Starts are
random tokens and the proposals of a short gradient descent, in turns. A run that no start proves is
searched for once more with its first visible token hidden too, which may have been read wrongly.

Both turns work on a window of the first few visible positions; once that is at the floor, the rest
is read. A fitted linear map reads tokens (`read`), and the changes of hidden ones are guessed from
a sample, so that no turn runs a large vocabulary. Each run of hidden tokens is searched for by the
visible ones between it and the next, after the tokens recovered before it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from eval.inversion.answer import Answer, join_answers
from eval.inversion.gradient.adam import adam, scaled_start
from eval.inversion.problem import Batch, Problem
from eval.inversion.readback import ReadBack
from eval.inversion.search.additive import (
    explain,
    extrapolate,
    metric_of_misses,
    nearest_single,
    orders,
)
from eval.inversion.search.read import LayerAnswer, Reading
from eval.inversion.solvers import ANY, Chance, ReadBacksOf, solver
from eval.models import candidates_at_once
from eval.tasks import SoFar, tell

WINDOW = 6  # visible positions searched on; more cost time, fewer leave the wrong guesses tempting
SCREENS = (2, 4)  # visible positions on which tokens are tried, at the first start and later
LIKELY = 32  # visible tokens tried at a position, by its output, and as many by the text before it
LARGE = 16_384  # vocabularies from here on are run as a whole only where every rival is asked for
QUICK_STARTS = 6  # random starts given up as soon as guessed changes lead nowhere
SAMPLE = 4  # times the width: tokens whose changes are computed before the others' are guessed
LISTED = 64  # tokens at a position that are looked at because alone they explain most
SINGLES = 16  # tokens tried exactly at each hidden position, the others held
CROSSED = 5  # of the nearest ends of earlier starts whose tokens are combined
COMBINED = 1024  # combinations that are run, at most
PROPOSAL_STEPS = 150  # of the gradient descent that proposes a start
UNBOUNDED = 1 << 40  # tokens run forward, more than any search takes


@solver(
    "search",
    hidden=range(1, ANY),
    random=True,
    cost=lambda V, T, k: min(V, LARGE) * (4 + k * k),
    title="exact search, alternating",
    short="exact search",
    word="exact",
)
def alternating(
    batch: Batch,
    chance: Chance,
    readback: ReadBacksOf,
    rivals: bool = False,
    *,
    starts: int = 24,
    rounds: int = 8,
    beams: int = 128,
    budget: int = UNBOUNDED,
) -> list[Answer]:
    """Takes turns between the shown positions and the hidden ones, until the outputs agree.

    The shown tokens are read after a guess of the hidden ones, then many tokens are tried at each
    hidden position, until the outputs agree to within rounding, which proves the answer. Nothing is
    given.

    Args:
        batch: one problem with k >= 1 hidden positions before the last one shown.
        chance: the source of each prompt's random starts.
        readback: for guesses of visible tokens.
        rivals: whether all other choices of a single hidden token are run, also where the
            vocabulary is large.
        starts: of each run of hidden tokens, at most; then the nearest answer is returned.
        rounds: turns per start.
        beams: choices followed in the additive model, and run exactly after.
        budget: tokens run forward; the turn that reaches it is a prompt's last.
    """
    (problem,) = batch.problems
    (fit,) = readback([problem.circuit])
    answers = []
    for p, generator in enumerate(chance):
        parts: list[Answer] = []
        before = torch.empty(1, 0, dtype=torch.long, device=problem.target.device)
        for run in problem.of([p]).runs():
            unspent = budget - sum(part.evaluations for part in parts)
            search = _Search(run, before, fit, generator, rounds, beams, unspent, rivals)
            parts.append(search.answer(starts))
            before = torch.cat([before, parts[-1].tokens[None]], dim=1)
        answers.append(join_answers(parts))
    return answers


class _End(NamedTuple):
    """Where a descent came to rest."""

    hidden: Tensor
    distance: float
    proved: bool


@dataclass
class _Search:
    """The search for one run of shown tokens and the k hidden ones before it, counting its cost.

    Attributes:
        problem: the prompt up to the end of the run, with nothing else shown.
        before: the tokens before the hidden ones, `(1, n)`.
        screen: visible positions on which tokens are tried.
        sample: the tokens whose changes are computed before the others' are guessed.
        fits: how well each token was last guessed to fit at the hidden positions, `(k, V)`.
    """

    problem: Problem
    before: Tensor
    readback: ReadBack
    generator: torch.Generator
    rounds: int
    beams: int
    budget: int = UNBOUNDED
    rivals: bool = False
    evaluations = 0
    screen = SCREENS[0]

    def __post_init__(self) -> None:
        self.first = self.problem.hidden  # position shown
        self.k = self.first - self.before.shape[1]
        self.circuit = self.problem.circuit
        W = self.vocabulary = self.circuit.vocabulary
        self.all = self.rivals or len(W) < LARGE  # whether the whole vocabulary may be run
        self.window = self.problem.showing(
            slice(WINDOW), min(self.problem.length, self.first + WINDOW)
        )
        self.unit = self.window.target.norm(dim=-1, keepdim=True)
        self.target = self.window.target / self.unit
        self.sample = torch.empty(0, dtype=torch.long)  # drawn at every start
        spread = W.std(dim=0).clamp(min=torch.finfo(W.dtype).tiny)
        self.features = (W - W.mean(dim=0)) / spread
        self.fits = self.unit.new_zeros(self.k, len(W))

    def answer(self, starts: int) -> Answer:
        """The nearest of where starts come to rest, and of those with one more token hidden.

        A wrong hidden token and a wrong token after it can hold each other up in the first turn and
        the second; searched for together they cannot.
        """
        started = perf_counter()
        end, count = _End(self.before[:, :0], 0.0, proved=True), 0
        if self.k:
            end, count = self.rest(starts)
        unspent = self.budget - self.evaluations
        if not end.proved and unspent > 0 and self.problem.target.shape[1] > 1:
            one_more = self.problem.showing(slice(1, None))
            wider = replace(self, problem=one_more, budget=unspent, rivals=False)
            other, more = wider.rest(starts)
            self.evaluations += wider.evaluations
            count += more
            end = other._replace(hidden=other.hidden[:, : self.k]) if other.proved else end
        answer = self._finish(end.hidden)
        answer.seconds = perf_counter() - started
        answer.notes |= {"starts": count, "distance": end.distance}
        return answer

    def rest(self, starts: int) -> tuple[_End, int]:
        """Descends from starts until one is proved: the nearest end, and how many there were."""
        ends: list[_End] = []
        for start in range(starts):
            self.screen = SCREENS[min(start, 1)]
            hidden = self._cross(ends) if start > 1 and start % 2 == 0 else None
            hidden = self._start(start) if hidden is None else hidden
            ends.append(self._descend(hidden, patient=start >= QUICK_STARTS and self.all))
            if ends[-1].proved or self.evaluations >= self.budget:
                break
        return min(ends, key=lambda end: end.distance), len(ends)

    def _start(self, number: int) -> Tensor:
        """Hidden tokens to start from, `(1, k)`: random ones and a descent's proposal, in turns."""
        if number < QUICK_STARTS or number % 2:
            V = len(self.vocabulary)
            return torch.randint(V, (1, self.k), generator=self.generator).to(self.unit.device)
        batch, known = Batch((self.problem,)), self.before.shape[1]
        start = scaled_start(batch, [self.generator])
        start[:, :known] = self.circuit.embed(self.before)
        free = (torch.arange(self.problem.length, device=start.device) >= known).to(start)[None]
        (proposal,) = adam(batch, [self.generator], steps=PROPOSAL_STEPS, start=start, free=free)
        self.evaluations += proposal.evaluations
        return proposal.tokens[None, known : self.first]

    def _whole(self, hidden: Tensor, visible: Tensor | None = None) -> Tensor:
        """The tokens before, `(N, k)` hidden ones, and `(1, S)` visible ones after them, if any."""
        after = hidden[:1, :0] if visible is None else visible
        before, after = (tokens.expand(len(hidden), -1) for tokens in (self.before, after))
        return torch.cat([before, hidden, after], dim=1)

    def _cross(self, ends: list[_End]) -> Tensor | None:
        """The nearest combination of the tokens of ends at each position; None if it is no new one.

        Ends that are wrong are mostly wrong at different positions.
        """
        ends = sorted(ends, key=lambda end: end.distance)[:CROSSED]
        tokens = torch.cat([end.hidden for end in ends])
        columns = [column.unique().cpu() for column in tokens.T]
        if math.prod(map(len, columns)) <= COMBINED:
            chosen = torch.cartesian_prod(*columns).view(-1, self.k)
        else:  # 5 ** k of them: too many to list where k is large
            drawn = [torch.randint(len(c), (COMBINED,), generator=self.generator) for c in columns]
            chosen = torch.stack([c[i] for c, i in zip(columns, drawn, strict=True)], dim=1)
        combined = torch.cat([tokens, chosen.to(tokens.device)])
        best, _ = self._nearest(combined, self._read(ends[0].hidden))
        return None if (best == tokens).all(dim=1).any() else best

    def _descend(self, hidden: Tensor, patient: bool) -> _End:
        """From a start to where neither turn improves; if patient, not even a thorough one."""
        distance, thorough = torch.inf, False
        drawn = torch.randperm(len(self.vocabulary), generator=self.generator)
        self.sample = drawn[: SAMPLE * self.vocabulary.shape[1]].to(self.unit.device)
        for _ in range(self.rounds):
            visible = self._read(hidden, thorough)
            tell(SoFar(self._whole(hidden, visible)))
            if self._solved(hidden, visible):
                return _End(hidden, 0.0, True)
            better, nearest = self._improve(hidden, visible, thorough)
            if self._solved(better, visible):
                tell(SoFar(self._whole(better, visible)))
                return _End(better, 0.0, True)
            stuck = better.equal(hidden)
            hidden, distance = better, nearest
            over = self.evaluations + stuck * self._cost_of_all() > self.budget
            if over or (stuck and (thorough or not patient)):
                break
            thorough = stuck
        return _End(hidden, distance, False)

    def _read(self, hidden: Tensor, thorough: bool = False) -> Tensor:
        """(a) The window's visible tokens under a guess of the hidden ones, `(1, S)`.

        The nearest of those that the position's own output and the text before it suggest;
        thorough: of the whole vocabulary.
        """
        row = self._after(hidden, self.window, None if thorough else 2 * LIKELY)
        return row.tokens[None, self.first :]

    def _after(self, hidden: Tensor, problem: Problem, most: int | None = None) -> LayerAnswer:
        count = min(LIKELY, len(self.vocabulary))
        row = Reading([problem], [self.readback], count, count).after(self._whole(hidden)[0], most)
        self.evaluations += row.evaluations
        return row

    def _improve(self, hidden: Tensor, visible: Tensor, thorough: bool) -> tuple[Tensor, float]:
        """(b) The nearest of many other hidden tokens, `(1, k)`; the present ones win a tie.

        Thorough: the changes of the whole vocabulary are computed. Else those of a sample are, in
        bfloat16, the others guessed from them, and those of the tokens that then look best computed
        too. The choices are run in full precision.
        """
        base = self._shown(self.circuit.of_tokens(self._whole(hidden, visible)))
        missing = (self.target - base)[:, : self.screen].flatten()
        guess = (hidden, visible[:, : self.screen], not thorough)
        if thorough:
            listed = [torch.arange(len(self.vocabulary), device=self.unit.device)] * self.k
            changes = [self._changes(j, tokens, *guess) for j, tokens in enumerate(listed)]
        else:
            sampled = [self._changes(j, self.sample, *guess) for j in range(self.k)]
            metric = metric_of_misses(self.features[self.sample], sampled)
            sampled, missing = [change @ metric for change in sampled], missing @ metric
            guessed = [extrapolate(self.features, self.sample, change) for change in sampled]
            self.fits = -torch.stack([(change - missing).norm(dim=1) for change in guessed])
            chosen = explain(guessed, missing, 2 * self.beams, self.beams)
            listed, changes = [], []
            for j in range(self.k):
                alone = nearest_single(guessed[j], missing, LISTED)
                tokens = torch.cat([chosen[:, j], alone]).unique()
                listed.append(torch.cat([self.sample, tokens]))
                computed = self._changes(j, tokens, *guess) @ metric
                changes.append(torch.cat([sampled[j], computed]))
        chosen = explain(changes, missing, self.beams, self.beams, self.generator)
        tried = [hidden, hidden[0][torch.tensor(orders(self.k))]]
        tried.append(torch.stack([listed[j][chosen[:, j]] for j in range(self.k)], dim=1))
        for j, change in enumerate(changes):
            best = listed[j][nearest_single(change, missing, SINGLES)]
            tried.append(hidden.repeat(len(best), 1))
            tried[-1][:, j] = best
        return self._nearest(torch.cat(tried), visible)

    def _cost_of_all(self) -> int:
        """Tokens that trying the whole vocabulary takes, at every hidden position."""
        lengths = range(1 + self.screen, self.k + 1 + self.screen)
        return len(self.vocabulary) * sum(lengths)

    def _changes(
        self, j: int, tokens: Tensor, hidden: Tensor, visible: Tensor, coarse: bool
    ) -> Tensor:
        """The changes that tokens `(n,)` at hidden position j make in shown outputs, `(n, F)`."""
        tried = torch.cat([hidden[0, j : j + 1], tokens])
        outputs = torch.cat(list(self._outputs_at(j, hidden, visible, tried, coarse)))
        return (outputs[1:] - outputs[0]).flatten(1)

    def _outputs_at(
        self, j: int, hidden: Tensor, visible: Tensor, tokens: Tensor, coarse: bool = False
    ) -> Iterator[Tensor]:
        """Shown outputs with each of `(n,)` tokens at hidden position j, in batches `(N, S, C)`."""
        circuit = self.circuit.coarse if coarse else self.circuit
        lead = self._whole(hidden[:, :j])
        state = circuit.prefix(lead) if lead.shape[1] else None
        rest = self.circuit.embed(torch.cat([hidden[:, j + 1 :], visible], dim=1))
        self.evaluations += len(tokens) * (1 + rest.shape[1])
        at_once = max(1, candidates_at_once(self.circuit.model) // (1 + rest.shape[1]))
        for candidates in self.vocabulary[tokens].split(at_once):
            tail = rest.expand(len(candidates), -1, -1)
            outputs = circuit.step(torch.cat([candidates[:, None], tail], dim=1), state)
            yield self._shown(outputs, self.k - j)

    def _nearest(self, guesses: Tensor, visible: Tensor) -> tuple[Tensor, float]:
        """The guess of `(N, k)` hidden tokens that comes nearest; the first of equals."""
        tried = self._whole(guesses, visible)
        self.evaluations += tried.numel()
        shown = self._shown(self.circuit.of_tokens(tried))
        distances = (shown - self.target).flatten(1).norm(dim=-1)
        best = int(distances.argmin())
        return guesses[best : best + 1], float(distances[best])

    def _shown(self, outputs: Tensor, after: int | None = None) -> Tensor:
        """Visible outputs `(N, S, C)`, each position in units of its target's length."""
        shown = self.problem.slice.narrow(outputs[:, self.first if after is None else after :])
        return shown / self.unit[:, : shown.shape[1]]

    def _solved(self, hidden: Tensor, visible: Tensor) -> bool:
        return bool(self.window.residual(self._whole(hidden, visible))[1])

    def _finish(self, hidden: Tensor) -> Answer:
        """All visible tokens under the final hidden ones, and how other hidden ones would fit.

        A single hidden token's rivals are tried all, at every visible position that is needed to
        tell them from it.
        """
        k, V = self.k, len(self.vocabulary)
        row = self._after(hidden, self.problem)
        scores = self.fits
        if row.proved:
            scores = torch.nn.functional.one_hot(hidden[0], V).to(self.unit)
        collisions = {}
        spent = self.evaluations + self._cost_of_all() > self.budget
        if self.all and (k == 1 or (k and not row.proved and not spent)):
            # ranks of the others; where one token is hidden, this is every other choice
            visible, everything = row.tokens[self.first :], torch.arange(V)
            screen = visible[None, : self.screen]
            several = [self._outputs_at(j, hidden, screen, everything) for j in range(k)]
            apart = torch.stack([torch.cat([self._apart(o) for o in each]) for each in several])
            scores = -apart.norm(dim=-1)
            if row.proved:
                shown = apart.shape[-1]
                near = apart[0] * self.unit[0, :shown, 0] <= self.window.limit[0, :shown]
                rivals = near.all(dim=-1).nonzero()
                if len(rivals) > 1:  # the screen does not tell them apart; later positions may
                    self.evaluations += len(rivals) * self.problem.length
                    rivals = self.problem.explaining(self._whole(rivals), visible)
                collisions = {0: rivals[:, -1].tolist()} if len(rivals) > 1 else {}
        read = row.scores(self.problem, self.readback)[self.first :]
        proof = "enumerated" if not k or (k == 1 and self.all) else "residual"
        return Answer(
            tokens=row.tokens[self.before.shape[1] :],
            scores=torch.cat([scores, read]),
            collisions=collisions,
            certificate=proof if row.proved else None,
            evaluations=self.evaluations,
        )

    def _apart(self, shown: Tensor) -> Tensor:
        """Distance at each visible position of the window, in units of its target: `(N, S)`."""
        return torch.linalg.vector_norm(shown - self.target[:, : shown.shape[1]], dim=-1)
