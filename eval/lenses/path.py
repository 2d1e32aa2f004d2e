"""The way of a position through the layers, seen on the plane of two tokens' directions.

python -m eval lens DIR --lens path --words " dog" " cat" --out results
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.checkpoints import Checkpoint
from eval.lenses.lens import Finding, Lens, Request
from eval.lenses.named import Named
from eval.lenses.readout import readers
from eval.lenses.trace import gather, trace
from eval.lenses.words import word_tokens

MEASURES = ("x", "y", "share", "cosine first", "cosine second", "length")


class Plane(NamedTuple):
    """A plane through the origin.

    Attributes:
        basis: two orthonormal directions, `(2, D)`; the first is the first token's own.
        tokens: where the two tokens' directions lie on it, `(2, 2)`.
    """

    basis: Tensor
    tokens: Tensor


class Path(NamedTuple):
    """A way through the layers.

    Attributes:
        points: coordinates on the plane, `(L, 2)`.
        share: of the vector's squared length that lies in the plane, `(L,)`.
        cosine: with each of the two directions, `(L, 2)`.
        length: of the whole vector, `(L,)`.
    """

    points: Tensor
    share: Tensor
    cosine: Tensor
    length: Tensor


def plane(first: Tensor, second: Tensor) -> Plane:
    """The plane of two directions `(D,)`, which are not multiples of each other."""
    pair = torch.stack([first, second]).double()
    along = pair[0] / pair[0].norm()
    across = pair[1] - (pair[1] @ along) * along
    basis = torch.stack([along, across / across.norm().clamp(min=1e-30)])
    return Plane(basis, pair @ basis.T)


def path(vectors: Tensor, flat: Plane) -> Path:
    """Vectors of one position by layer, `(L, D)`, as the plane shows them."""
    x = vectors.double()
    points, length = x @ flat.basis.T, x.norm(dim=1)
    toward = flat.tokens / flat.tokens.norm(dim=1, keepdim=True)
    clear = length.clamp(min=1e-30)
    share = points.square().sum(dim=1) / clear.square()
    return Path(points, share, points @ toward.T / clear[:, None], length)


def toward(streams: Tensor, directions: Tensor) -> Tensor:
    """Cosine of streams `(L, N, D)` with each position's own direction `(N, D)`: `(L, N)`."""
    return F.cosine_similarity(streams.float(), directions[None].float(), dim=-1)


def _find(checkpoint: Checkpoint, request: Request) -> Finding:
    batch = gather(checkpoint, request.prompts)
    streams = trace(checkpoint.model, batch.tokens).streams
    rows = readers(checkpoint.model).float()
    with torch.no_grad():
        logits = checkpoint.model.logits(streams[-1])
    chosen = list(word_tokens(checkpoint, request.words).values())[:2]
    points, corners, pairs = [], [], []
    for prompt, last in enumerate(batch.last.tolist()):
        best = logits[prompt, last].topk(3).indices.tolist()
        pair = [*chosen, *(token for token in best if token not in chosen)][:2]
        flat = plane(rows[pair[0]], rows[pair[1]])
        way = path(streams[:, prompt, last], flat)
        points.append(torch.column_stack([way.points, way.share, way.cosine, way.length]))
        corners.append(flat.tokens)
        pairs.append(checkpoint.pieces(pair))
    answers = logits[batch.real].argmax(dim=-1)
    kept = streams[:, batch.real]
    layers = range(len(streams))
    figures: list[dict[str, Any]] = []
    for name, tokens in (("its answer", answers), ("another's", answers.roll(len(answers) // 2))):
        for layer, value in enumerate(toward(kept, rows[tokens]).mean(dim=1).tolist()):
            figures.append(
                {"figure": "cosine with answer", "layer": layer, "answer": name, "value": value}
            )
    where = {"prompt": batch.labels}
    return Finding(
        arrays={
            "path": Named(torch.stack(points), {**where, "layer": layers, "measure": MEASURES}),
            "corners": Named(
                torch.stack(corners), {**where, "token": ("first", "second"), "measure": ("x", "y")}
            ),
        },
        figures=figures,
        notes={"pairs": pairs},
    )


PATH = Lens("path", "a position's way through the layers, on the plane of two tokens", _find)
