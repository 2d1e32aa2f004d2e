"""The curves drawn: a figure for each axis, one of the base point, and all of it as tables."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eval import plots, tables
from eval.claims.curves import AFTER, BASE, BEFORE, FAMILIES, KINDS, NONSELF
from eval.claims.curves_records import Record
from eval.drawing import Figure, write_figures

PANEL = (104, 120)  # of an axis' figure, width and height
DOTS = (330, 190)  # of the base point's
TITLES = {
    "width": "width",
    "depth": "blocks",
    "layer": "layer shown",
    "step": "training steps",
    "channels": "channels shown",
    "observed": "positions shown",
    "noise": "noise / root mean square",
}
LOGARITHMIC = ("width", "depth", "channels", "observed")
FROM_ZERO = {"step": 30, "noise": 1 / 256}
"""Axes that begin with 0: symmetric logarithms, linear up to this."""
APART = 1 / 6  # of an axis, between two labels
SHOWN = {"self": "shown tokens", "nonself": "hidden first token"}
STATES = {BEFORE: "before training", AFTER: "after training"}
COMMAND = "python -m eval claims curves --models RUNS --corpus STORIES"


def figures(found: list[Record]) -> list[Figure]:
    """All figures that there are records for."""
    axes = [axis for axis in TITLES if any(r["axis"] == axis for r in found)]
    base = [r for r in found if r["axis"] == BASE]
    drawn = [_summary(base)] if base else []
    return drawn + [_curve(axis, [r for r in found if r["axis"] == axis]) for axis in axes]


def write(directory: str | Path, found: list[Record]) -> list[Path]:
    """Writes every figure as SVG."""
    return write_figures(directory, figures(found), "svg")


def markdown(found: list[Record], drawn: str = "") -> str:
    """The tables, the base point's in sight and the others folded.

    Args:
        found: records.
        drawn: where the figures lie, seen from the page; "" leaves them out.
    """
    parts = []
    base = [r for r in found if r["axis"] == BASE]
    if base:
        parts += [*_image("curves-summary", drawn), *_base_table(base)]
    for axis, title in TITLES.items():
        own = [r for r in found if r["axis"] == axis]
        if own:
            parts += [
                f"### Against {title}\n",
                *_image(f"curves-{axis}", drawn),
                f"`{COMMAND} --axis {axis}`\n",
                "<details><summary>the numbers</summary>\n",
                *_axis_table(own),
                "</details>\n",
            ]
    return "\n".join(parts)


def _summary(records: list[Record]) -> Figure:
    chart = plots.dots(
        _percent(records), "tokens found, %", "architecture", "family", "slice", "state", DOTS
    )
    about = (
        "Tokens recovered from the last block's output, before and after training: those whose "
        "own position is shown, and a first token that is hidden. By the published gradient "
        "descent, by a tuned one, and by exact search. Lines are 95 % intervals."
    )
    return Figure("curves-summary", "What can be found again, and by what", about, chart)


def _curve(axis: str, records: list[Record]) -> Figure:
    shown = sorted(_percent(records), key=lambda r: r["state"], reverse=True)  # the last: whole
    if axis == "step":  # one line, which training is along
        shown = [r | {"state": STATES[AFTER]} for r in shown]
    kind: dict[str, Any] = {"zero": False}
    if axis in FROM_ZERO:
        kind = {"type": "symlog", "constant": FROM_ZERO[axis]}
    elif axis in LOGARITHMIC:
        kind = {"type": "log", "base": 2}
    fractions = "datum.value == 1/64 ? '1/64' : datum.value == 1/4 ? '1/4' : "
    panel = plots.lines(
        shown,
        "x",
        "tokens found, %",
        "family",
        "" if axis == "step" else "state",
        states=list(STATES.values()),
        share=True,
        x_scale=kind | {"nice": False, "padding": 7},
        axis={
            "title": None,
            "values": _ticks(axis, records),
            "grid": False,
            "labelFlush": False,
            "labelFontSize": 10,
            "labelExpr": f"{fractions}format(datum.value, ',')",
        },
        series={family: i for i, family in enumerate(FAMILIES)},
        legend={"title": None, "orient": "top"},
        band=True,
        size=PANEL,
    )
    header = {"title": TITLES[axis], "titleOrient": "bottom", "labelOrient": "top",
              "titlePadding": -6}  # fmt: skip
    chart = plots.facets(shown, panel, "architecture", "slice", header=header)
    about = (
        f"Tokens recovered against {TITLES[axis]}, for each architecture, before and after "
        "training: shown tokens above, a hidden first token below. Bands are 95 % intervals."
    )
    return Figure(f"curves-{axis}", f"Recovery against {TITLES[axis]}", about, chart)


def _ticks(axis: str, found: list[Record]) -> list[float]:
    """The values that have a label, the last one first; those too near to another have none."""
    values = sorted({r["x"] for r in found if r["slice"] == NONSELF}, reverse=True)
    places = {x: _place(axis, x) for x in values}
    span = places[values[0]] - places[values[-1]] or 1.0
    kept: list[float] = []
    for x in values:
        if not kept or places[kept[-1]] - places[x] >= APART * span:
            kept.append(x)
    return kept


def _place(axis: str, x: float) -> float:
    """Where a value lies on its axis' scale, in no unit."""
    if axis in FROM_ZERO:
        return math.log1p(x / FROM_ZERO[axis])
    return math.log(x) if axis in LOGARITHMIC else x


