"""The way of a position through the layers, seen on the plane of two tokens' directions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eval import plots
from eval.lenses import markup
from eval.lenses.lens import Documents, Finding, Request, lens, model_name, word_tokens
from eval.lenses.trace import gather, readers
from eval.models import Checkpoint

MEASURES = ("x", "y", "share")


def plane(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The plane of two directions `(D,)`, which are not multiples of each other.

    Returns:
        Two orthonormal directions, `(2, D)`, the first one that of the first; where the two given
        directions lie on it, `(2, 2)`.
    """
    pair = torch.stack([first, second]).double()
    along = pair[0] / pair[0].norm()
    across = pair[1] - (pair[1] @ along) * along
    basis = torch.stack([along, across / across.norm().clamp(min=1e-30)])
    return basis, pair @ basis.T


def path(vectors: Tensor, basis: Tensor) -> Tensor:
    """Vectors of one position by layer, `(L, D)`, as a plane shows them: `MEASURES`, `(L, 3)`.

    Coordinates, and the share of the squared length that lies in the plane.
    """
    x = vectors.double()
    points = x @ basis.T
    share = points.square().sum(dim=1) / x.norm(dim=1).clamp(min=1e-30).square()
    return torch.column_stack([points, share])


def toward(streams: Tensor, directions: Tensor) -> Tensor:
    """Cosine of streams `(L, N, D)` with the direction of each position `(N, D)`: `(L, N)`."""
    return F.cosine_similarity(streams.float(), directions[None].float(), dim=-1)


def _draw(documents: Documents) -> list[plots.Figure]:
    rows: list[plots.Record] = []
    for document in documents:
        model = model_name(document)
        steps = _points(documents, model, "path", "layer")
        rows += [step | {"mark": str(step["layer"])} for step in steps]
        ends = _points(documents, model, "corners", "token")
        prompts = plots.options(ends, "prompt")
        for end in ends:
            pair = document["notes"]["pairs"][prompts.index(end["prompt"])]
            name = pair[0 if end.pop("token") == "first" else 1]
            rows.append(end | {"end": markup.visible(name)})
    share = {"field": "share", "type": "quantitative", "format": ".3f"}
    way = {
        "order": {"field": "layer", "type": "quantitative"},
        "tooltip": [{"field": "layer"}, share | {"title": "share in the plane"}],
    }
    corner = {"tooltip": [{"field": name} for name in ("end", "x", "y")]}
    on_way, at_ends = ([{"filter": f"isValid(datum.{of})"}] for of in ("layer", "end"))
    diamond = {"type": "point", "shape": "diamond", "size": 120, "filled": True,
               "color": plots.SERIES[1]}  # fmt: skip
    named = {"type": "text", "dy": 16, "fontWeight": "bold"}
    layers = [
        (on_way, {"type": "line", "point": {"size": 50}}, way),
        (on_way, {"type": "text", "dy": -10}, way | {"text": {"field": "mark"}}),
        (at_ends, diamond, corner),
        (at_ends, named, corner | {"text": {"field": "end"}}),
    ]
    chart = {
        "data": plots.data(rows),
        "width": 420,
        "height": 420,
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": "along the first token"},
            "y": {"field": "y", "type": "quantitative", "title": "across it"},
        },
        "layer": [{"transform": t, "mark": m, "encoding": e} for t, m, e in layers],
    }
    return [
        plots.Figure(
            "path-plane",
            "How does the last position get to its answer?",
            "Its vector after each layer, on the plane of two tokens' output directions "
            "(diamonds): the answer and the runner-up.",
            plots.chosen(chart, rows, "model", "prompt"),
        )
    ]


def _points(documents: Documents, model: str, array: str, label: str) -> list[plots.Record]:
    """A record for each prompt and label of a model, which has all measures."""
    points: dict[tuple[str, Any], plots.Record] = {}
    for r in documents.records(array, model=model):
        place = {name: r[name] for name in ("model", "prompt", label)}
        points.setdefault((r["prompt"], r[label]), place)[r["measure"]] = r["value"]
    return list(points.values())


@lens("path", "The way to the answer", figures=_draw, order=7)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """A position's way through the layers, on the plane of two tokens."""
    batch, model = gather(checkpoint, request.prompts), checkpoint.model
    streams, rows = batch.streams, readers(model).float()
    logits = model.logits(streams[-1])
    chosen = list(word_tokens(checkpoint, request.words).values())[:2]
    points, corners, pairs = [], [], []
    for prompt, last in enumerate(batch.last.tolist()):
        best = logits[prompt, last].topk(3).indices.tolist()
        pair = [*chosen, *(token for token in best if token not in chosen)][:2]
        basis, ends = plane(rows[pair[0]], rows[pair[1]])
        points.append(path(streams[:, prompt, last], basis))
        corners.append(ends)
        pairs.append(checkpoint.pieces(pair))
    finding, where, layers = Finding(notes={"pairs": pairs}), batch.labels, range(len(streams))
    axes = {"prompt": where, "layer": layers, "measure": MEASURES}
    finding.array("path", torch.stack(points), axes)
    axes = {"prompt": where, "token": ("first", "second"), "measure": MEASURES[:2]}
    finding.array("corners", torch.stack(corners), axes)
    answers = logits[batch.real].argmax(dim=-1)
    others = answers.roll(len(answers) // 2)
    kept = streams[:, batch.real]
    means = torch.stack([toward(kept, rows[t]).mean(dim=1) for t in (answers, others)])
    axes = {"answer": ("its answer", "another's"), "layer": layers}
    finding.rows("cosine with answer", means, axes)
    return finding
