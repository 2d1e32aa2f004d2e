"""The charts of lenses, declared: which numbers they show, and along which axes.

A chart of means has the intervals of the rows; one with an axis of samples, or of `each` one, has
the numbers themselves. Of every axis that a chart does not name its reader chooses a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eval import plots
from eval.lenses import markup
from eval.lenses.table import SAMPLES, Record, Table

Tables = Mapping[str, Table]
"""What one lens found, by checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Numbers of one name, drawn.

    Attributes:
        of: the name of the numbers.
        title: a question that the chart answers.
        about: a sentence on it.
        x: the axis along.
        y: the axis upright, or the title of the values where they are upright.
        where: labels of axes that are shown alone.
        each: whether samples are drawn and not their means.
        name: the figure's, after the lens's; that of the numbers when not given.
    """

    of: str
    title: str
    about: str
    x: str = "layer"
    y: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    each: bool = False
    name: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The axes that it names."""
        return (self.x, self.y)

    def draw(self, lens: str, tables: Tables) -> plots.Figure | None:
        """The figure of all checkpoints; None without numbers."""
        rows = self.records(tables)
        if not rows:
            return None
        shown = {*self.fields, *self.where, "value", "low", "high", "n", "token", "place"}
        menus = [
            name for name in dict.fromkeys(n for row in rows for n in row) if name not in shown
        ]
        chart = self.chart(rows)
        drawn = plots.chosen(chart, rows, *menus) if menus else chart
        name = f"{lens}-{self.name or self.of}".replace(" ", "-").lower()
        return plots.Figure(name, self.title, self.about, drawn)

    def records(self, tables: Tables) -> list[Record]:
        """Its numbers, each with its `model`; positions of a text with `token` and `place`."""
        each = self.each or any(name in SAMPLES for name in self.fields)
        rows = []
        for model, table in tables.items():
            for record in table.samples(self.of) if each else table.means(self.of):
                if all(record.get(name) == label for name, label in self.where.items()):
                    rows.append({"model": model, **record, **_token(table, record)})
        return rows

    def chart(self, rows: list[Record]) -> plots.Chart:
        """The drawing, without menus."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Lines(Chart):
    """A line for each label of `colour`; `dash` tells them further apart.

    `ordered` colours say an order, such as depth; `x_scale` is of an axis that is not linear.
    """

    colour: str = "model"
    dash: str = ""
    ordered: bool = False
    x_scale: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fields(self) -> tuple[str, ...]:
        """The axes that it names."""
        return (self.x, self.colour, self.dash)

    def chart(self, rows: list[Record]) -> plots.Chart:
        """The drawing, without menus."""
        scale = dict(self.x_scale) or None
        rows = [{name: v for name, v in row.items() if name != "place"} for row in rows]
        return plots.lines(
            rows, self.x, self.y, self.colour, self.dash, ordered=self.ordered, x_scale=scale
        )


@dataclass(frozen=True, kw_only=True)
class Heat(Chart):
    """A cell for each pair of labels, coloured by its value, whose title is `value`.

    Of a `diverging` scale 0 is the middle. `up` puts the first label of y at the bottom.
    """

    value: str
    diverging: bool = False
    up: bool = False
    size: tuple[int, int] = (plots.WIDTH, plots.HEIGHT)

    def chart(self, rows: list[Record]) -> plots.Chart:
        """The drawing, without menus."""
        scale = plots.DIVERGING if self.diverging else None
        x = "place" if "place" in rows[0] and self.x == "position" else self.x
        order = plots.options(rows, self.y)
        if all(isinstance(label, int) for label in order):
            order = "descending" if self.up else "ascending"
        along = None if x == "place" else plots.options(rows, x)
        return plots.heat(rows, x, self.y, self.value, scale, along, order, self.size)


@dataclass(frozen=True, kw_only=True)
class Bars(Chart):
    """Bars along x, a panel for each label of `column` and of `row`."""

    column: str = ""
    row: str = ""
    size: tuple[int, int] = (150, 130)
    angle: int = 0

    @property
    def fields(self) -> tuple[str, ...]:
        """The axes that it names."""
        return (self.x, self.column, self.row)

    def chart(self, rows: list[Record]) -> plots.Chart:
        """The drawing, without menus."""
        named = self.y or None, self.column or None, self.row or None
        chart = plots.bars(rows, self.x, *named, self.size, self.angle)
        own = {"resolve": {"scale": {"y": "independent"}}} if self.row and not self.y else {}
        return {**plots.plain(chart), **own}


@dataclass(frozen=True, kw_only=True)
class Histogram(Chart):
    """Counts over the middles of bins, areas of the labels of `colour`."""

    colour: str

    @property
    def fields(self) -> tuple[str, ...]:
        """The axes that it names."""
        return (self.x, self.colour)

    def chart(self, rows: list[Record]) -> plots.Chart:
        """The drawing, without menus."""
        return plots.histogram(rows, self.x, self.colour)


def _token(table: Table, record: Record) -> Record:
    """Of a position of a text: its token, and both together as a label."""
    text = record.get("prompt", record.get("pair", ""))
    pieces = table.pieces.get(str(text), []) if "position" in record else []
    if not pieces or record["position"] >= len(pieces):
        return {}
    token = markup.visible(pieces[record["position"]])
    return {"token": token, "place": f"{record['position']} {token}"}
