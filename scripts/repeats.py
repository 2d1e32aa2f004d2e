"""What a second loss for earlier tokens costs and gives: loss, loss of repeated pairs, bits.

A token completes a *repeated pair* where it and the token before it have stood side by side in the
window before: what a model that recalls predicts well (the associative recall hits of Arora et
al., 2312.04927, without their bound on how common a pair is).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.drawing import Figure
from eval.information.hypotheses import mean_of, means, records
from eval.information.page import mean_table, panels
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
    return mean_table(names, columns)


def figures(registration: dict[str, Any], rows: Sequence[Row]) -> list[Figure]:
    """Bits by distance, architecture and weight of the second loss."""
    flat, points = records(rows), []
    distances = registration["design"]["measured"]["distances"]
    cells = dict.fromkeys((r["architecture"], r["weight"]) for r in flat)
    for (architecture, weight), (distance, field) in product(cells, product(distances, BITS)):
        where = {"architecture": architecture, "weight": weight, "distance": distance}
        if (known := mean_of(flat, field, **where)) is not None:
            limits = dict(zip(("value", "low", "high"), known, strict=True))
            place = {"x": distance, "architecture": architecture, "weight": f"weight {weight}"}
            points.append(place | {"of": BITS[field]} | limits)
    title = "Bits about a token in later outputs, by distance, with and without the second loss"
    about = ". Bands are 95 % intervals over passages and seeds."
    return [panels("bits", title, points, "x", "bits", "weight", label="positions on", about=about,
                   ticks=distances, size=(150, 130))]  # fmt: skip
