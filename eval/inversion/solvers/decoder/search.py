"""Exact search around the guesses of a decoder, where only few positions are shown.

A decoder writes prompts that may lie behind the last output shown. They are run, and changed by
four moves: other tokens at single positions, those that the decoder and the gradient name; several
of these at once, whose changes add up to what is missing; a token taken out and another put in
elsewhere; and the end written anew by the decoder. What is kept is nearest to the outputs shown, in
one of several metrics in turn, as a choice that no change brings nearer in one may not be at rest
in another; the decoder's opinion counts a little. A prompt whose outputs are those shown ends it.
"""

import torch
from torch import Tensor

from eval.inversion.guesses import whitening
from eval.inversion.problem import Generators, Problem
from eval.inversion.solver import ANY, Answer, solver
from eval.inversion.solvers.alternating.additive import Changes, explain
from eval.inversion.solvers.decoder.network import Decoder, open_decoder
from eval.rows.progress import Progress, report_progress

BEAM = 256  # prompts that the decoder writes first by its own beam, and as many that it draws
SHRINKS = 0.01, 0.001, 0.1  # of the metrics: of each channel's variance, added to it
KEPT = 512  # prompts, by each metric
LISTED = 256  # of the nearest of them, about which the decoder is asked
WEIGHT = 0.1  # of a nat of the decoder's, in the metric's unit
CHANGED = 8  # prompts that are changed in a round
DRAWN_FROM = 64  # of so many, the best, they are drawn in every other round
NAMED = 16  # tokens at a position that the decoder names, and as many that the gradient does
RANDOM = 4  # more of them
ADDED = 128  # choices of several tokens at once, of each prompt
SHIFTED = 128  # prompts with a token moved, of each
REWRITTEN = 64  # prompts whose end is written anew
AT_ONCE = 8192  # tokens run
LOGITS = 1 << 25  # numbers that the decoder gives at once


@solver("search", title="exact search from a decoder", hidden=range(1, ANY), random=True)
def decoder(
    problem: Problem, generators: Generators, *, steps: int = 4000, budget: int = 1 << 19
) -> list[Answer]:
    """Searches from the prompts that a trained decoder writes for the last shown output.

    The decoder is a copy of the model. Once for a site, in minutes, it is trained to write the
    prompt behind an output, on text that the model generates. No token is given.

    Args:
        problem: with k >= 1 hidden positions before the last one shown.
        generators: of each prompt's draws.
        steps: steps of the decoder's training, 1,024 tokens each.
        budget: tokens run for a prompt, in the decoder or in the model; then the nearest prompt is
            returned.
    """
    trained = open_decoder(problem, steps)
    metrics = [whitening(trained.scatter, shrink).to(problem.target) for shrink in SHRINKS]
    return [
        _Search(problem.of([p]), trained, metrics, generator).answer(budget)
        for p, generator in enumerate(generators)
    ]


