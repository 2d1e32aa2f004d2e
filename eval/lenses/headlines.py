"""The one or two figures that stand for a lens in a line, and for it in W&B.

A lens names them as `main`: a figure, and the coordinates at which it is taken. Over all others,
such as its layers, it is averaged, but for texts. Of a lens that names none it is the first figure.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from eval.analysis.coordinates import last_looks
from eval.lenses.lens import lenses
from eval.rows.schema import Row


class Headline(NamedTuple):
    """A main figure of a lens, of one model at one step.

    Attributes:
        lens: its name.
        figure: the figure's name, and where it is taken: `update share, block`.
        model_id: of the model.
        step: of training.
        value: the mean over all other coordinates.
    """

    lens: str
    figure: str
    model_id: str
    step: int
    value: float


def headlines(rows: Iterable[Row]) -> list[Headline]:
    """The main figures of the lenses in rows, lens by lens, the first of each first."""
    by_lens: dict[str, list[Row]] = {}
    for row in last_looks(rows):
        if row["kind"] == "lens":
            by_lens.setdefault(row["lens"], []).append(row)
    found: list[Headline] = []
    for name, lens in lenses().items():
        of_lens = by_lens.get(name, [])
        main = lens.main or [(row["figure"], {}) for row in of_lens[:1]]
        for figure, where in main:
            label = ", ".join([figure, *map(str, where.values())])
            values = _values(of_lens, {"figure": figure, **where})
            alike = Counter((model, step) for model, step, _ in values)
            found += [
                Headline(name, label + f", texts {texts}" * (alike[model, step] > 1), model, step,
                         sum(of_texts) / len(of_texts))
                for (model, step, texts), of_texts in values.items()
            ]  # fmt: skip
    return found


def _values(rows: Iterable[Row], where: dict[str, Any]) -> dict[tuple[str, int, str], list[float]]:
    """The values of the rows that have these fields, by model, step and texts."""
    values: dict[tuple[str, int, str], list[float]] = {}
    for row in rows:
        fits = all(row.get(name) == value for name, value in where.items())
        if fits and (value := _value(row)) is not None:
            about = row["checkpoint"]
            key = about["model_id"], about["step"], row.get("texts", "")
            values.setdefault(key, []).append(value)
    return values


def _value(row: Row) -> float | None:
    """The value of a row; one that is infinite stands in its reason, as JSON has none."""
    said = re.search(r"\bvalue is (-?inf)\b", str(row.get("reason")))
    return float(said[1]) if said else row["value"]
