"""Read, then verify: exact recovery of shown tokens from many layers in one pass.

Left to right, all prompts and layers together. At each position the tokens that the text makes
likeliest are run once for all layers. The difference of a layer's target from the mean of their
outputs says, through the layer's read-back, which tokens to try beside: its own shortlist, which is
run as deep as the layer. A token within the limit is proved and ends the search of its position.
Where none is, the shortlist is drawn anew from the nearest token so far and grows eightfold, until
the whole vocabulary has been run. So the answer is exact whatever guesses are worth.

Layers share the pass, not their evidence: a layer's tokens are chosen from its own candidates, by
its own stream, after its own tokens. Where they are not those that the pass went on with, the layer
goes on alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from arch import State
from eval.inversion.guesses import Guesser, ReadBack
from eval.inversion.problem import Problem
from eval.models.memory import candidates_at_once
from eval.rows.progress import Progress, report_progress, watched
from eval.sites.circuit import Circuit, join, step_together

GROWTH = 8  # of a shortlist that does not hit
ENOUGH = 256  # tokens run at a position: the nearest is taken within the limit, not only if near


class Paths(NamedTuple):
    """The result of the pass of all layers: L layers, P prompts, S of T positions shown.

    Attributes:
        path: the hidden tokens as given and those that the pass went on with, `(P, T)`.
        reads: of each layer, as `LayerAnswer.reads`, `(L, P, S, D)`.
        good: whether a layer's token is within the limit and the path's, `(L, P, S)`.
        distances: of a layer's token from its target, `(L, P, S)`.
    """

    path: Tensor
    reads: Tensor
    good: Tensor
    distances: Tensor


@dataclass
class LayerAnswer:
    """One layer's answer to one prompt.

    Attributes:
        tokens: `(T,)`.
        reads: the read-back's weights of embeddings at each position shown, `(S, D)`.
        proved: whether every token is within the limit.
        evaluations: tokens sent through the circuit for this layer.
        searched: positions that the pass of all layers did not settle.
        swept: positions at which the whole vocabulary was run.
    """

    tokens: Tensor
    reads: Tensor
    proved: bool = True
    evaluations: int = 0
    searched: int = 0
    swept: int = 0

    def scores(self, problem: Problem, readback: ReadBack) -> Tensor:
        """How well each token fits each position shown by the read-back, `(S, V)`."""
        shown, start = (problem.slice.low, problem.slice.high), int(not problem.hidden)
        later = readback.guesser(*shown, first=False).scores(self.reads[start:])
        first = readback.guesser(*shown, first=True).scores(self.reads[:start])
        return torch.cat([first, later])


class Reading:
    """The search for problems whose circuits differ in their layers only.

    Positions are shown from some position on, `problem.hidden`; the tokens before it are given.

    Args:
        problems: L of them, each of the same P prompts.
        likely: tokens that the text makes likeliest, run at each position; at most all.
        shortlist: tokens nearest by the read-back that are run at first; at most all.
    """

    def __init__(
        self, problems: Sequence[Problem], readbacks: list[ReadBack], likely: int, shortlist: int
    ) -> None:
        self.problems, self.readbacks = problems, readbacks
        self.circuits = [problem.circuit for problem in problems]
        V = len(self.circuits[0].vocabulary)
        self.likely, self.shortlist = min(likely, V), min(shortlist, V)
        self.whole, self.cut = join(self.circuits)
        self.model = self.whole.model
        self.text = Circuit(self.model, self.model.config.n_layers, without=self.whole.without)
        self.hidden = problems[0].hidden

    def search_together(self, given: Tensor | None = None) -> Paths:
        """One pass of all positions, layers and prompts, for which the host never waits.

        Args:
            given: the tokens that are hidden, `(P, k)`.
        """
        T, state, likely = self.problems[0].length, None, None
        path, reads, good, distances = [], [], [], []
        if given is not None and given.shape[1]:
            path = list(given.T)
            state, likely = self._go_on(given, None)
        for t in range(self.hidden, T):
            joined = self._known(self.whole, state, likely)
            known = [None] * len(self.problems) if joined is None else self.cut(joined)
            chosen = [self._choose(i, t, of_layer, likely) for i, of_layer in enumerate(known)]
            read, best = map(torch.stack, zip(*chosen, strict=True))
            ran = step_together(self.circuits, self.model.embed(best), state)
            nearest = []
            for i, problem in enumerate(self.problems):
                tokens, candidates, outputs = best[i], ran[i], known[i]
                if outputs is not None and likely is not None:
                    tokens = torch.cat([likely, tokens], dim=1)
                    candidates = torch.cat([outputs, candidates], dim=1)
                nearest.append(_nearest(problem, t - self.hidden, tokens, candidates))
            token, distance, hit = map(torch.stack, zip(*nearest, strict=True))
            first = hit.int().argmax(dim=0, keepdim=True)  # the first layer that hits, or the first
            path.append(token.gather(0, first)[0])
            reads.append(read)
            good.append(hit & (token == path[-1]))
            distances.append(distance)
            if watched() and not self.hidden:
                report_progress(Progress(torch.stack(path, dim=-1), torch.stack(good, dim=-1)[0]))
            if t + 1 < T:
                state, likely = self._go_on(path[-1][:, None], state)
        reads = torch.stack(reads, dim=-1).transpose(-1, -2)
        path, good, distances = (torch.stack(parts, dim=-1) for parts in (path, good, distances))
        return Paths(path, reads, good, distances)

    def _choose(
        self, i: int, t: int, known: Tensor | None, likely: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Layer i's weights `(P, D)` at position t, and its shortlist beside the likely tokens."""
        read = self._read(i, t, self.problems[i], known, likely)
        scores = self._guesser(i, t).scores(read)
        if likely is not None:
            scores = scores.scatter(1, likely, -torch.inf)
        return read, scores.topk(self.shortlist).indices

    def search_alone(self, i: int, p: int, paths: Paths, good: list[bool]) -> LayerAnswer:
        """Layer i of prompt p: positions that the pass settled, and the others searched.

        Args:
            good: whether the pass settled each position shown for them.
        """
        row, on_path = LayerAnswer(paths.path[p].clone(), paths.reads[i, p].clone()), True
        for t, settled in enumerate(good, start=self.hidden):
            row.evaluations += 1 + (self.likely if t else 0) + self.shortlist
            if not (on_path and settled):
                row.searched += 1
                self._search(i, t, self.problems[i].of([p]), row)
                on_path &= bool(row.tokens[t] == paths.path[p, t])
        return row

    def _search(self, i: int, t: int, problem: Problem, row: LayerAnswer) -> None:
        """Puts the nearest token at position t, those before it being settled."""
        state, likely = self._go_on(row.tokens[None, :t], None) if t else (None, None)
        known, circuit = self._known(problem.circuit, state, likely), problem.circuit
        guesser, V, size = self._guesser(i, t), len(circuit.vocabulary), self.shortlist
        s = t - self.hidden
        read = self._read(i, t, problem, known, likely)
        tokens = row.tokens.new_empty(0) if likely is None else likely[0]
        outputs = row.reads.new_empty(0, circuit.width) if known is None else known[0]
        row.evaluations += t + len(tokens)
        while True:
            scores = guesser.scores(read)[0]
            scores[tokens] = -torch.inf
            best = scores.topk(min(size, V - len(tokens))).indices
            ran = circuit.step(circuit.embed(best)[:, None], state)[:, 0]
            tokens, outputs = torch.cat([tokens, best]), torch.cat([outputs, ran])
            row.evaluations += len(best)
            distances = _distances(problem, s, outputs[None])[0]
            row.reads[s] = read[0]
            tolerance = problem.tolerance
            limit = tolerance.near if len(tokens) < ENOUGH else tolerance.limit
            hit = bool(distances.min() <= limit[0, s])
            if hit or len(tokens) == V:
                break
            shown = problem.slice.narrow(outputs)
            nearest = guesser.nearest(problem.target[0, s], shown)
            embedding = circuit.embed(tokens[nearest])[None]
            read = guesser.read(problem.target[:, s], shown[nearest][None], embedding)
            size = min(GROWTH * size, candidates_at_once(self.model))
        row.tokens[t] = tokens[distances.argmin()]
        row.proved &= hit
        row.swept += len(tokens) == V

    def _go_on(self, tokens: Tensor, state: State | None) -> tuple[State, Tensor]:
        """The state after `(P, S)` more tokens, and the likeliest next ones, `(P, n)`."""
        hidden, state = self.text.extend(tokens, state)
        logits = self.model.logits(hidden[:, -1:].to(self.model.embedding.weight.dtype))
        return state, logits[:, 0].topk(self.likely).indices

    def _known(self, circuit: Circuit, state: State | None, likely: Tensor | None) -> Tensor | None:
        """Outputs of the likeliest tokens, `(P, n, width)`; none at the first position."""
        if likely is None:
            return None
        x = self.model.embed(likely).flatten(0, 1)[:, None]
        return circuit.step(x, state).view(*likely.shape, -1)

    def _guesser(self, i: int, t: int) -> Guesser:
        shown = self.problems[i].slice
        return self.readbacks[i].guesser(shown.low, shown.high, first=not t)

    def _read(
        self, i: int, t: int, problem: Problem, known: Tensor | None, likely: Tensor | None
    ) -> Tensor:
        """Layer i's weights at position t, from the mean of known tokens' outputs, `(P, D)`."""
        if known is None or likely is None:
            output, embedding = self.readbacks[i].start(problem.slice.low, problem.slice.high)
        else:
            output = problem.slice.narrow(known).mean(dim=1)
            embedding = self.whole.embed(likely).mean(dim=1)
        return self._guesser(i, t).read(problem.target[:, t - self.hidden], output, embedding)


def _distances(problem: Problem, t: int, outputs: Tensor) -> Tensor:
    """Distances of `(P, n, width)` outputs from the targets at position t, `(P, n)`."""
    differences = problem.slice.narrow(outputs) - problem.target[:, t, None]
    return torch.linalg.vector_norm(differences, dim=-1)


def _nearest(
    problem: Problem, t: int, tokens: Tensor, outputs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Each prompt's nearest token of `(P, n)`, its distance, and whether that is near enough."""
    distances = _distances(problem, t, outputs)
    nearest = distances.argmin(dim=1, keepdim=True)
    distance = distances.gather(1, nearest)[:, 0]
    return tokens.gather(1, nearest)[:, 0], distance, distance <= problem.tolerance.near[:, t]
