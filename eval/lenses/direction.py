"""The direction and the length of the last stream: what each decides of the answer.

A factor on the final vector is a temperature: its direction says which token, its length how
surely. A position's way to its answer is seen on the plane of two tokens' directions.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arch import LanguageModel
from eval.drawing import figures, markup, plots
from eval.lenses.charts import Lines, Tables
from eval.lenses.lens import Checkpoint, PromptBatch, Request, Table, lens, word_tokens
from eval.lenses.trace import readers
from eval.messages import say_once

SCALES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
TEMPERATURES = (0.001, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 10.0, 100.0, 1000.0)
PLACES = ("after norm", "before norm")
"""Where the factor stands: on what the head reads, or on the stream whose length the norm sets."""
SLACK = 1e-4  # by which a probability may fall and is still said to rise
POSITIONS = 64  # of the prompts, evenly spaced
MEASURES = ("x", "y", "share")
ENDS = ("first", "second")
WAY = "after each layer"


def sharpness(logits: Tensor) -> Tensor:
    """Entropy in bits and the best token's probability of `(..., V)` logits, `(..., 2)`."""
    p = logits.float().softmax(dim=-1)
    return torch.stack([torch.special.entr(p).sum(dim=-1) / math.log(2), p.amax(dim=-1)], dim=-1)


@torch.no_grad()
def scaled(model: LanguageModel, hidden: Tensor, scales: tuple[float, ...], part: str) -> Tensor:
    """Entropy and best probability when the last block's outputs `(N, D)` are scaled in a place.

    Scales are 0 and more; the result is `(scales, N, 2)`, NaN where a scaled vector or its logits
    are more than the model's precision holds.
    """
    if part == "before norm" or isinstance(model.norm, nn.Identity):
        return torch.stack([sharpness(model.logits(scale * hidden)) for scale in scales])
    read = []
    for scale in scales:
        hook = model.norm.register_forward_hook(lambda _, x, y, scale=scale: scale * y)
        try:
            read.append(sharpness(model.logits(hidden)))
        finally:
            hook.remove()
    return torch.stack(read)


def heated(logits: Tensor, temperatures: tuple[float, ...]) -> Tensor:
    """The best probability of `(N, V)` logits by temperature, `(temperatures, N)`."""
    return torch.stack([sharpness(logits.float() / t)[..., 1] for t in temperatures])


def rising(values: Tensor) -> Tensor:
    """Which of the N curves `(S, N)` never fall, but for rounding; NaN of one without numbers."""
    never_falls = ~(values.diff(dim=0) < -SLACK).any(dim=0)
    return never_falls.float().masked_fill(values.isnan().all(dim=0), torch.nan)