class _Search:
    """The search for one prompt.

    Attributes:
        tokens: of the prompts kept, `(N, T)`, and `outputs`, `(N, S, C)`, theirs where shown.
        spent: tokens run so far.
    """

    def __init__(
        self, problem: Problem, trained: Decoder, metrics: list[Tensor], generator: torch.Generator
    ) -> None:
        self.problem, self.decoder, self.metrics = problem, trained, metrics
        self.generator, self.circuit, self.spent = generator, problem.circuit, 0
        self.T, self.target, self.V = problem.length, problem.target, len(problem.vocabulary)
        self.tokens = torch.empty(0, self.T, dtype=torch.long, device=self.target.device)
        self.outputs = self.target[:0]

    def answer(self, budget: int) -> Answer:
        """The prompt that agrees, or the nearest when the budget is spent."""
        self._add(torch.cat([self._beam(), self._write(self.tokens.new_empty(BEAM, 0))]))
        rounds = 0
        while not self._solved() and self.spent < budget:
            report_progress(Progress(self.tokens[:1]))
            metric = self.metrics[rounds % len(self.metrics)]
            chosen = self._choose(metric, CHANGED if rounds % 2 else DRAWN_FROM)
            self._add(torch.cat([*self._substitute(chosen, metric), self._rewrite(metric)]))
            rounds += 1
        best = self.tokens[0]
        scores = self._logits(best[None])[0]
        scores.scatter_(1, best[:, None], scores.amax(dim=1, keepdim=True) + 1)
        distance = float(self._distances(self.metrics[0])[0])
        notes = {"rounds": rounds, "distance": distance}
        return Answer(tokens=best, scores=scores, evaluations=self.spent, notes=notes)

    def _solved(self) -> bool:
        """Whether the nearest prompt's outputs are those shown, to rounding."""
        offsets = (self.outputs[:1] - self.target).norm(dim=-1)
        return bool(self.problem.tolerance.accepts(offsets)[0])

    def _distances(self, metric: Tensor) -> Tensor:
        return ((self.outputs - self.target) @ metric).flatten(1).norm(dim=1)

    def _add(self, tokens: Tensor) -> None:
        """Runs more prompts `(N, T)`, and keeps the nearest by each metric, the nearest first."""
        self._join(tokens, self._run(tokens))
        nearest = [self._distances(metric).argsort()[:KEPT] for metric in self.metrics]
        self._take(torch.cat(nearest).unique())
        self._take(self._distances(self.metrics[0]).argsort())

    def _join(self, tokens: Tensor, outputs: Tensor) -> None:
        """Enters more prompts and their outputs, each prompt once."""
        outputs = torch.cat([self.outputs, outputs])
        self.tokens, number = torch.cat([self.tokens, tokens]).unique(dim=0, return_inverse=True)
        self.outputs = outputs.new_empty(len(self.tokens), *outputs.shape[1:])
        self.outputs[number] = outputs  # of one that is there twice, either

    def _take(self, rows: Tensor) -> None:
        self.tokens, self.outputs = self.tokens[rows], self.outputs[rows]

    def _run(self, tokens: Tensor) -> Tensor:
        self.spent += tokens.numel()
        parts = tokens.split(max(1, AT_ONCE // self.T))
        select = self.problem.slice.select
        return torch.cat([select(self.circuit.of_tokens(part)) for part in parts])

    @torch.no_grad()
    def _logits(self, tokens: Tensor, last: bool = False) -> Tensor:
        """The decoder's of each token, `(N, T, V)`, or of the one after `(N, n)` tokens alone."""
        self.spent += tokens.numel()
        target = self.target[:, -1].expand(len(tokens), -1)
        logits = self.decoder(target, tokens if last else tokens[:, :-1], self.T, last)
        return logits[:, 0] if last else logits

    def _nats(self, tokens: Tensor) -> Tensor:
        """How unlikely the decoder thinks `(N, T)` tokens, `(N,)`."""
        parts = []
        for part in tokens.split(max(1, LOGITS // (self.T * self.V))):
            logs = self._logits(part).log_softmax(dim=-1)
            parts.append(-logs.gather(2, part[..., None])[..., 0].sum(dim=1))
        return torch.cat(parts)

    def _beam(self) -> Tensor:
        """The likeliest prompts by the decoder, as far as a beam finds them."""
        tokens, total = self.tokens.new_empty(1, 0), self.target.new_zeros(1)
        for _ in range(self.T):
            total = total[:, None] + self._logits(tokens, last=True).log_softmax(dim=-1)
            V = total.shape[1]
            total, best = total.flatten().topk(min(BEAM, total.numel()))
            tokens = torch.cat([tokens[best // V], best[:, None] % V], dim=1)
        return tokens

    def _write(self, tokens: Tensor) -> Tensor:
        """Prompts that begin with `(N, n)` tokens, the others drawn by the decoder."""
        while tokens.shape[1] < self.T:
            probabilities = self._logits(tokens, last=True).softmax(dim=-1).cpu()
            drawn = torch.multinomial(probabilities, 1, generator=self.generator).to(tokens)
            tokens = torch.cat([tokens, drawn], dim=1)
        return tokens

    def _choose(self, metric: Tensor, of: int) -> Tensor:
        """Prompts to change, `(n, T)`: drawn from the best by distance and by the decoder."""
        distances = self._distances(metric)
        listed = distances.topk(min(LISTED, len(distances)), largest=False).indices
        tokens = self.tokens[listed]
        best = (distances[listed] + WEIGHT * self._nats(tokens)).argsort()[:of]
        return tokens[best[torch.randperm(len(best), generator=self.generator)[:CHANGED]]]

    def _substitute(self, chosen: Tensor, metric: Tensor) -> list[Tensor]:
        """Choices of several tokens at once, and of a token moved; single ones are run here."""
        n, T, V = len(chosen), self.T, self.V
        logits = self._logits(chosen)
        random = self._draw(V, n, T, RANDOM)
        likely = logits.topk(min(NAMED, V), dim=-1).indices
        named = [chosen[..., None], likely, self._by_gradient(chosen, metric), random]
        named = torch.cat(named, dim=2)  # (n, T, K), the present token first
        tried = chosen[:, None, None].repeat(1, T, named.shape[2], 1)
        tried.diagonal(dim1=1, dim2=3).copy_(named.mT)
        outputs = self._run(tried.flatten(0, 2))
        changes = ((outputs - self.target) @ metric).flatten(1).unflatten(0, named.shape)
        missing = -changes[:, 0, 0]
        sums = explain(Changes(changes - changes[:, :1, :1]), missing, ADDED)
        added = named.gather(2, sums.mT).mT
        self._join(tried.flatten(0, 2), outputs)
        return [added.flatten(0, 1), self._shift(chosen, likely)]

    @torch.enable_grad()
    def _by_gradient(self, chosen: Tensor, metric: Tensor) -> Tensor:
        """The tokens that bring each position nearest, by the slope at the present one."""
        self.spent += 3 * chosen.numel()
        x = self.circuit.embed(chosen).detach().requires_grad_(True)
        offset = (self.problem.slice.select(self.circuit(x)) - self.target) @ metric
        (slope,) = torch.autograd.grad(offset.square().sum(), x)
        fits = -(slope @ self.problem.vocabulary.T)
        return fits.topk(min(NAMED, fits.shape[-1]), dim=-1).indices

    def _shift(self, chosen: Tensor, likely: Tensor) -> Tensor:
        """Prompts with a token taken out and a likely one put in elsewhere."""
        n, T, K = likely.shape
        row = torch.arange(n, device=chosen.device).repeat_interleave(SHIFTED)
        out, into, which = (self._draw(size, n * SHIFTED) for size in (T, T, K))
        positions = torch.arange(T, device=chosen.device)
        rest = positions.expand(len(row), T)
        rest = rest[rest != out[:, None]].view(len(row), T - 1)  # the positions that stay
        source = (positions - (positions > into[:, None]).long()).clamp(max=T - 2)
        tokens = chosen[row[:, None], rest.gather(1, source)]
        return tokens.scatter(1, into[:, None], likely[row, into, which][:, None])

    def _rewrite(self, metric: Tensor) -> Tensor:
        """The nearest prompts, their ends written anew from a random position on."""
        cut = int(torch.randint(1, self.T, (), generator=self.generator))
        best = self._distances(metric).topk(min(REWRITTEN, len(self.tokens)), largest=False)
        return self._write(self.tokens[best.indices, :cut])

    def _draw(self, high: int, *size: int) -> Tensor:
        return torch.randint(high, size, generator=self.generator).to(self.tokens)
