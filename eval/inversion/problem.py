"""Inversion problems: what is shown of a circuit's outputs, and how far rounding moves each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eval.inversion.guesses import ReadBack
from eval.messages import RequestError
from eval.sites.circuit import Circuit
from eval.sites.rounding import Tolerance
from eval.sites.slices import Slice

TOGETHER = 8192  # tokens that are run at once where choices of hidden ones are checked

Generators = list[torch.Generator]
"""A source of random numbers for each row, so that no row depends on its batch."""
Shown = slice
"""Python's own slice, of the positions shown: within `Problem` its name is that of a field."""
ReadBacksOf = Callable[[list[Circuit]], list[ReadBack]]


def no_readbacks(_: list[Circuit]) -> list[ReadBack]:
    """Refuses: this problem was given no background text to guess from."""
    raise RequestError("no background text was given, from which this solver could guess")


@dataclass(frozen=True)
class Problem:
    """P prompts of one length, of which one circuit's outputs are shown; the truth is not in it.

    Attributes:
        circuit: the function to be inverted: one layer's outputs, or those of several joined.
        slice: the positions and channels shown.
        length: number of tokens T of each prompt.
        target: the outputs shown, `(P, S, C)`, in fp32, with noise in them if noise was asked for.
        tolerance: how far an answer's outputs may lie from the target at each shown position.
        noise: standard deviation of the noise in each channel, `(P, S)`; 0 where there is none.
        allowed: the only tokens that answers may hold; None for all.
        readbacks: fitted maps from outputs to tokens, of circuits that differ in their layers only.
        guess: of the tokens before the first position shown, `(P, k)`, with which a search for them
            begins; None: none.
    """

    circuit: Circuit
    slice: Slice
    length: int
    target: Tensor
    tolerance: Tolerance
    noise: Tensor
    allowed: tuple[int, ...] | None = None
    readbacks: ReadBacksOf = no_readbacks
    guess: Tensor | None = None

    @property
    def vocabulary(self) -> Tensor:
        """The embedding, `(V, D)`."""
        return self.circuit.vocabulary

    @property
    def positions(self) -> list[int]:
        """The S positions shown."""
        return self.slice.positions(self.length)

    @property
    def hidden(self) -> int:
        """How many tokens are hidden, of those before the last position shown."""
        return self.slice.hidden(self.length)

    def of(self, rows: Tensor | list[int]) -> "Problem":
        """The problem of some of the prompts."""
        return self._part(rows, guess=None if self.guess is None else self.guess[rows])

    def runs(self) -> "list[Problem]":
        """A problem for each run of neighbouring positions shown, of the prompt up to its end.

        Of a causal model: later tokens do not change the run's outputs.
        """
        shown = self.positions
        starts = [i for i, t in enumerate(shown) if not i or shown[i - 1] != t - 1]
        ends = [*starts[1:], len(shown)]
        return [
            self.showing(slice(start, end), shown[end - 1] + 1)
            for start, end in zip(starts, ends, strict=True)
        ]

    def showing(self, positions: Shown, length: int | None = None) -> "Problem":
        """With only some of the S shown positions shown, of prompts of another length if given."""
        length = length or self.length
        part = Slice.of(self.positions[positions], length, self.slice.low, self.slice.high)
        return self._part((slice(None), positions), length=length, slice=part)

    def _part(self, index: Any, **changes: Any) -> "Problem":
        names = "target", "tolerance", "noise"
        return replace(self, **{name: getattr(self, name)[index] for name in names}, **changes)

    def shown(self, embeddings: Tensor) -> Tensor:
        """The outputs of `(P, T, D)` embeddings that are shown, `(P, S, C)`."""
        return self.slice.select(self.circuit(embeddings))

    def distances(self, outputs: Tensor) -> Tensor:
        """Distance to the target at each shown position: `(P, T, width)` outputs to `(P, S)`."""
        return torch.linalg.vector_norm(self.slice.select(outputs) - self.target, dim=-1)

    def residual(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Distance of `(P, T)` tokens' outputs from the target, and whether it is accepted.

        Returns:
            `(P,)` distances over the whole slice, and `(P,)` booleans: accepted.
        """
        distances = self.distances(self.circuit.of_tokens(tokens))
        return distances.norm(dim=-1), self.tolerance.accepts(distances)

    def whole(self, hidden: Tensor, visible: Tensor) -> Tensor:
        """Prompts `(N, T)`: `(N, k)` tokens at the hidden positions, `(S,)` at those shown."""
        shown = hidden.new_zeros(self.length, dtype=torch.bool)
        shown[self.positions] = True
        tokens = hidden.new_empty(len(hidden), self.length)
        tokens[:, shown], tokens[:, ~shown] = visible, hidden
        return tokens

    def explaining(self, hidden: Tensor, visible: Tensor) -> Tensor:
        """Selects those of `(N, k)` hidden tokens that explain every position shown.

        Args:
            hidden: choices of the tokens at the positions hidden, of a single prompt.
            visible: the tokens at those shown, `(S,)`.
        """
        batches = hidden.split(max(1, TOGETHER // self.length))
        fits = [self.residual(self.whole(batch, visible))[1] for batch in batches]
        return hidden[torch.cat(fits)]


def pose(
    circuit: Circuit,
    outputs: Tensor,
    rounding: Tensor,
    shown: Slice,
    noise: float = 0.0,
    generators: Generators | None = None,
) -> Problem:
    """Makes the problem of a slice of captured outputs.

    Tokens after the last position shown are cut off, as they change no output shown; not so of a
    circuit without causal mask.

    Args:
        outputs: of its prompts, `(P, T, width)`.
        rounding: of each number, as `capture` gives it.
        noise: standard deviation of Gaussian noise in the target, in units of the root mean square
            of each position's shown outputs.
        generators: of each prompt's noise.

    Raises:
        RequestError: an empty slice.
    """
    length, channels = outputs.shape[1], shown.channels(circuit.width)
    positions = shown.positions(length)
    target, floor = shown.select(outputs), shown.select(rounding).norm(dim=-1)
    size = noise * target.norm(dim=-1) / channels**0.5
    if noise:
        assert generators
        drawn = torch.stack([torch.randn(target.shape[1:], generator=g) for g in generators])
        target = target + size[..., None] * drawn.to(target)
    # the length of C draws is within 4 / sqrt(2) of sqrt(C) but once in many thousand times
    tolerance = Tolerance(floor, size * (channels**0.5 + 4 / 2**0.5), torch.zeros_like(floor))
    if circuit.causal:
        length = positions[-1] + 1
        shown = Slice.of(positions, length, shown.low, shown.high)
    return Problem(circuit, shown, length, target, tolerance, size)
