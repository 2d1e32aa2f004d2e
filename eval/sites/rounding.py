"""How far rounding moves the outputs of a circuit, and which distances are taken for none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from arch.mixers import has_foreign
from arch.pretrained.decoder import PretrainedConfig
from eval.messages import RequestError
from eval.models.memory import rows_at_once
from eval.sites.circuit import Circuit, join, precision

STEPPED = 64  # candidates among which a prompt's next position is run where floors are measured
REPEATED = 3  # times that the prompts of a pass are run there in another one
ROUNDS = 2.0**14
"""Units of precision by which rounding moves an output at most: in float32 1/512 of its size.

Where a model chooses among experts, rounding may choose another one, which moves an output more."""
MOVED = 0.5
"""Part of the outputs that are moved more, from which on that is no choice of a few experts."""
ACCEPT = 10.0
"""A distance of at most this many floors counts as none: rounding differs between batch shapes."""
ALLOWED = 3.0
"""Times the measured change of a lower precision: what another implementation may change.

Of SmolLM2 in transformers, layers 1, 15 and 30, it was 0.7 to 1.5 times that of ours."""


@dataclass(frozen=True)
class Tolerance:
    """How far outputs may lie from the right tokens' outputs and still be taken for these.

    Attributes:
        floor: what rounding alone makes; distances `(P, S)`, or number by number `(P, T, width)`.
        spread: the most that noise or a storage format makes, of the same shape.
        change: the most that a computation below float32 makes.
        usual: what such a computation makes at most tokens; None where there was none.
    """

    floor: Tensor
    spread: Tensor
    change: Tensor
    usual: Tensor | None = None

    @cached_property
    def limit(self) -> Tensor:
        """The largest distance that is accepted."""
        return ACCEPT * self.floor + self.spread + ALLOWED * self.change

    @cached_property
    def usual_limit(self) -> Tensor:
        """At most positions the right token lies within this distance.

        At half of the positions it lies within half of this distance.
        """
        return self.limit if self.usual is None else replace(self, change=self.usual).limit

    def accepts(self, residual: Tensor) -> Tensor:
        """Whether `(P, S)` distances are those of the right tokens, of each prompt, `(P,)`."""
        within = (residual <= self.limit).all(dim=-1)
        if self.usual is not None:
            within &= (residual <= self.usual_limit / 2).float().mean(dim=-1) >= 0.5
        return within

    def narrowed(self, other: "Tolerance") -> "Tolerance":
        """The smaller of each part of two tolerances."""
        change = torch.minimum(self.change, other.change)
        usual = None if self.usual is None else torch.minimum(self.usual, change)
        floor = torch.minimum(self.floor, other.floor)
        return Tolerance(floor, torch.minimum(self.spread, other.spread), change, usual)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Tolerance":
        """The same with a change of each part."""
        usual = None if self.usual is None else change(self.usual)
        return Tolerance(change(self.floor), change(self.spread), change(self.change), usual)

    def __getitem__(self, index: Any) -> "Tolerance":
        """The tolerance of some prompts or positions."""
        return self.map(lambda x: x[index])


@torch.no_grad()
def capture(circuits: Sequence[Circuit], tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Computes the outputs of `tokens`, `(P, T)`, and how far rounding moves each number of them.

    Rounding differs between the shapes in which solvers run the model: another batch, and position
    by position on a remembered prefix. It is one unit of the model's precision at least.

    Args:
        circuits: they differ in their layers only, and share the passes.
        tokens: of P prompts.

    Returns:
        For each circuit the outputs and their rounding, `(P, T, width)` each, in fp32.

    Raises:
        RequestError: prompts longer than the context, outputs that are not finite, or changes that
            are no rounding, as of a mixer whose `step` differs from its `forward`.
    """
    whole, cut = join(circuits)
    none = tokens.new_empty(*tokens.shape, 0)
    outputs, rounding, _ = capture_beside(whole, tokens, none)
    return list(zip(cut(outputs), cut(rounding), strict=True))