def plane(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The plane of two directions `(D,)`, which are not multiples of each other.

    Returns:
        Two orthonormal directions, `(2, D)`, the first one that of the first; where the two given
        directions lie on it, `(2, 2)`.
    """
    pair = torch.stack([first, second]).double()
    basis, where = torch.linalg.qr(pair.T)
    signs = where.diagonal().sign()
    return (basis * signs).T, (where * signs[:, None]).T


def path(vectors: Tensor, basis: Tensor) -> Tensor:
    """Vectors of one position by layer, `(L, D)`, as a plane shows them: `MEASURES`, `(L, 3)`.

    Coordinates, and the share of the squared length that lies in the plane.
    """
    x = vectors.double()
    points = x @ basis.T
    fraction = points.square().sum(dim=1) / x.norm(dim=1).clamp(min=1e-30).square()
    return torch.column_stack([points, fraction])


def draw_plane(tables: Tables) -> list[figures.Figure]:
    """The last position's way, on the plane of its answer and the runner-up, of the last prompt."""
    panels = {}
    for model, table in tables.items():
        (numbers,) = table.of("path")
        prompt, rows = numbers.axes["prompt"][-1], []
        for point, (x, y, fraction) in zip(numbers.axes["point"], numbers.values[-1], strict=True):
            what, mark, tip = WAY, str(point), f"layer {point}: {fraction:.3f} of it in the plane"
            if point in ENDS:
                what, mark = "token", markup.visible(table.notes["ends"][prompt][ENDS.index(point)])
                tip = mark
            rows.append({"x": x, "y": y, "what": what, "mark": mark, "tip": tip})
        panels[f"{model}: {prompt}"] = plots.dots(rows, "x", "y", "what", "mark", joined=WAY)
    return [
        figures.Figure(
            "direction-plane",
            "How does the last position get to its answer?",
            "Its vector after each layer, on the plane of two tokens' output directions: the "
            "answer, along which x goes, and the runner-up.",
            panels,
        )
    ]


@lens(
    "direction",
    "Direction, length and confidence",
    order=5,
    main=(("cosine with answer", {"answer": "its answer"}), ("confidence rises with length", {})),
    draw=draw_plane,
    charts=[
        Lines(
            of="entropy by scale",
            x="scale",
            y="entropy, bits",
            colour="part",
            x_scale={"type": "symlog", "constant": 0.1},
            name="length",
            title="Is a vector's length its confidence?",
            about="Mean entropy of the next token as the final vector is scaled; before the norm, "
            "scaling changes nothing.",
        ),
        Lines(
            of="best probability by temperature",
            x="temperature",
            y="probability",
            x_scale={"type": "log"},
            name="temperature",
            title="What does temperature do?",
            about="Mean probability of the likeliest token.",
        ),
    ],
)
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """What the final vector's length decides, and a position's way to its answer."""
    _add_confidence(table, batch)
    chosen = list(dict.fromkeys(word_tokens(checkpoint, request.words).values()))
    if len(chosen) > 2:
        say_once(f"--words: direction takes the first two of {len(chosen)}, for its plane")
    _add_path(table, checkpoint, batch, chosen[:2])
    streams, rows = batch.streams, readers(checkpoint.model).float()
    answers = checkpoint.model.logits(streams[-1])[batch.real].argmax(dim=-1)
    others, read = answers.roll(len(answers) // 2), streams[:, batch.real].float()
    cosines = [F.cosine_similarity(read, rows[tokens], dim=-1) for tokens in (answers, others)]
    cosines[1][:, others == answers] = torch.nan  # the same answer is no control
    axes: dict[str, Any] = {"layer": range(len(streams)), "prompt": batch.prompt_of}
    table.add(
        "cosine with answer", torch.stack(cosines), answer=("its answer", "another's"), **axes
    )


def _add_confidence(table: Table, batch: PromptBatch) -> None:
    """Entropy and best probability by factor and by temperature, and their ends as figures."""
    model, hidden = batch.model, batch.streams[-1][batch.real]
    step = math.ceil(len(hidden) / POSITIONS)
    hidden, prompts = hidden[::step], batch.prompt_of[::step]
    by_scale = torch.stack([scaled(model, hidden, SCALES, axes) for axes in PLACES])
    heat = heated(model.logits(hidden), TEMPERATURES)
    entropy, best = by_scale[0].unbind(-1)
    if lost := int(by_scale.isnan().any(dim=-1).flatten(0, 1).any(dim=0).sum()):
        say_once(
            f"direction: vectors scaled by up to {SCALES[-1]:g} are more than {hidden.dtype} holds "
            f"at {lost} of {len(hidden)} positions, which have no figures there; open the model in "
            "float32"
        )
    for name, values in {
        "entropy at length 0": entropy[0],
        "best probability at length 1000": best[-1],
        "confidence rises with length": rising(best),
        "confidence falls with heat": rising(-heat),
        "best probability at T 0.001": heat[0],
        "best probability at T 1000": heat[-1],
    }.items():
        table.add(name, values, prompt=prompts, share=name.startswith("confidence"))
    axes: dict[str, Any] = {"part": PLACES, "scale": SCALES, "prompt": prompts}
    table.add("entropy by scale", by_scale[..., 0], rows=False, **axes)
    name, axes = "best probability by temperature", {"temperature": TEMPERATURES}
    table.add(name, heat, rows=False, **axes, prompt=prompts)


def _add_path(table: Table, checkpoint: Checkpoint, batch: PromptBatch, chosen: list[int]) -> None:
    """Each prompt's last position by layer, and the two tokens of its plane."""
    rows, points, pairs = readers(batch.model).float(), [], []
    for way in batch.at_last(batch.streams).unbind(1):
        best = batch.model.logits(way[-1]).topk(min(3, len(rows))).indices.tolist()
        pairs.append([*chosen, *(token for token in best if token not in chosen)][:2])
        basis, corners = plane(*rows[pairs[-1]])
        points.append(torch.cat([path(way, basis), F.pad(corners, (0, 1), value=1.0)]))
    axes: dict[str, Any] = {"prompt": batch.labels, "point": [*range(len(batch.streams)), *ENDS]}
    table.add("path", torch.stack(points), rows=False, **axes, measure=MEASURES)
    table.notes["ends"] = dict(zip(batch.labels, map(checkpoint.words, pairs), strict=True))
