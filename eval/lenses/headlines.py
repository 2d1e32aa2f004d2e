"""The one or two figures that stand for a lens in a line, and for it in W&B.

A lens names them as `main`: a figure, and the coordinates at which it is taken. Over all others,
such as its layers, it is averaged. Of a lens that names none it is the first figure.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

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
    known = lenses()
    kept = [row for row in rows if row["kind"] == "lens" and row["lens"] in known]
    found: list[Headline] = []
    for name, lens in known.items():
        first = [row["figure"] for row in kept if row["lens"] == name][:1]
        for figure, where in lens.main or ((figure, {}) for figure in first):
            label = ", ".join([figure, *map(str, where.values())])
            values: dict[tuple[str, int], list[float]] = {}
            for row in kept:
                same = row["lens"] == name and row["figure"] == figure
                if same and row["value"] is not None and _is_at(row, where):
                    about = row["checkpoint"]
                    values.setdefault((about["model_id"], about["step"]), []).append(row["value"])
            found += [
                Headline(name, label, model, step, sum(numbers) / len(numbers))
                for (model, step), numbers in values.items()
            ]
    return found


def _is_at(row: dict[str, Any], where: dict[str, Any]) -> bool:
    return all(row.get(name) == value for name, value in where.items())