@torch.no_grad()
def capture_beside(
    circuit: Circuit, tokens: Tensor, rivals: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Captures one circuit, and the outputs of rivals in each token's place beside it.

    The rivals are run among the candidates with which rounding is measured: they cost nothing.

    Args:
        circuit: a causal one, where there are rivals.
        tokens: of P prompts, `(P, T)`.
        rivals: `(P, T, N)`, of fewer than `STEPPED`.

    Returns:
        The outputs and their rounding, `(P, T, width)`, and those of the rivals,
        `(P, T, N, width)`.
    """
    context = circuit.model.config.context
    if tokens.shape[1] > context:
        raise RequestError(
            f"a prompt of {tokens.shape[1]} tokens is longer than the model's context of {context};"
            " give a shorter one"
        )
    # a measuring pass has each prompt three times, or 64 candidates for its next position
    size = max(REPEATED * tokens.shape[1], STEPPED)
    parts = tokens.split(rows_at_once(circuit.model, size, most=1 << 30, gradients=False))
    outputs = torch.cat([circuit.of_tokens(part) for part in parts])
    if not outputs.isfinite().all():
        raise RequestError(f"outputs up to layer {circuit.depth} have numbers that are not finite")
    sizes = [len(part) for part in parts]
    measured = [
        _measure_rounding(circuit, *of_part)
        for of_part in zip(parts, outputs.split(sizes), rivals.split(sizes), strict=True)
    ]
    rounding, beside = map(torch.cat, zip(*measured, strict=True))
    return outputs, rounding, beside


def _measure_rounding(
    circuit: Circuit, tokens: Tensor, outputs: Tensor, rivals: Tensor
) -> tuple[Tensor, Tensor]:
    """The largest change of each output when it is computed in another way, `(P, T, width)`.

    Beside it stand the outputs of rivals, `(P, T, N, width)`.
    """
    P, count = len(tokens), 1 + rivals.shape[2]
    shuffled = circuit.of_tokens(tokens.flip(0).repeat(REPEATED, 1))[:P].flip(0)
    changes, state = {"in another batch": shuffled - outputs}, None
    stepped = outputs[:, :, None]
    if circuit.causal:
        parts, candidates = [], tokens[..., None].repeat(1, 1, STEPPED)
        candidates[..., 1:count] = rivals
        for t, token in enumerate(tokens.T[..., None]):
            after = circuit.prefix(token, state) if t % 2 else None  # before or after the step
            ran = circuit.step(circuit.embed(candidates[:, t].flatten())[:, None], state)
            parts.append(ran.view(P, STEPPED, -1)[:, :count].clone())
            state = after or circuit.prefix(token, state)
        stepped = torch.stack(parts, dim=1)
        changes["position by position"] = stepped[:, :, 0] - outputs
    _refuse_more_than_rounding(circuit, outputs, changes)
    unit = torch.finfo(precision(circuit.model)).eps * outputs
    rounding = torch.stack([unit, *changes.values()]).abs().amax(dim=0)
    return rounding, stepped[:, :, 1:]


def _refuse_more_than_rounding(
    circuit: Circuit, outputs: Tensor, changes: Mapping[str, Tensor]
) -> None:
    """Refuses changes `(P, T, width)`, by what is done otherwise, that rounding cannot make.

    Those of a mixer of somebody else's at any position, of other models at `MOVED` of them.

    The size of an output is its largest number, or the mean of these over its prompt where that is
    larger. Below float32, where nothing is certified, only what is not finite is too much.
    """
    eps = max(torch.finfo(kind).eps for kind in (precision(circuit.model), torch.float32))
    sizes = outputs.abs().amax(dim=-1)
    size = torch.maximum(sizes, sizes.mean(dim=-1, keepdim=True))  # some are 1000 times as large
    config = circuit.model.config
    own = not isinstance(config, PretrainedConfig) and has_foreign(config.mixers)
    for how, change in changes.items():
        moved = change.abs().amax(dim=-1)
        wrong = ~(moved <= ROUNDS * eps * size)
        if wrong.any() and (own or wrong.float().mean() >= MOVED or not moved.isfinite().all()):
            p, t = wrong.nonzero()[0].tolist()
            raise RequestError(
                f"{circuit.name}: computed {how} the output of prompt {p} at position {t} differs "
                f"by {float(moved[p, t] / size[p, t]):.2g} of its size, which is no rounding; "
                "`python -m arch check` compares a model's step, prefix and chance"
            )
