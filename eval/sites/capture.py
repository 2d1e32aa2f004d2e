"""Outputs of a circuit for tokens, and how far rounding moves each number of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eval.messages import RequestError
from eval.models.memory import rows_at_once
from eval.sites.circuit import Circuit, join, precision

STEPPED = 64  # candidates among which a prompt's next position is run where floors are measured
REPEATED = 3  # times that the prompts of a pass are run there in another one


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
        RequestError: prompts longer than the context, or outputs that are not finite.
    """
    whole, cut = join(circuits)
    context = whole.model.config.context
    if tokens.shape[1] > context:
        raise RequestError(
            f"a prompt of {tokens.shape[1]} tokens is longer than the model's context of {context};"
            " give a shorter one"
        )
    # a pass of `_rounding` has each prompt three times, or 64 candidates for its next position
    size = max(REPEATED * tokens.shape[1], STEPPED)
    parts = tokens.split(rows_at_once(whole.model, size, most=1 << 30, gradients=False))
    outputs = torch.cat([whole.of_tokens(part) for part in parts])
    if not outputs.isfinite().all():
        raise RequestError(f"outputs up to layer {whole.depth} have numbers that are not finite")
    rounded = outputs.split([len(part) for part in parts])
    rounding = torch.cat([_rounding(whole, *each) for each in zip(parts, rounded, strict=True)])
    return list(zip(cut(outputs), cut(rounding), strict=True))


def _rounding(circuit: Circuit, tokens: Tensor, outputs: Tensor) -> Tensor:
    """The largest change of each output when it is computed in another way, `(P, T, width)`."""
    P, T = tokens.shape
    shuffled = circuit.of_tokens(tokens.flip(0).repeat(REPEATED, 1))[:P].flip(0)
    changes = [torch.finfo(precision(circuit.model)).eps * outputs, shuffled - outputs]
    if circuit.causal:
        stepped, state = [], None
        for t in range(T):
            candidates = circuit.embed(tokens[:, t].repeat_interleave(STEPPED))[:, None]
            stepped.append(circuit.step(candidates, state)[::STEPPED].clone())
            state = circuit.prefix(tokens[:, t : t + 1], state)
        changes.append(torch.cat(stepped, dim=1) - outputs)
    return torch.stack(changes).abs().amax(dim=0)
