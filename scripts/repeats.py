"""What a second loss for earlier tokens costs and gives: loss, loss of repeated pairs, bits.

A token completes a *repeated pair* where it and the token before it have stood side by side in the
window before: what a model that recalls predicts well (the associative recall hits of Arora et
al., 2312.04927, without their bound on how common a pair is).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eval import plots
from eval.drawing import Figure
from eval.information.contrasts import mean_of, means
from eval.information.hypotheses import records
from eval.models import Checkpoint, windows_at_once
from eval.rows import Results, Row, row_key
from eval.tables import Table
from eval.text import held_out_text
from tokenizer.bpe import token_bytes


def repeated_pairs(windows: Tensor) -> Tensor:
    """Which of the tokens 1 to T - 1 complete a pair seen before: `(N, T)` to `(N, T - 1)`."""
    same = (windows[:, :, None] == windows[:, None, :]).tril(-1)
    return (same[:, 1:, 1:] & same[:, :-1, :-1]).any(dim=-1)


@dataclass(frozen=True)
class RepeatsTask:
    """The loss of windows of held-out stories; `eval.tasks.Task`.

    Attributes:
        checkpoint: the model.
        corpus: whose stories for evaluation are read.
        count: windows.
        length: tokens of each.
    """

    checkpoint: Checkpoint
    corpus: str
    count: int
    length: int

    @property
    def keys(self) -> list[str]:
        """One."""
        asked = self.corpus, self.count, self.length
        return [row_key(*self.checkpoint.identity, "repeats", *asked)]

    @property
    def cost(self) -> float:
        """In windows."""
        return float(self.count)

    @torch.no_grad()
    def run(self, results: Results) -> Iterable[Row]:
        """One row."""
        text, model = held_out_text(self.checkpoint, self.corpus), self.checkpoint.model
        windows = text.windows("evaluation", self.count, self.length)
        nats = torch.cat(
            [
                F.cross_entropy(
                    model(some[:, :-1]).flatten(0, 1), some[:, 1:].flatten(), reduction="none"
                ).view(len(some), -1)
                for some in windows.split(windows_at_once(model, self.length))
            ]
        )
        repeated = repeated_pairs(windows)
        lengths = torch.tensor([len(piece) for piece in token_bytes(text.tokenizer)])
        size = lengths[windows[:, 1:]].sum().item() / len(windows)
        yield {
            "key": self.keys[0],
            "kind": "repeats",
            "checkpoint": self.checkpoint.provenance,
            "corpus": self.corpus,
            "length": self.length,
            "windows": [
                _window(each, again, size) for each, again in zip(nats, repeated, strict=True)
            ],
        }


def _window(nats: Tensor, repeated: Tensor, size: float) -> dict[str, Any]:
    count = int(repeated.sum())
    again, others = (
        nats[which].mean().item() if which.any() else None for which in (repeated, ~repeated)
    )
    return {
        "repeated": again,
        "others": others,
        "excess": None if again is None or others is None else again - others,
        "count": count,
        "bits_per_byte": nats.sum().item() / math.log(2) / size,
    }


BITS = {"bits int4": "bits as 4-bit codes", "bits noise 0.25 rms": "bits, noise 1/4 RMS"}
"""Fields of records, and what they are called."""


def prices(rows: Sequence[Row]) -> Table:
    """The mean loss by architecture and weight, and bits by distance."""
    flat, names = records(rows), ["architecture", "weight"]
    losses = {"bits_per_byte": "bits per byte", "repeated": "nats, repeated pairs",
              "others": "nats, others"}  # fmt: skip
    columns = {title: means(flat, field, names) for field, title in losses.items()}
    for distance in sorted({record["distance"] for record in flat if "distance" in record}):
        there = [record for record in flat if record.get("distance") == distance]
        columns |= {f"{title}, {distance} on": means(there, f, names) for f, title in BITS.items()}
    lines = [
        [*map(str, cell), *(f"{of[cell]:.3f}" if cell in of else "–" for of in columns.values())]
        for cell in sorted(columns["bits per byte"])
    ]
    return Table([*names, *columns], lines)


def figures(registration: dict[str, Any], rows: Sequence[Row]) -> list[Figure]:
    """What the second loss changes: by architecture and weight, bits by distance."""
    flat = records(rows)
    places = list(dict.fromkeys((r["architecture"], r["weight"]) for r in flat))
    distances = registration["design"]["measured"]["distances"]
    points = []
    for architecture, weight in places:
        for distance in distances:
            where = {"architecture": architecture, "weight": weight, "distance": distance}
            for field, title in BITS.items():
                if (known := mean_of(flat, field, **where)) is not None:
                    mean, _ = known
                    points.append(
                        {"x": distance, "architecture": architecture, "weight": f"weight {weight}"}
                        | {"of": title, "value": mean.estimate}
                        | {"low": mean.low, "high": mean.high}
                    )
    panel = plots.lines(
        points,
        "x",
        "bits",
        "weight",
        axis={"title": None, "values": distances, "grid": False},
        legend={"title": None, "orient": "top"},
        band=True,
        size=(150, 130),
    )
    header = {"title": "positions on", "titleOrient": "bottom", "labelOrient": "top"}
    about = "Bits about a token in later outputs, by distance, with and without the second loss"
    chart = plots.facets(points, panel, "architecture", "of", header=header)
    return [
        Figure("bits", about, f"{about}. Bands are 95 % intervals over passages and seeds.", chart)
    ]
