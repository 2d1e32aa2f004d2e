"""Local geometry of a prompt: its Jacobian, and its basin of attraction; as tasks.

The Jacobian's singular values say which changes of the hidden tokens can be seen in the visible
outputs, and how well, if the visible tokens stay as they are. Directions that no output can show
are taken out first: a hidden token acts on others through a norm, which may remove its mean
(LayerNorm) or its length (both kinds, in the first block). They are not assumed but tested on the
Jacobian. The basin says how far from the truth a solver may start and still end there.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from eval import RequestError
from eval.circuit import Circuit
from eval.inversion.gradient.adam import adam
from eval.inversion.problem import Batch, pose
from eval.jacobian import linearise
from eval.models import Checkpoint, rows_at_once
from eval.ranks import effective_rank, participation
from eval.recovery import Slice
from eval.rows import Results, Row, row_key
from eval.text import Prompt

NULL = 1e-3  # of the largest singular value: a norm's direction that moves less counts as removed
POSITIONS = 2048  # sent through the circuit together on a CPU, at most
EXACT = 6  # times the memory of a pass with gradients: float64, and a graph of the gradient
Solve = Callable[[Tensor], Tensor]
"""Starts `(P, T, D)` in the space of embeddings to tokens `(P, T)`."""


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
    largest, squares = float(values[0]), float(values.square().sum())
    return Geometry(
        inputs=J.shape[1],
        removed=removed.shape[1],
        sigma_max=largest,
        sigma_min=smallest,
        condition=largest / smallest if smallest else None,
        frobenius=squares**0.5,
        stable_rank=squares / largest**2 if largest else 0.0,
        effective_rank=float(effective_rank(values)) if largest else 0.0,
        participation=float(participation(values)),
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


@torch.no_grad()
def basin(
    solve: Solve, circuit: Circuit, tokens: Tensor, radii: Sequence[float], seed: int = 0
) -> list[Tensor]:
    """Which tokens come out right, `(P, T)`, from starts at each of several distances.

    Args:
        solve: the solver, which knows its target already; called once a radius.
        circuit: whose embeddings are meant.
        tokens: the truth, `(P, T)`.
        radii: r; every token's embedding e is moved by r |e|, in the same direction for all r.
        seed: of the directions.
    """
    truth = circuit.embed(tokens)
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed)).to(truth)
    direction = noise / noise.norm(dim=-1, keepdim=True) * truth.norm(dim=-1, keepdim=True)
    return [solve(truth + r * direction) == tokens for r in radii]


def descend_from(circuit: Circuit, tokens: Tensor, hidden: int, steps: int) -> Solve:
    """The solver `adam`, from a start, towards the outputs of `(P, T)` tokens after the first k.

    It takes so many steps at most; a prompt that is solved earlier stops.
    """
    problem = pose(circuit, tokens, Slice(hidden))

    def solve(start: Tensor) -> Tensor:
        unused = [torch.Generator()] * len(tokens)  # nothing is drawn from a given start
        answers = adam(Batch((problem,)), unused, start=start, steps=steps)
        return torch.stack([answer.tokens for answer in answers])

    return solve


@dataclass(frozen=True)
class Local:
    """A task: a layer with k hidden tokens, on prompts of one length.

    Attributes:
        radii: distances that Adam starts from; none for no basins.
        steps: of Adam.
        seed: of the directions.
    """

    checkpoint: Checkpoint
    layer: int
    hidden: int
    prompts: tuple[Prompt, ...]
    radii: tuple[float, ...]
    steps: int
    seed: int

    @property
    def cost(self) -> float:
        """How long it is likely to take, in tokens sent through a block."""
        T = len(self.prompts[0].tokens)
        outputs = (T - self.hidden) * self.checkpoint.config.d_model
        return len(self.prompts) * T * self.layer * (outputs + self.steps * len(self.radii))

    @property
    def keys(self) -> list[str]:
        """The rows' keys: a prompt's geometry, then its basins."""
        return [key for prompt in self.prompts for key in self._keys(prompt)]

    def run(self, results: Results) -> list[Row]:
        """For every prompt one row of kind geometry, and one of kind basin for each radius."""
        model, several = self.checkpoint.model, [prompt.tokens for prompt in self.prompts]
        tokens = torch.tensor(several, device=model.embedding.weight.device)
        circuit = Circuit(model, self.layer)
        rows: list[Row] = []
        for prompt, ids in zip(self.prompts, tokens, strict=True):
            started = time.perf_counter()
            figures = asdict(local_geometry(circuit, ids, self.hidden))
            rows.append(self._row("geometry", prompt, 0, time.perf_counter() - started, figures))
        started = time.perf_counter()
        solve = descend_from(circuit, tokens, self.hidden, self.steps)
        ends = basin(solve, circuit, tokens, self.radii, self.seed)
        each = (time.perf_counter() - started) / max(1, len(self.radii) * len(self.prompts))
        for i, (radius, end) in enumerate(zip(self.radii, ends, strict=True), start=1):
            for prompt, right in zip(self.prompts, end.float().cpu(), strict=True):
                figures = {
                    "method": "adam",
                    "settings": {"steps": self.steps},
                    "seed": self.seed,
                    "radius": radius,
                    "exact": bool(right.all()),
                    "self": float(right[self.hidden :].mean()),
                    "nonself": float(right[: self.hidden].mean()),
                }
                rows.append(self._row("basin", prompt, i, each, figures))
        return rows

    def _row(
        self, kind: str, prompt: Prompt, number: int, seconds: float, figures: dict[str, Any]
    ) -> Row:
        return {
            "key": self._keys(prompt)[number],
            "kind": kind,
            "checkpoint": self.checkpoint.provenance,
            "site": {"layer": self.layer, "part": "block"},
            "length": len(prompt.tokens),
            "hidden": self.hidden,
            "prompts": prompt.kind,
            "prompt": prompt.index,
            "truth": list(prompt.tokens),
            **figures,
            "seconds": round(seconds, 4),
        }

    def _keys(self, prompt: Prompt) -> list[str]:
        about = [*self.checkpoint.identity, self.layer, self.hidden, prompt.tokens]
        basins = [row_key(*about, "basin", r, self.steps, self.seed) for r in self.radii]
        return [row_key(*about, "geometry"), *basins]


def plan_local(
    checkpoint: Checkpoint,
    layers: tuple[int, ...],
    hidden: Sequence[int],
    prompts: Sequence[Prompt],
    radii: Sequence[float],
    steps: int,
    seed: int,
) -> list[Local]:
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
    several = tuple(prompts), tuple(radii)
    return [Local(checkpoint, layer, k, *several, steps, seed) for layer in layers for k in hidden]


def _check_hidden(hidden: int, length: int) -> None:
    if not 1 <= hidden < length:
        raise RequestError(
            f"--hidden {hidden}: a prompt of {length} tokens can hide 1 to {length - 1}"
        )
