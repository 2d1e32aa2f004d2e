"""The Jacobian of a prompt: which changes of the hidden tokens the visible outputs show; as tasks.

Its singular values say how well each change can be seen, if the visible tokens stay as they are.
Directions that no output can show are taken out first: a hidden token acts on others through a
norm, which may remove its mean (LayerNorm) or its length (both kinds, in the first block). They are
not assumed but tested on the Jacobian.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from eval import RequestError
from eval.circuit import Circuit
from eval.models import Checkpoint, rows_at_once
from eval.ranks import effective_rank
from eval.rows import Results, Row, row_key
from eval.text import Prompt

NULL = 1e-3  # of the largest singular value: a norm's direction that moves less counts as removed
POSITIONS = 2048  # sent through the circuit together on a CPU, at most
EXACT = 6  # times the memory of a pass with gradients: float64, and a graph of the gradient


@dataclass(frozen=True)
class Geometry:
    """The Jacobian of one prompt in units that compare models.

    Lengths of outputs are in root mean squares of the visible outputs' entries, those of inputs in
    standard deviations of the embedding's: a gain of 1 moves the outputs by as many of theirs.

    Attributes:
        inputs: hidden features, k x D.
        removed: directions of them that the norms remove.
        sigma_max: largest singular value: the greatest gain.
        sigma_min: smallest one off the removed directions; 0 if there are fewer outputs.
        condition: their ratio; None if the smallest is 0.
        effective_rank: exp of the entropy of the singular values' shares (Roy & Vetterli, 2007).
    """

    inputs: int
    removed: int
    sigma_max: float
    sigma_min: float
    condition: float | None
    effective_rank: float


def local_geometry(circuit: Circuit, tokens: Tensor, hidden: int) -> Geometry:
    """Measures the map from the first `hidden` tokens to the other positions' outputs, in float64.

    Args:
        circuit: any site.
        tokens: one prompt, `(T,)`.
        hidden: k, from 1 to T - 1.

    Raises:
        RequestError: k out of range, or outputs that are not finite.
    """
    _check_hidden(hidden, len(tokens))
    exact = circuit.exact
    embeddings = exact.model.embed(tokens)
    outputs = exact(embeddings[None])[0, hidden:]
    if not outputs.isfinite().all():
        raise RequestError(f"layer {circuit.layers} gives numbers that are not finite")
    unit = float(exact.scale / outputs.square().mean().sqrt())
    J = jacobian(exact, embeddings, hidden) * unit
    removed = _removed(J, embeddings[:hidden])
    J = J - (J @ removed) @ removed.T
    dimensions = J.shape[1] - removed.shape[1]
    values = torch.linalg.svdvals(J)[:dimensions]
    smallest = float(values[-1]) if len(values) == dimensions else 0.0
    largest = float(values[0])
    return Geometry(
        inputs=J.shape[1],
        removed=removed.shape[1],
        sigma_max=largest,
        sigma_min=smallest,
        condition=largest / smallest if smallest else None,
        effective_rank=float(effective_rank(values)) if largest else 0.0,
    )


def jacobian(circuit: Circuit, embeddings: Tensor, hidden: int) -> Tensor:
    """Derivative of the visible outputs by the hidden embeddings, `((T - k) F, k D)`.

    Of one prompt's `(T, D)` embeddings, the first k of them hidden. By columns or by rows,
    whichever are fewer: one of a batch of equal prompts for each, and exact products with it.
    """
    T, D = embeddings.shape
    inputs, outputs = hidden * D, (T - hidden) * circuit.width

    def visible(free: Tensor) -> Tensor:
        rest = embeddings[hidden:].detach().expand(len(free), -1, -1)
        free = free.unflatten(1, (hidden, D))
        return circuit(torch.cat([free, rest], dim=1))[:, hidden:].flatten(1)

    parts = []
    rows = rows_at_once(circuit.model, EXACT * T, most=max(1, POSITIONS // T))
    for units in torch.eye(min(inputs, outputs)).to(embeddings).split(rows):
        near = linearise(visible, embeddings[:hidden].flatten().expand(len(units), -1))
        parts.append(near.forward(units) if inputs < outputs else near.backward(units))
    return torch.cat(parts).T if inputs < outputs else torch.cat(parts)


def _removed(J: Tensor, embeddings: Tensor) -> Tensor:
    """Orthonormal directions of the hidden `(k, D)` embeddings that norms remove, `(k D, R)`."""
    k, D = embeddings.shape
    bound = NULL * torch.linalg.matrix_norm(J, ord=2)
    columns = []
    for i, e in enumerate(embeddings):
        for direction in (torch.ones_like(e), e - e.mean(), e):
            column = torch.zeros(k, D).to(J)
            column[i] = direction / direction.norm().clamp(min=1e-30)
            if (J @ column.flatten()).norm() <= bound:
                columns.append(column.flatten())
    if not columns:
        return J.new_zeros(k * D, 0)
    basis, values, _ = torch.linalg.svd(torch.stack(columns, dim=1), full_matrices=False)
    return basis[:, values > 1e-6]


@dataclass(frozen=True)
class JacobianTask:
    """A task: a layer with k hidden tokens, on prompts of one length."""

    checkpoint: Checkpoint
    layer: int
    hidden: int
    prompts: tuple[Prompt, ...]

    @property
    def keys(self) -> list[str]:
        """The rows' keys, by prompt."""
        about = [*self.checkpoint.identity, self.layer, self.hidden]
        return [row_key(*about, prompt.tokens, "geometry") for prompt in self.prompts]

    def run(self, results: Results) -> list[Row]:
        """A row of kind geometry for every prompt."""
        model, rows = self.checkpoint.model, []
        circuit = Circuit(model, self.layer)
        for key, prompt in zip(self.keys, self.prompts, strict=True):
            started = time.perf_counter()
            tokens = torch.tensor(prompt.tokens, device=model.embedding.weight.device)
            figures = asdict(local_geometry(circuit, tokens, self.hidden))
            rows.append(
                {
                    "key": key,
                    "kind": "geometry",
                    "checkpoint": self.checkpoint.provenance,
                    "site": {"layer": self.layer, "part": "block"},
                    "length": len(prompt.tokens),
                    "hidden": self.hidden,
                    "prompts": prompt.kind,
                    "prompt": prompt.index,
                    "truth": list(prompt.tokens),
                    **figures,
                    "seconds": round(time.perf_counter() - started, 4),
                }
            )
        return rows


