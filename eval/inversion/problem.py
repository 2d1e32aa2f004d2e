"""Inversion problems: a slice of a circuit's outputs, and the rounding floor of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from eval import RequestError
from eval.circuit import Circuit, join, precision, run_together
from eval.models import rows_at_once
from eval.recovery import Slice

if TYPE_CHECKING:
    from eval.inversion.spaces import Objective

ACCEPT = 10.0
"""A distance of at most this many floors counts as none: rounding differs between batch shapes."""

TOGETHER = 8192  # tokens that are run at once where choices of hidden ones are checked
STEPPED = 64  # candidates among which a prompt's next position is run where floors are measured
REPEATED = 3  # times that the prompts of a pass are run there in another one
WHOLE = 2  # of the ways in which outputs are computed, those that run whole prompts come first
Shown = slice
"""Of the positions shown."""


@dataclass(frozen=True)
class Problem:
    """P prompts of one length seen through one circuit and slice, without the truth.

    Attributes:
        circuit: the function to be inverted.
        slice: the positions and channels shown.
        length: number of tokens T of each prompt.
        target: the outputs shown, `(P, S, C)`, in fp32, with noise in them if noise was asked for.
        floor: the distance that rounding alone makes at each shown position, `(P, S)`.
        limit: the distance up to which an answer is as good as the truth, `(P, S)`: ten floors, and
            the length of the noise.
        noise: standard deviation of the noise in each channel, `(P, S)`; 0 where there is none.
    """

    circuit: Circuit
    slice: Slice
    length: int
    target: Tensor
    floor: Tensor
    limit: Tensor
    noise: Tensor

    @property
    def hidden(self) -> int:
        """How many tokens are hidden, of those before the last position shown."""
        return self.slice.hidden(self.length)

    def of(self, rows: Tensor | list[int]) -> Problem:
        """The same problem of some of the prompts."""
        return self._part(rows)

    def shortened(self) -> Problem:
        """Without the tokens after the last position shown, which change no output shown."""
        return self.showing(slice(None), self.slice.positions(self.length)[-1] + 1)

    def runs(self) -> list[Problem]:
        """A problem for each run of neighbouring positions shown, of the prompt up to its end.

        Of a causal model: later tokens do not change the run's outputs.
        """
        shown = self.slice.positions(self.length)
        starts = [i for i, t in enumerate(shown) if not i or shown[i - 1] != t - 1]
        ends = [*starts[1:], len(shown)]
        return [
            self.showing(slice(start, end), shown[end - 1] + 1)
            for start, end in zip(starts, ends, strict=True)
        ]

    def showing(self, some: Shown, length: int | None = None) -> Problem:
        """With only some of the S shown positions shown, of prompts of another length if given."""
        length = length or self.length
        shown = self.slice.positions(self.length)[some]
        part = Slice.of(shown, length, self.slice.low, self.slice.high)
        return self._part((slice(None), some), length=length, slice=part)

    def _part(self, index: Any, **changes: Any) -> Problem:
        names = ("target", "floor", "limit", "noise")
        return replace(self, **{name: getattr(self, name)[index] for name in names}, **changes)

    def distances(self, outputs: Tensor) -> Tensor:
        """Distance to the target at each shown position: `(P, T, width)` outputs to `(P, S)`."""
        return torch.linalg.vector_norm(self.slice.select(outputs) - self.target, dim=-1)

    def residual(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Distance of `(P, T)` tokens' outputs from the target, and whether it is within the limit.

        Returns:
            `(P,)` distances over the whole slice, and `(P,)` booleans: within the limit everywhere.
        """
        distances = self.distances(self.circuit.of_tokens(tokens))
        return distances.norm(dim=-1), (distances <= self.limit).all(dim=-1)

    def whole(self, hidden: Tensor, visible: Tensor) -> Tensor:
        """Prompts `(N, T)`: `(N, k)` tokens at the hidden positions, `(S,)` at those shown."""
        shown = hidden.new_zeros(self.length, dtype=torch.bool)
        shown[self.slice.positions(self.length)] = True
        tokens = hidden.new_empty(len(hidden), self.length)
        tokens[:, shown], tokens[:, ~shown] = visible, hidden
        return tokens

    def explaining(self, hidden: Tensor, visible: Tensor) -> Tensor:
        """Those of `(N, k)` hidden tokens that lie within the limit at every position shown.

        Args:
            hidden: choices of the tokens at the positions hidden, of a single prompt.
            visible: the tokens at those shown, `(S,)`.
        """
        batches = hidden.split(max(1, TOGETHER // self.length))
        fits = [self.residual(self.whole(some, visible))[1] for some in batches]
        return hidden[torch.cat(fits)]


@dataclass(frozen=True)
class Batch:
    """B rows of one model and length T: the prompts of all problems, in the problems' order.

    The problems may differ in layer, slice, noise and prompts. Problems whose circuits differ in
    nothing but the layer share one pass. Answers may hold the `allowed` tokens alone; None: all.
    """

    problems: tuple[Problem, ...]
    allowed: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """Number of rows B."""
        return sum(len(problem.target) for problem in self.problems)

    @property
    def length(self) -> int:
        """Tokens T of each row."""
        return self.problems[0].length

    @property
    def circuit(self) -> Circuit:
        """Any one of the circuits, for the embedding, its scale and its pseudo-inverse."""
        return self.problems[0].circuit

    def spans(self) -> Iterator[tuple[Problem, int, int]]:
        """Each problem, its first row, and the row after its last."""
        start = 0
        for problem in self.problems:
            yield problem, start, start + len(problem.target)
            start += len(problem.target)

    def of(self, rows: Tensor) -> Batch:
        """Some of the rows, given by ascending number `(b,)`."""
        parts = [
            (p, rows[(rows >= start) & (rows < end)] - start) for p, start, end in self.spans()
        ]
        kept = tuple(problem.of(chosen) for problem, chosen in parts if len(chosen))
        return replace(self, problems=kept)

    def losses(self, embeddings: Tensor, objective: Objective) -> Tensor:
        """The objective of each row, `(B, T, D) -> (B,)`; rows do not touch each other."""
        shown = zip(self.problems, self._outputs(embeddings), strict=True)
        return torch.cat([objective(p.slice.select(o), p.target) for p, o in shown])

    @torch.no_grad()
    def solved(self, tokens: Tensor) -> Tensor:
        """Which rows of `(B, T)` tokens explain the target, within the limit, `(B,)`."""
        shown = zip(self.problems, self._outputs(self.circuit.embed(tokens)), strict=True)
        return torch.cat([(p.distances(o) <= p.limit).all(dim=-1) for p, o in shown])

    def _outputs(self, embeddings: Tensor) -> list[Tensor]:
        """Each problem's whole outputs, `(P, T, width)`."""
        parts = embeddings.split([len(problem.target) for problem in self.problems])
        families: dict[tuple[str, frozenset[str]], list[int]] = {}
        for i, problem in enumerate(self.problems):
            families.setdefault((problem.circuit.part, problem.circuit.without), []).append(i)
        outputs: dict[int, Tensor] = {}
        for family in families.values():
            family.sort(key=lambda i: self.problems[i].circuit.depth)
            together = run_together(
                [self.problems[i].circuit for i in family],
                [len(parts[i]) for i in family],
                torch.cat([parts[i] for i in family]),
            )
            outputs.update(zip(family, together, strict=True))
        return [outputs[i] for i in range(len(self.problems))]


class Measured(NamedTuple):
    """A circuit's outputs for some prompts, `(P, T, width)`, and how exact they are.

    Attributes:
        outputs: as computed in one batch, in fp32.
        apart: how they differ when computed in other ways, `(ways, P, T, width)`.
        precision: that the model computes in.
    """

    outputs: Tensor
    apart: Tensor
    precision: torch.dtype

    def floor(self, shown: Slice) -> Tensor:
        """The distance that rounding makes at each position shown, `(P, S)`.

        At least one unit of the model's rounding, of the output's own length.
        """
        rounding = torch.finfo(self.precision).eps * shown.select(self.outputs).norm(dim=-1)
        apart = torch.stack([shown.select(way).norm(dim=-1) for way in self.apart]).amax(dim=0)
        return torch.maximum(apart, rounding)


def measure(circuit: Circuit, tokens: Tensor) -> Measured:
    """Computes the outputs of `tokens`, `(P, T)`, and how exact they are.

    Raises:
        RequestError: prompts longer than the context, or outputs that are not finite.
    """
    return measure_layers([circuit], tokens)[0]


@torch.no_grad()
def measure_layers(circuits: Sequence[Circuit], tokens: Tensor) -> list[Measured]:
    """As `measure`, of circuits that differ in their layers only, in the same passes."""
    whole, cut = join(circuits)
    context = whole.model.config.context
    if tokens.shape[1] > context:
        raise RequestError(
            f"a prompt of {tokens.shape[1]} tokens is longer than the model's context of {context};"
            " give a shorter one"
        )
    # a pass of `_apart` has each prompt three times over, or 64 candidates for its next position
    size = max(REPEATED * tokens.shape[1], STEPPED)
    at_once = rows_at_once(whole.model, size, most=1 << 30, gradients=False)
    parts = tokens.split(at_once)
    outputs = torch.cat([whole.of_tokens(part) for part in parts])
    if not outputs.isfinite().all():
        raise RequestError(
            f"layer {_first_broken(whole, tokens)} gives numbers that are not finite"
        )
    differences = map(_apart, repeat(whole), parts, outputs.split(at_once))
    apart = cut(torch.cat([*differences], dim=1))
    kind = precision(whole.model)
    return [Measured(*each, kind) for each in zip(cut(outputs), apart, strict=True)]


def pose(
    circuit: Circuit,
    tokens: Tensor,
    shown: Slice,
    measured: Measured | None = None,
    noise: float = 0.0,
    generators: list[torch.Generator] | None = None,
) -> Problem:
    """Makes the problem of recovering `tokens`, `(P, T)`, from a slice of the circuit's output.

    Args:
        circuit: the circuit.
        tokens: the truth, which only measuring looks at.
        shown: the slice.
        measured: of the same circuit and tokens, where it is known already.
        noise: standard deviation of Gaussian noise in the target, in units of the root mean square
            of each position's shown outputs.
        generators: the source of each prompt's noise.

    Raises:
        RequestError: as `measure`, or an empty slice.
    """
    shown.positions(tokens.shape[1])
    channels = shown.channels(circuit.width)
    measured = measured or measure(circuit, tokens)
    target, floor = shown.select(measured.outputs), measured.floor(shown)
    size = noise * target.norm(dim=-1) / channels**0.5
    if noise:
        assert generators
        drawn = torch.stack([torch.randn(target.shape[1:], generator=g) for g in generators])
        target = target + size[..., None] * drawn.to(target)
    # the length of C draws is within 4 / sqrt(2) of sqrt(C) but once in many thousand times
    limit = ACCEPT * floor + size * (channels**0.5 + 4 / 2**0.5)
    return Problem(circuit, shown, tokens.shape[1], target, floor, limit, size)


def _apart(circuit: Circuit, tokens: Tensor, outputs: Tensor) -> Tensor:
    """How the same tokens' outputs differ when computed otherwise, `(ways, P, T, width)`.

    The ways are those that the solvers use: another batch size, another order of the batch, alone,
    and position by position on a remembered prefix, among many candidates.
    """
    P, T = tokens.shape
    shuffled = circuit.of_tokens(tokens.flip(0).repeat(REPEATED, 1))[:P].flip(0)
    alone = torch.cat([circuit.of_tokens(tokens[:1]), outputs[1:]])
    ways = [shuffled, alone]
    if circuit.causal:
        stepped, state = [], None
        for t in range(T):
            candidates = circuit.embed(tokens[:, t].repeat_interleave(STEPPED))[:, None]
            stepped.append(circuit.step(candidates, state)[::STEPPED].clone())
            state = circuit.prefix(tokens[:, t : t + 1], state)
        ways.append(torch.cat(stepped, dim=1))
    return torch.stack(ways) - outputs


def _first_broken(circuit: Circuit, tokens: Tensor) -> int:
    """The first layer whose block output is not finite."""
    for layer in range(circuit.depth):
        if not Circuit(circuit.model, layer).of_tokens(tokens).isfinite().all():
            return layer
    return circuit.depth
