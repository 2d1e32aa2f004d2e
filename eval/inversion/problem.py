"""One inversion problem: what is shown of a circuit's output, and how exact that showing is."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.errors import RequestError
from eval.inversion.slices import Slice

ACCEPT = 10.0
"""A distance of at most this many floors counts as none: rounding differs between batch shapes."""


@dataclass(frozen=True)
class Problem:
    """P prompts of one length seen through one circuit and slice. Solvers never see the truth.

    Attributes:
        circuit: the function to be inverted.
        slice: what is shown.
        length: number of tokens T of each prompt.
        target: the outputs shown, `(P, S, D)`, in fp32.
        floor: the distance that rounding alone makes at each shown position, `(P, S)`.
    """

    circuit: Circuit
    slice: Slice
    length: int
    target: Tensor
    floor: Tensor

    @property
    def hidden(self) -> int | None:
        """How many leading tokens are hidden; None if the slice hides others."""
        return self.slice.hidden_prefix(self.length)

    def distances(self, outputs: Tensor) -> Tensor:
        """Distance to the target at each shown position: `(P, T, D)` outputs to `(P, S)`."""
        return torch.linalg.vector_norm(self.slice.select(outputs) - self.target, dim=-1)

    def residual(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Distance of `(P, T)` tokens' outputs from what is shown, and whether it is none.

        Returns:
            `(P,)` distances over the whole slice, and `(P,)` booleans: at the floor everywhere.
        """
        distances = self.distances(self.circuit.of_tokens(tokens))
        return distances.norm(dim=-1), (distances <= ACCEPT * self.floor).all(dim=-1)


class Measured(NamedTuple):
    """A circuit's whole outputs for some prompts, `(P, T, D)`, and their floor, `(P, T)`."""

    outputs: Tensor
    floor: Tensor


@torch.no_grad()
def measure(circuit: Circuit, tokens: Tensor) -> Measured:
    """Computes the outputs of `tokens`, `(P, T)`, and how exact they are.

    Raises:
        RequestError: prompts longer than the context, outputs that are not finite.
    """
    context = circuit.model.config.context
    if tokens.shape[1] > context:
        raise RequestError(
            f"a prompt of {tokens.shape[1]} tokens is longer than the model's context of {context};"
            " give a shorter one"
        )
    outputs = circuit.of_tokens(tokens)
    if not outputs.isfinite().all():
        raise RequestError(f"layer {circuit.layer} gives numbers that are not finite")
    return Measured(outputs, _floor(circuit, tokens, outputs))


def pose(
    circuit: Circuit, tokens: Tensor, shown: Slice, measured: Measured | None = None
) -> Problem:
    """Makes the problem of recovering `tokens`, `(P, T)`, from a slice of the circuit's output.

    Args:
        circuit: a causal circuit.
        tokens: the truth, which only measuring looks at.
        shown: the slice.
        measured: of the same circuit and tokens, where it is known already.

    Raises:
        RequestError: as `measure`, or an empty slice.
    """
    shown.positions(tokens.shape[1])
    outputs, floor = measured or measure(circuit, tokens)
    target = shown.select(outputs)
    return Problem(circuit, shown, tokens.shape[1], target, shown.select(floor[..., None])[..., 0])


def _floor(circuit: Circuit, tokens: Tensor, outputs: Tensor) -> Tensor:
    """How far the same tokens' outputs lie apart when computed in other ways, `(P, T)`.

    The ways are those that the solvers use: another batch size, another order of the batch, and
    position by position on a remembered prefix, among many candidates. At least one unit of
    rounding of the output's own length.
    """
    P, T = tokens.shape
    shuffled = circuit.of_tokens(tokens.flip(0).repeat(3, 1))[:P].flip(0)
    alone = circuit.of_tokens(tokens[:1])
    stepped, state = [], None
    for t in range(T):
        candidates = circuit.model.embed(tokens[:, t].repeat_interleave(64))[:, None]
        stepped.append(circuit.step(candidates, state)[::64])
        state = circuit.prefix(tokens[:, t : t + 1], state)
    rounding = torch.finfo(outputs.dtype).eps * outputs.norm(dim=-1)
    ways = torch.stack([shuffled, torch.cat(stepped, dim=1)])
    apart = (ways - outputs).norm(dim=-1).amax(dim=0)
    apart[:1] = torch.maximum(apart[:1], (alone - outputs[:1]).norm(dim=-1))
    return torch.maximum(apart, rounding)
