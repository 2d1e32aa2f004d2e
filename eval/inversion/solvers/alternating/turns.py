"""The two turns of the alternating search, of many prompts at once: read, then improve.

Candidates of all prompts go through the model in one batch. The host waits for the device once a
turn, for the number of choices that differ.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from eval.inversion.guesses import ReadBack
from eval.inversion.problem import Generators, Problem
from eval.inversion.reading import Reading
from eval.inversion.solvers.alternating.additive import (
    Changes,
    different,
    explain,
    extrapolate,
    orders,
    promising,
)
from eval.inversion.solvers.sweep import try_tokens
from eval.models.memory import candidates_at_once

WINDOW = 6  # visible positions searched on; more cost time, fewer leave the wrong guesses tempting
SCREENS = 2, 4  # visible positions on which tokens are tried, at the first start and later
BEAMS = 128  # choices followed in the additive model, and run exactly after
LIKELY = 32  # visible tokens tried at a position, by its output, and as many by the text before it
COARSE = 256  # tried by its output where a model computed below float32: its guesses are worse
SAMPLE = 4  # times the width: tokens whose changes are computed before the others' are guessed
LISTED = 64  # tokens at a position that are looked at because they explain most
SINGLES = 16  # tokens tried exactly at each hidden position, the others held


class Turns:
    """A guess of the k hidden tokens before a run of shown ones, and how it gets nearer.

    Methods take the numbers of the A prompts that are at work, `rows`.

    Args:
        problem: P prompts up to the end of the run, with nothing else shown.
        before: the tokens before the hidden ones, `(P, n)`.
        readback: for guesses of visible tokens.
        generators: of each prompt.

    Attributes:
        first: the first position shown.
        hidden: the present guess, `(P, k)`.
        sample: tokens whose changes are computed, the others' being guessed from them, `(P, n)`.
        fits: how well each token was last guessed to fit at the hidden positions, `(P, k, V)`.
        spent: tokens run for each prompt, `(P,)`, on the CPU.
        screen: visible positions on which tokens are tried.
        likely: visible tokens tried at a position by its output.
    """

    def __init__(
        self, problem: Problem, before: Tensor, readback: ReadBack, generators: Generators
    ) -> None:
        self.problem, self.before, self.readback = problem, before, readback
        self.likely = LIKELY if problem.tolerance.usual is None else COARSE
        self.generators, self.screen = generators, SCREENS[0]
        self.first, self.circuit = problem.hidden, problem.circuit
        self.k, W = self.first - before.shape[1], self.circuit.vocabulary
        length = min(problem.length, self.first + WINDOW)
        self.window, self.vocabulary = problem.showing(slice(WINDOW), length), W
        self.unit = self.window.target.norm(dim=-1, keepdim=True)
        self.target = self.window.target / self.unit
        self.hidden = before.new_zeros(len(before), self.k)
        self.sample = before.new_zeros(len(before), 0)
        spread = W.std(dim=0).clamp(min=torch.finfo(W.dtype).tiny)
        self.features = (W - W.mean(dim=0)) / spread
        self.fits = self.unit.new_zeros(len(before), self.k, len(W))
        self.spent = torch.zeros(len(before), dtype=torch.long)

    def draw(self, rows: list[int], everything: bool) -> None:
        """Draws the samples anew, or takes the whole vocabulary."""
        V, D = self.vocabulary.shape
        if everything or V <= SAMPLE * D:
            whole = torch.arange(V, device=self.before.device)
            self.sample = whole.expand(len(self.before), -1)
            return
        drawn = [torch.randperm(V, generator=self.generators[p])[: SAMPLE * D] for p in rows]
        self.sample = self.before.new_zeros(len(self.before), SAMPLE * D)
        self.sample[rows] = torch.stack(drawn).to(self.before)

    def at_once(self) -> int:
        """How many prompts' changes and products are held in what a pass of the model may take."""
        V, D = self.vocabulary.shape
        outputs = self.screen * self.target.shape[2]
        n = min(V, self.sample.shape[1] + LISTED)
        numbers = 2 * self.k * n * outputs + V * (2 * BEAMS + D + self.k)
        return max(1, candidates_at_once(self.circuit.model) * (V + 64 * D) // numbers)

    def read(self, rows: list[int]) -> Tensor:
        """(a) The window's visible tokens under the guess of the hidden ones, `(A, S)`.

        The nearest of those that the position's own output and the text before it suggest; of the
        whole vocabulary where that is the sample.
        """
        window, given = self.window.of(rows), self.whole(rows, self.hidden[rows])
        S, V = window.target.shape[1], len(self.vocabulary)
        everything = self.sample.shape[1] == V
        self.spent[rows] += window.length + S * (V if everything else LIKELY + self.likely)
        if not everything:
            paths = Reading([window], [self.readback], LIKELY, self.likely).search_together(given)
            return paths.path[:, self.first :]
        state, read = self.circuit.prefix(given), []
        for s in range(S):
            read.append(try_tokens(window, s, state).argmin(dim=1, keepdim=True))
            state = self.circuit.prefix(read[-1], state)
        return torch.cat(read, dim=1)

    def improve(self, rows: list[int], visible: Tensor) -> tuple[Tensor, Tensor]:
        """(b) The nearest of many other hidden tokens, `(A, k)`, and its distance, `(A,)`.

        The present ones win a tie. The changes of the sample are computed. Where that is not the
        whole vocabulary, the others' are guessed from them, and those of the tokens that then look
        best computed too. The choices are run exactly.
        """
        hidden, k = self.hidden[rows], self.k
        base = self._shown(rows, self.circuit.of_tokens(self.whole(rows, hidden, visible)))
        missing = (self.target[rows] - base[:, 0])[:, : self.screen].flatten(1)
        guess = rows, visible[:, : self.screen]
        listed = self.sample[rows][:, None].expand(-1, k, -1)
        changes = self._changes(listed, *guess)
        if listed.shape[2] < len(self.vocabulary):
            guessed, metric = extrapolate(self.features, listed[:, 0], changes)
            guessed.slopes, changes = guessed.slopes @ metric[:, None], changes @ metric[:, None]
            missing = (missing[:, None] @ metric)[:, 0]
            more, self.fits[rows] = promising(guessed, listed, changes, missing, BEAMS, LISTED)
            computed = self._changes(more, *guess) @ metric[:, None]
            listed = torch.cat([listed, more], dim=2)
            changes = torch.cat([changes, computed], dim=2)
        else:
            self.fits[rows] = -Changes(changes).singles(missing).sqrt()
        changes, n = Changes(changes), listed.shape[2]
        drawn = [torch.randint(n, (k, BEAMS), generator=self.generators[p]) for p in rows]
        drawn = torch.stack(drawn).mT.to(hidden.device)
        chosen, counts = different(explain(changes, missing, BEAMS, drawn))
        counts = counts.clamp(max=BEAMS).tolist()
        chosen = chosen[:, : max(counts)].mT
        nearest = changes.singles(missing).topk(min(SINGLES, n), largest=False).indices
        singles = hidden[:, None, None].repeat(1, k, nearest.shape[2], 1)
        singles.diagonal(dim1=1, dim2=3).copy_(listed.gather(2, nearest).mT)
        tried = [hidden[:, None], hidden[:, torch.tensor(orders(k), device=hidden.device)]]
        tried += [singles.flatten(1, 2), listed.gather(2, chosen).mT]
        least = sum(batch.shape[1] for batch in tried[:3])
        return self.nearest(rows, torch.cat(tried, dim=1), visible, [least + c for c in counts])

    def rivals(self, rows: list[int], visible: Tensor) -> Tensor:
        """How far the whole vocabulary's outputs lie off at a single hidden position, `(A, V, S)`.

        After `(A, S)` visible tokens, in units of the targets' lengths.
        """
        everything = torch.arange(len(self.vocabulary), device=visible.device)
        target = self.target[rows, None, : visible.shape[1]]
        parts = self.outputs_at(0, everything.expand(len(rows), -1), rows, visible)
        return torch.cat([(part - target).norm(dim=-1) for part in parts], dim=1)

    def _changes(self, tokens: Tensor, rows: list[int], visible: Tensor) -> Tensor:
        """The changes that tokens `(A, k, n)` make in shown outputs, `(A, k, n, F)`."""
        hidden, changes = self.hidden[rows], []
        for j in range(self.k):
            tried = torch.cat([hidden[:, j, None], tokens[:, j]], dim=1)
            outputs = torch.cat(list(self.outputs_at(j, tried, rows, visible)), dim=1)
            changes.append((outputs[:, 1:] - outputs[:, :1]).flatten(2))
        return torch.stack(changes, dim=1)

    def outputs_at(
        self, j: int, tokens: Tensor, rows: list[int], visible: Tensor
    ) -> Iterator[Tensor]:
        """Shown outputs with each of `(A, n)` tokens at hidden position j, in `(A, N, S, C)`."""
        circuit, hidden = self.circuit, self.hidden[rows]
        lead = self.whole(rows, hidden[:, :j])
        state = circuit.prefix(lead) if lead.shape[1] else None
        rest = self.circuit.embed(torch.cat([hidden[:, j + 1 :], visible], dim=1))[:, None]
        length = 1 + rest.shape[2]
        self.spent[rows] += tokens.shape[1] * length
        at_once = max(1, candidates_at_once(self.circuit.model) // (len(rows) * length))
        for batch in tokens.split(at_once, dim=1):
            tail = rest.expand(-1, batch.shape[1], -1, -1)
            tried = torch.cat([self.vocabulary[batch][:, :, None], tail], dim=2)
            yield self._shown(rows, circuit.step(tried.flatten(0, 1), state), self.k - j)

    def nearest(
        self, rows: list[int], guesses: Tensor, visible: Tensor, counts: list[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The guess of `(A, N, k)` that comes nearest, the first of equals, and its distance.

        Where `counts` are given, the other guesses of a prompt are repetitions.
        """
        tried = self.whole(rows, guesses, visible)
        self.spent[rows] += torch.tensor(counts or guesses.shape[1]) * tried.shape[2]
        at_once = max(1, candidates_at_once(self.circuit.model) // (len(rows) * tried.shape[2]))
        shown = [
            self._shown(rows, self.circuit.of_tokens(batch.flatten(0, 1)))
            for batch in tried.split(at_once, dim=1)
        ]
        differences = (part - self.target[rows, None] for part in shown)
        distances = torch.cat([part.flatten(2).norm(dim=2) for part in differences], dim=1)
        distance, best = distances.min(dim=1)
        return guesses.take_along_dim(best[:, None, None], dim=1)[:, 0], distance

    def whole(self, rows: list[int], hidden: Tensor, visible: Tensor | None = None) -> Tensor:
        """Tokens before, hidden ones `(A, k)` or `(A, N, k)`, and visible ones `(A, S)` after."""
        before = self.before[rows]
        after = before[:, :0] if visible is None else visible
        if hidden.dim() == 3:
            before, after = (t[:, None].expand(-1, hidden.shape[1], -1) for t in (before, after))
        return torch.cat([before, hidden, after], dim=-1)

    def _shown(self, rows: list[int], outputs: Tensor, after: int | None = None) -> Tensor:
        """Visible outputs `(A, N, S, C)` of `(A N, T, width)`, in units of the target's length."""
        shown = self.problem.slice.narrow(outputs[:, self.first if after is None else after :])
        return shown.unflatten(0, (len(rows), -1)) / self.unit[rows, None, : shown.shape[1]]

    def solved(self, rows: list[int], hidden: Tensor, visible: Tensor) -> Tensor:
        """Which of `(A, k)` hidden and `(A, S)` visible tokens lie within the limit, `(A,)`."""
        return self.window.of(rows).residual(self.whole(rows, hidden, visible))[1]