def plan_jacobians(
    checkpoint: Checkpoint,
    layers: tuple[int, ...],
    hidden: Sequence[int],
    prompts: Sequence[Prompt],
) -> list[JacobianTask]:
    """The work that a checkpoint makes.

    Raises:
        RequestError: a prompt too long, or as many hidden tokens as it has.
    """
    length = len(prompts[0].tokens)
    checkpoint.check_length(length)
    for k in hidden:
        _check_hidden(k, length)
    if 0 in layers:
        raise RequestError(
            "--layers 0: an embedding shows nothing of other positions; give 1 or more"
        )
    return [JacobianTask(checkpoint, layer, k, tuple(prompts)) for layer in layers for k in hidden]


def _check_hidden(hidden: int, length: int) -> None:
    if not 1 <= hidden < length:
        raise RequestError(
            f"--hidden {hidden}: a prompt of {length} tokens can hide 1 to {length - 1}"
        )


class Linear(NamedTuple):
    """A function near one point.

    Attributes:
        forward: J p, in the shape of the function's value, for p in the point's.
        backward: J' u, in the point's shape, for u in the value's.
    """

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor], Tensor]


def linearise(function: Callable[[Tensor], Tensor], point: Tensor) -> Linear:
    """Evaluates a function once, and keeps what products with its Jacobian J need.

    J' u is linear in u, so its gradient by u in the direction p is J p: the backward pass of a
    backward pass.
    """
    # The fused kinds of attention have no gradient of a gradient.
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        x = point.detach().requires_grad_()
        value = function(x)
        u = torch.zeros_like(value).requires_grad_()
        (pulled,) = torch.autograd.grad(value, x, u, create_graph=True)

    def forward(p: Tensor) -> Tensor:
        return torch.autograd.grad(pulled, u, p, retain_graph=True)[0]

    def backward(u: Tensor) -> Tensor:
        return torch.autograd.grad(value, x, u, retain_graph=True)[0]

    return Linear(forward, backward)