def _percent(found: list[Record]) -> list[Record]:
    """What the charts look at, in percent and words."""
    return [
        {name: r[name] for name in ("x", "architecture", "family")}
        | {"slice": SHOWN[r["slice"]], "state": STATES[r["state"]]}
        | {"value": round(100 * r["share"], 2)}
        | {name: round(100 * r[name], 2) for name in ("low", "high")}
        for r in found
    ]


def _order(found: Iterable[Record]) -> list[str]:
    return list(dict.fromkeys(r["architecture"] for r in found))


def _image(name: str, drawn: str) -> list[str]:
    return [f"![{name.replace('-', ' ')}]({drawn}/{name}.svg)\n"] if drawn else []


def _base_table(found: list[Record]) -> list[str]:
    columns = [(kind, name) for kind in KINDS for name in FAMILIES]
    head = ["architecture", "training", *(f"{SHOWN[kind]}: {name}" for kind, name in columns)]
    rows = []
    for name in _order(found):
        for state in (BEFORE, AFTER):
            own = {(r["slice"], r["family"]): r for r in found
                   if (r["architecture"], r["state"]) == (name, state)}  # fmt: skip
            if own:
                rows.append([name, state, *(_cell(own.get(column)) for column in columns)])
    return [tables.markdown(tables.Table(head, rows)), _counts(found)]


def _axis_table(found: list[Record]) -> list[str]:
    lines = []
    for kind in KINDS:
        values = sorted({r["x"] for r in found if r["slice"] == kind})
        groups: dict[tuple[str, str, str], dict[Any, Record]] = {}
        for r in found:
            if r["slice"] == kind:
                place = r["architecture"], r["state"], r["family"]
                groups.setdefault(place, {})[r["x"]] = r
        head = [SHOWN[kind], "training", "by", *(f"{value:g}" for value in values)]
        rows = [[*place, *(_cell(own.get(v)) for v in values)] for place, own in groups.items()]
        lines.append(tables.markdown(tables.Table(head, rows)))
    return [*lines, _counts(found)]


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    low, high = (f"{100 * record[end]:.0f}" for end in ("low", "high"))
    return f"{100 * record['share']:.0f} ({low}–{high})"


def _counts(found: list[Record]) -> str:
    """How many tokens a figure is of, at the least and at the most."""

    def span(name: str, own: list[Record]) -> str:
        counts = [r[name] for r in own]
        low, high = min(counts), max(counts)
        return f"{low}" if low == high else f"{low} to {high}"

    told = [
        f"{span('tokens', own)} {SHOWN[kind].removesuffix('s')}s"
        for kind in KINDS
        if (own := [r for r in found if r["slice"] == kind])
    ]
    return (
        f"Percent of tokens, 95 % interval; a figure is of {' and '.join(told)}, "
        f"of {span('prompts', found)} prompts and {span('models', found)} models.\n"
    )
