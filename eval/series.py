"""Rows that hold single figures, as series over the training steps of their checkpoints.

Of lenses, losses and retrieval; recoveries of prompts have a summary of their own.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from eval.results import Row

STEP = "checkpoint/step"
ASIDE = {
    "key", "schema", "kind", "lens", "checkpoint", "figure", "value", "low", "high", "n",
    "prompts", "prompt_kind", "length", "look", "corpus", "stories", "fit", "limits", "pools",
    "queries", "chance", "top1", "parts",
}  # fmt: skip
"""Fields that do not place a figure within its kind."""
KINDS = ("lens", "loss", "retrieval")


def series(rows: Iterable[Row]) -> list[dict[str, float]]:
    """The figures by name, one dict per training step in ascending order; `STEP` is the step.

    Names read `lens/residual/norm/layer 3`, `loss/bits_per_byte`, `retrieval/top1/layer 4/...`; a
    model's name stands first in line where there are several models. Of equal names at one step,
    as different corpora or prompts give, the last counts.
    """
    rows = [row for row in rows if row.get("kind") in KINDS]
    several = len({row["checkpoint"]["name"] for row in rows}) > 1
    by_step: dict[int, dict[str, float]] = {}
    for row in rows:
        step = row["checkpoint"]["step"]
        figures = by_step.setdefault(step, {STEP: step})
        model = [row["checkpoint"]["name"]] if several else []
        for name, value in _figures(row):
            figures["/".join([row["kind"], *model, name])] = value
    return [by_step[step] for step in sorted(by_step)]


def _figures(row: Row) -> Iterator[tuple[str, float]]:
    """Name and value of what a row measured."""
    if row["kind"] == "loss":
        yield "bits_per_byte", row["bits_per_byte"]
        yield "nats_per_token", row["nats_per_token"]
        return
    places = [
        f"{field} {value}"
        for field, value in row.items()
        if field not in ASIDE and isinstance(value, str | int | float)
    ]
    if row["kind"] == "retrieval":
        yield "/".join(["top1", *places]), row["top1"]
    elif _number(row["value"]):
        yield "/".join([row["lens"], row["figure"], *places]), row["value"]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")
