"""Local geometry: how the visible outputs move when the embeddings of hidden tokens do.

The Jacobian's singular values say which changes of the hidden tokens can be seen, and how well, if
the visible tokens stay as they are. What no output can show is taken out first: a hidden token acts
on others through a norm, which may remove its mean (LayerNorm) or its length (both kinds, in the
first block). Such directions are not assumed but tested on the Jacobian.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.errors import RequestError
from eval.jacobian import linearise
from eval.models import rows_at_once
from eval.ranks import effective_rank, participation

NULL = 1e-3  # of the largest singular value: a norm's direction that moves less counts as removed
POSITIONS = 2048  # sent through the circuit together on a CPU, at most


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
        frobenius: root of the sum of all squares.
        stable_rank: (frobenius / sigma_max)^2.
        effective_rank: exp of the entropy of the singular values' shares (Roy & Vetterli, 2007).
        participation: (sum of squares)^2 / sum of fourth powers.
    """

    inputs: int
    removed: int
    sigma_max: float
    sigma_min: float
    condition: float | None
    frobenius: float
    stable_rank: float
    effective_rank: float
    participation: float


def local_geometry(circuit: Circuit, tokens: Tensor, hidden: int) -> Geometry:
    """Measures the map from the first `hidden` tokens to the other positions' outputs, in float64.

    Args:
        circuit: any site.
        tokens: one prompt, `(T,)`.
        hidden: k, from 1 to T - 1.

    Raises:
        RequestError: k out of range, or outputs that are not finite.
    """
    if not 1 <= hidden < len(tokens):
        raise RequestError(
            f"--hidden {hidden}: a prompt of {len(tokens)} tokens can hide 1 to {len(tokens) - 1}"
        )
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
    largest, squares = float(values[0]), values.square()
    if not largest:
        return Geometry(J.shape[1], removed.shape[1], 0.0, 0.0, None, 0.0, 0.0, 0.0, 0.0)
    return Geometry(
        inputs=J.shape[1],
        removed=removed.shape[1],
        sigma_max=largest,
        sigma_min=smallest,
        condition=largest / smallest if smallest else None,
        frobenius=float(squares.sum().sqrt()),
        stable_rank=float(squares.sum()) / largest**2,
        effective_rank=float(effective_rank(values)),
        participation=float(participation(values)),
    )


def jacobian(circuit: Circuit, embeddings: Tensor, hidden: int) -> Tensor:
    """Derivative of the visible outputs by the hidden embeddings, `((T - k) F, k D)`.

    By columns or by rows, whichever are fewer: one of a batch of equal prompts for each, and exact
    products with it.

    Args:
        circuit: any site.
        embeddings: one prompt's, `(T, D)`.
        hidden: k.
    """
    T, D = embeddings.shape
    inputs, outputs = hidden * D, (T - hidden) * circuit.width

    def visible(free: Tensor) -> Tensor:
        rest = embeddings[hidden:].detach().expand(len(free), -1, -1)
        free = free.unflatten(1, (hidden, D))
        return circuit(torch.cat([free, rest], dim=1))[:, hidden:].flatten(1)

    parts = []
    rows = max(1, rows_at_once(circuit.model, 1, POSITIONS) // T)
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
