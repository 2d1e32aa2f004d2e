"""The way of a position through the layers, seen on the plane of two tokens' directions.

python -m eval lens DIR --lens path --words " dog" " cat" --out results
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from eval import plots
from eval.checkpoints import Checkpoint
from eval.lenses import markup
from eval.lenses.documents import Document, records
from eval.lenses.lens import Finding, Request, lens
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


def draw(documents: Sequence[Document]) -> list[plots.Figure]:
    """The last position's way on the plane of two tokens."""
    import altair as alt

    found: list[plots.Record] = []
    for document in documents:
        steps: dict[tuple[str, int], plots.Record] = {}
        for r in records([document], "path"):
            step = {"model": r["model"], "prompt": r["prompt"], "layer": r["layer"]}
            steps.setdefault((r["prompt"], r["layer"]), step)[r["measure"]] = r["value"]
        found += [step | {"mark": str(step["layer"])} for step in steps.values()]
        ends: dict[tuple[str, str], plots.Record] = {}
        prompts = plots.options(records([document], "corners"), "prompt")
        for r in records([document], "corners"):
            pair = document["notes"]["pairs"][prompts.index(r["prompt"])]
            name = markup.visible(pair[0 if r["token"] == "first" else 1])
            end = {"model": r["model"], "prompt": r["prompt"], "end": name}
            ends.setdefault((r["prompt"], r["token"]), end)[r["measure"]] = r["value"]
        found += ends.values()
    base = alt.Chart(plots.data(found)).encode(
        x=alt.X("x:Q", title="along the first token"), y=alt.Y("y:Q", title="across it")
    )
    way = base.transform_filter("isValid(datum.layer)").encode(
        order="layer:Q",
        tooltip=["layer:O", alt.Tooltip("share:Q", title="share in the plane", format=".3f")],
    )
    corners = base.transform_filter("isValid(datum.end)").encode(tooltip=["end:N", "x:Q", "y:Q"])
    chart = alt.layer(
        way.mark_line(point=alt.OverlayMarkDef(size=50)),
        way.mark_text(dy=-10).encode(text="mark:N"),
        corners.mark_point(shape="diamond", size=120, filled=True, color="#b86e00"),
        corners.mark_text(dy=16, fontWeight="bold").encode(text="end:N"),
    ).properties(width=420, height=420)
    return [
        plots.Figure(
            "path-plane",
            "How does the last position get to its answer?",
            "Its vector after each layer, on the plane of two tokens' output directions "
            "(diamonds): the answer and the runner-up.",
            plots.chosen(chart, found, "model", "prompt"),
        )
    ]


@lens(
    name="path",
    title="The way to the answer",
    about="a position's way through the layers, on the plane of two tokens",
    figures=draw,
    order=7,
)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """The last position's stream of each prompt, on the plane of two tokens."""
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
