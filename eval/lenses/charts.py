"""The charts of lenses, declared: which numbers they show, and along which axes.

A chart of means has the intervals of the rows; one with an axis of samples, or of `each` one, has
the numbers themselves. Each checkpoint has a panel, unless checkpoints are the lines. Of every
axis that a chart does not name the last label is shown, and the panel's heading says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eval.drawing import figures, markup, plots
from eval.drawing.tables import interval_text
from eval.lenses.table import SAMPLES, Record, Table

Tables = Mapping[str, Table]
"""What one lens found, by checkpoint."""
VALUES = {"value", "low", "high", "n", "token", "place", "tip"}
"""Fields of records that are no axes."""
LAST = 16
"""Positions of small charts."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Numbers of one name, drawn.

    Attributes:
        of: the name of the numbers.
        title: a question that the chart answers.
        about: a sentence on it.
        x: the axis along.
        y: the axis upright, or the title of the values where they are upright.
        each: whether samples are drawn and not their means.
        name: the figure's, after the lens's; that of the numbers when not given.
    """

    of: str
    title: str
    about: str
    x: str = "layer"
    y: str = ""
    each: bool = False
    name: str = ""
    AXES = "x", "y"

    @property
    def fields(self) -> tuple[str, ...]:
        """The axes that it names."""
        return tuple(getattr(self, name) for name in self.AXES)

    def draw(self, lens: str, tables: Tables) -> figures.Figure | None:
        """The figure of all checkpoints; None without numbers."""
        rows = self.records(tables)
        models = dict.fromkeys(row["model"] for row in rows)
        panels, shown = {}, {"model", *self.fields, *VALUES}
        for model in models if "model" not in self.fields else [""]:
            of_model = [row for row in rows if model in ("", row["model"])]
            chosen, labels = _choose(of_model, shown)
            panels[": ".join(filter(None, [model, labels]))] = self.chart(chosen, rows)
        name = f"{lens}-{self.name or self.of}".replace(" ", "-").lower()
        return figures.Figure(name, self.title, self.about, panels) if rows else None

    def records(self, tables: Tables) -> list[Record]:
        """Its numbers, each with its `model`; positions of a text with `token` and `place`."""
        samples = self.each or any(name in SAMPLES for name in self.fields)
        rows = []
        for model, table in tables.items():
            for record in table.samples(self.of) if samples else table.means(self.of):
                rows.append({"model": model, **record, **_token(table, record)})
        return rows

    def chart(self, rows: list[Record], every: list[Record]) -> plots.Chart:
        """A panel of some records; `every` are those of all panels, whose scale it has."""
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
    AXES = "x", "colour", "dash"

    def chart(self, rows: list[Record], every: list[Record]) -> plots.Chart:
        """A panel."""
        names = plots.options(every, self.colour)
        return plots.lines(
            _with_tips(rows), self.x, self.y, self.colour, self.dash, ordered=self.ordered,
            scale=self.x_scale, names=names,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Heat(Chart):
    """A cell for each pair of labels, coloured by its value, whose title is `value`.

    Of a `diverging` scale 0 is the middle. `up` puts the first label of y at the bottom. `facet` is
    an axis with small charts beside each other, of the last positions alone.
    """

    value: str
    diverging: bool = False
    up: bool = False
    facet: str = ""
    AXES = "x", "y", "facet"

    def chart(self, rows: list[Record], every: list[Record]) -> plots.Chart:
        """A panel."""
        x, y = ("place" if "place" in rows[0] and axis == "position" and not self.facet else axis
                for axis in (self.x, self.y))  # fmt: skip
        if self.facet:
            ends = {axis: max(row[axis] for row in rows) - LAST for axis in (x, y)}
            rows = [row for row in rows if all(row[axis] > end for axis, end in ends.items())]
        values = [row["value"] for row in every]
        return plots.cells(
            rows, x, y, self.value, diverging=self.diverging, domain=(min(values), max(values)),
            facet=self.facet, descending=self.up,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Bars(Chart):
    """Bars of x; those of a label of `column` stand together."""

    column: str = ""
    AXES = "x", "column"

    def chart(self, rows: list[Record], every: list[Record]) -> plots.Chart:
        """A panel."""
        names = plots.options(every, self.x)
        return plots.bars(_with_tips(rows), self.x, self.y, self.column, names)


@dataclass(frozen=True, kw_only=True)
class Histogram(Chart):
    """Counts over the middles of bins, steps of the labels of `colour`."""

    colour: str
    AXES = "x", "colour"

    def chart(self, rows: list[Record], every: list[Record]) -> plots.Chart:
        """A panel."""
        names = plots.options(every, self.colour)
        return plots.lines(rows, self.x, "tokens", self.colour, names=names, stepped=True)


def _choose(rows: list[Record], shown: set[str]) -> tuple[list[Record], str]:
    """Records at the last label of each axis that is not shown, and these labels in words."""
    labels = []
    for name in dict.fromkeys(name for row in rows for name in row if name not in shown):
        last = plots.options(rows, name)[-1]
        labels.append(last if isinstance(last, str) else f"{name} {last}")
        rows = [row for row in rows if row[name] == last]
    return rows, ", ".join(labels)


def _with_tips(rows: list[Record]) -> list[Record]:
    """Records that say their labels and their number."""
    return [
        row | {"tip": ", ".join([
            *(label if isinstance(label, str) else f"{name} {label}"
              for name, label in row.items() if name not in {"model", *VALUES}),
            interval_text(row["value"], row.get("low"), row.get("high")),
        ])}
        for row in rows
    ]  # fmt: skip


def _token(table: Table, record: Record) -> Record:
    """The token at a record's position, and a label of both; nothing without a position."""
    text = record.get("prompt", record.get("pair", ""))
    pieces = table.pieces.get(str(text), []) if "position" in record else []
    if not pieces or record["position"] >= len(pieces):
        return {}
    token = markup.visible(pieces[record["position"]])
    return {"token": token, "place": f"{record['position']} {token}"}


def word_tables(tables: Mapping[str, Table]) -> list[markup.Markup]:
    """The tables of words of all checkpoints, folded; those of one title and columns as one."""
    lines: dict[tuple[str, ...], list[list[Any]]] = {}
    for model, table in tables.items():
        for text in table.texts:
            for cells in text["lines"]:
                shown = [markup.codes(cell) if isinstance(cell, list) else cell for cell in cells]
                lines.setdefault((text["title"], *text["columns"]), []).append([model, *shown])
    return [
        markup.folded_table(title, ("checkpoint", *columns), rows)
        for (title, *columns), rows in lines.items()
    ]
