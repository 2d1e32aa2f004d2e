"""The Jacobian of a prompt: which changes of the hidden tokens the visible outputs show; as tasks.

Its singular values say how well each change can be seen, if the visible tokens stay as they are.
Directions that no output can show are taken out first: a hidden token acts on others through a
norm, which may remove its mean (LayerNorm) or its length (both kinds, in the first block). Where
positions are learnt, that is the length of embedding and position together. The directions are not
assumed but tested on the Jacobian.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from arch import LanguageModel
from eval.measures.ranks import effective_rank
from eval.messages import RequestError
from eval.models.checkpoint import Checkpoint
from eval.models.memory import rows_at_once
from eval.models.text import Prompt
from eval.rows.store import Results, Row, row_key
from eval.sites.circuit import Circuit

NULL = 1e-3  # of the largest singular value: a norm's direction that moves less counts as removed
POSITIONS = 2048  # sent through the circuit together on a CPU, at most
EXACT = 6  # times the memory of a pass with gradients: float64, and a graph of the gradient


class NoSingle(TorchFunctionMode):
    """Casts to float32 give float64: norms of transformers cast whatever they are given."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the function with float64 in the place of float32."""
        func = torch.Tensor.double if func is torch.Tensor.float else func
        args = [torch.float64 if value is torch.float32 else value for value in args]
        for name, value in (kwargs := dict(kwargs or {})).items():
            kwargs[name] = torch.float64 if value is torch.float32 else value
        return func(*args, **kwargs)


def exact(circuit: Circuit) -> Circuit:
    """The circuit in float64; experts of transformers run one by one, as fused ones have none."""

    def widen() -> LanguageModel:
        model = copy.deepcopy(circuit.model).double()
        for config in (getattr(part, "config", None) for part in model.modules()):
            if hasattr(config, "_experts_implementation"):
                setattr(config, "_experts_implementation", "eager")  # noqa: B010 - not declared
        return model

    return replace(circuit, model=circuit.model.keep("exact", widen))


def local_geometry(circuit: Circuit, tokens: Tensor, hidden: int) -> dict[str, Any]:
    """Measures the map from the first `hidden` tokens to the other positions' outputs, in float64.

    Args:
        circuit: any site.
        tokens: one prompt, `(T,)`.
        hidden: k, from 1 to T - 1.

    Returns:
        `inputs`: hidden features, k x D; `removed`: directions of them that the norms remove;
        `sigma_max`: the greatest gain; `sigma_min`: the smallest one off the removed directions, 0
        if there are fewer outputs; `condition`: their ratio, None if the smallest is 0; and
        `effective_rank` (Roy & Vetterli, 2007). Lengths of outputs are in root mean squares of the
        visible outputs' entries, those of inputs in standard deviations of the embedding's, so that
        models compare: a gain of 1 moves the outputs by as many of theirs.

    Raises:
        RequestError: outputs that are not finite.
    """
    wide = exact(circuit)
    with NoSingle():
        embeddings = wide.model.embed(tokens)
        outputs = wide(embeddings[None])[0, hidden:]
        if not outputs.isfinite().all():
            raise RequestError(f"layer {circuit.depth} gives numbers that are not finite")
        unit = float(wide.scale / outputs.square().mean().sqrt())
        J = jacobian(wide, embeddings, hidden) * unit
        read = wide.model.with_positions(embeddings[None])[0]
    removed = _removed(J, embeddings[:hidden], read[:hidden])
    J = J - (J @ removed) @ removed.T
    dimensions = J.shape[1] - removed.shape[1]
    values = torch.linalg.svdvals(J)[:dimensions]
    smallest = float(values[-1]) if len(values) == dimensions else 0.0
    largest = float(values[0])
    return {
        "inputs": J.shape[1],
        "removed": removed.shape[1],
        "sigma_max": largest,
        "sigma_min": smallest,
        "condition": largest / smallest if smallest else None,
        "effective_rank": float(effective_rank(values)) if largest else 0.0,
    }


def jacobian(circuit: Circuit, embeddings: Tensor, hidden: int) -> Tensor:
    """Derivative of the visible outputs by the hidden embeddings, `((T - k) F, k D)`.

    Of one prompt's `(T, D)` embeddings, the first k of them hidden. By columns or by rows,
    whichever are fewer: one of a batch of equal prompts for each, and exact products with it. J' u
    is linear in u, so its gradient by u in the direction p is J p: a backward pass of a backward
    pass.
    """
    T, D = embeddings.shape
    inputs, outputs = hidden * D, (T - hidden) * circuit.width
    parts = []
    rows = rows_at_once(circuit.model, EXACT * T, most=max(1, POSITIONS // T))
    for units in torch.eye(min(inputs, outputs)).to(embeddings).split(rows):
        # The fused kinds of attention have no gradient of a gradient.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            every = embeddings.detach().repeat(len(units), 1, 1)
            free = every[:, :hidden].clone().requires_grad_()
            visible = circuit(torch.cat([free, every[:, hidden:]], dim=1))[:, hidden:].flatten(1)
            if inputs < outputs:
                u = torch.zeros_like(visible).requires_grad_()
                (pulled,) = torch.autograd.grad(visible, free, u, create_graph=True)
                parts += torch.autograd.grad(pulled.flatten(1), u, units)
            else:
                parts += [part.flatten(1) for part in torch.autograd.grad(visible, free, units)]
    return torch.cat(parts).T if inputs < outputs else torch.cat(parts)


def _removed(J: Tensor, embeddings: Tensor, read: Tensor) -> Tensor:
    """Orthonormal directions of the hidden `(k, D)` embeddings that norms remove, `(k D, R)`.

    The first block reads `(k, D)`: the same, or with positions.
    """
    k, D = embeddings.shape
    bound = NULL * torch.linalg.matrix_norm(J, ord=2)
    columns = []
    for i, (e, x) in enumerate(zip(embeddings, read, strict=True)):
        for direction in (torch.ones_like(e), e - e.mean(), e, x - x.mean(), x):
            column = torch.zeros(k, D).to(J)
            column[i] = direction / direction.norm().clamp(min=1e-30)
            if (J @ column.flatten()).norm() <= bound:
                columns.append(column.flatten())
    if not columns:
        return J.new_zeros(k * D, 0)
    basis, values, _ = torch.linalg.svd(torch.stack(columns, dim=1), full_matrices=False)
    return basis[:, values > NULL]  # directions that nearly agree count once


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
            figures = local_geometry(circuit, tokens, self.hidden)
            rows.append(
                {
                    "key": key,
                    "kind": "geometry",
                    "checkpoint": self.checkpoint.provenance,
                    "site": {"layer": self.layer, "part": "block"},
                    "length": len(prompt.tokens),
                    "hidden": self.hidden,
                    "prompts": prompt.kind,
                    "corpus": prompt.corpus,
                    "prompt": prompt.index,
                    "truth": list(prompt.tokens),
                    **figures,
                    "seconds": round(time.perf_counter() - started, 4),
                }
            )
        return rows


def plan_jacobians(
    checkpoint: Checkpoint,
    layers: Sequence[int],
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
        if k < 1 or k >= length:
            raise RequestError(
                f"--hidden {k}: a prompt of {length} tokens can hide 1 to {length - 1}"
            )
    if 0 in layers:
        raise RequestError(
            "--layers 0: an embedding shows nothing of other positions; give 1 or more"
        )
    return [JacobianTask(checkpoint, layer, k, tuple(prompts)) for layer in layers for k in hidden]
