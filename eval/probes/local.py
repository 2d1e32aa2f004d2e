"""What surrounds a prompt in a site: its Jacobian, and its basin of attraction; as tasks.

The basin says how far from the truth a solver may start and still end there.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.errors import RequestError
from eval.inversion.batch import Batch
from eval.inversion.gradient.adam import adam
from eval.inversion.problem import pose
from eval.models import Checkpoint
from eval.probes.geometry import local_geometry
from eval.rows import Results, Row, row_key
from eval.slices import Slice
from eval.text import Prompt

Solve = Callable[[Tensor], Tensor]
"""Starts `(P, T, D)` in the space of embeddings to tokens `(P, T)`."""


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
    """The solver `adam` towards the outputs after the first `hidden` positions, from a start.

    Args:
        circuit: any site.
        tokens: the truth, `(P, T)`.
        hidden: k.
        steps: the most that it takes; a prompt that is solved earlier stops.
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
        model = self.checkpoint.model
        tokens = torch.tensor(
            [p.tokens for p in self.prompts], device=model.embedding.weight.device
        )
        circuit = Circuit(model, self.layer)
        rows: list[Row] = []
        for prompt, ids in zip(self.prompts, tokens, strict=True):
            started = time.perf_counter()
            figures = asdict(local_geometry(circuit, ids, self.hidden))
            seconds = round(time.perf_counter() - started, 4)
            about = self._about(self._keys(prompt)[0], "geometry", prompt)
            rows.append({**about, **figures, "seconds": seconds})
        started = time.perf_counter()
        solve = descend_from(circuit, tokens, self.hidden, self.steps)
        ends = basin(solve, circuit, tokens, self.radii, self.seed)
        each = (time.perf_counter() - started) / max(1, len(self.radii) * len(self.prompts))
        for i, (radius, end) in enumerate(zip(self.radii, ends, strict=True), start=1):
            for prompt, right in zip(self.prompts, end.float().cpu(), strict=True):
                about = self._about(self._keys(prompt)[i], "basin", prompt)
                rows.append(
                    {
                        **about,
                        "method": "adam",
                        "settings": {"steps": self.steps},
                        "seed": self.seed,
                        "radius": radius,
                        "exact": bool(right.all()),
                        "self": float(right[self.hidden :].mean()),
                        "nonself": float(right[: self.hidden].mean()),
                        "seconds": round(each, 4),
                    }
                )
        return rows

    def _about(self, key: str, kind: str, prompt: Prompt) -> Row:
        return {
            "key": key,
            "kind": kind,
            "checkpoint": self.checkpoint.provenance,
            "site": {"layer": self.layer, "part": "block"},
            "length": len(prompt.tokens),
            "hidden": self.hidden,
            "prompts": prompt.kind,
            "prompt": prompt.index,
            "truth": list(prompt.tokens),
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
        if not 1 <= k < length:
            raise RequestError(
                f"--hidden {k}: a prompt of {length} tokens can hide 1 to {length - 1}"
            )
    for layer in layers:
        if layer == 0:
            raise RequestError(
                "--layers 0: an embedding shows nothing of other positions; give 1 or more"
            )
    return [
        Local(checkpoint, layer, k, tuple(prompts), tuple(radii), steps, seed)
        for layer in layers
        for k in hidden
    ]
