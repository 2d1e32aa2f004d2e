"""The curves behind the claims: their points, from `curves.yaml`, records, figures and tables.

A curve varies one thing of the base point. A point that several curves share is one point.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from arch import ModelConfig
from eval import RequestError, plots, tables
from eval.claims import BENCH, CURVES
from eval.drawing import Figure, write_figures
from eval.inversion.solvers import Solver, parse_solvers
from eval.recovery import Slice, channel_count, weights
from eval.schema import Row
from eval.summary import measure
from eval.tables import group

FILE = Path(__file__).parent / "curves.yaml"
BASE = "base"
BEFORE, AFTER = "before", "after"
KINDS = SELF, NONSELF = "self", "nonself"
"""Every position shown, and the first one hidden."""
FAMILIES = PUBLISHED, TUNED, SEARCH = "published descent", "tuned gradient", "search"
Record = dict[str, Any]

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
SHOWN = {SELF: "shown tokens", NONSELF: "hidden first token"}
STATES = {BEFORE: "before training", AFTER: "after training"}
HEAD = """\
# The curves

What is found against one thing at a time, the others as in the first figure; each with its command.
"""
COMMAND = "python -m eval claims curves --models RUNS --corpus STORIES"

Methods = dict[str, dict[str, Solver]]
"""Solvers by kind of token and label."""


@dataclass(frozen=True)
class Point:
    """What is asked of one architecture."""

    width: int
    depth: int
    layer: int  # whose output is shown
    step: int  # of training
    channels: int  # so many of the output's are shown
    length: int  # tokens of a prompt
    noise: float  # of what is shown, over its root mean square

    @property
    def state(self) -> str:
        """Before or after training."""
        return AFTER if self.step else BEFORE

    def at(self, axis: str, value: Any) -> Point:
        """The point with another value on an axis; its layer stays the last, its channels all."""
        if axis == BASE:
            return self
        if axis == "observed":
            return replace(self, length=value + 1)
        beside = {"width": "channels", "depth": "layer"}.get(axis, axis)
        return replace(self, **{axis: value, beside: value})

    def on(self, axis: str, kind: str) -> float | int | None:
        """Its place on an axis, of `observed` the shown positions; None of the base."""
        if axis == "observed":
            return self.length - (kind == NONSELF)
        return getattr(self, axis, None)

    def shown(self, kind: str) -> Slice:
        """The slice."""
        high = None if self.channels == self.width else self.channels
        return Slice(start=int(kind == NONSELF), high=high)


class Ask(NamedTuple):
    """How a point is asked: by which methods, about how many stories of each model."""

    methods: Methods
    stories: int


class Axis(NamedTuple):
    """The values of one thing, and how they are asked."""

    values: tuple[Any, ...]
    steps: tuple[int, ...]  # of training, at each of which every value is asked
    methods: Methods
    unasked: dict[Any, list[str]]  # methods that a value is not asked by


@dataclass(frozen=True)
class Plan:
    """The points of all curves, and how they are asked."""

    architectures: dict[str, dict[str, Any]]  # fields of a `ModelConfig`
    base: Point  # that all axes share, before training
    context: int
    seeds: int
    axes: dict[str, Axis]  # `BASE` is the first, on which there is the base alone
    stories: dict[str, int]  # per model, at `base` and off it (`axes`); seeds begin `apart`

    def curve(self, name: str) -> list[Point]:
        """The points of an axis, at each of its steps."""
        axis = self.axes[name]
        asked = product(axis.steps, axis.values)
        points = [self.base.at("step", step).at(name, value) for step, value in asked]
        return list(dict.fromkeys(points))

    def points(self, axes: list[str] | None = None) -> dict[Point, Ask]:
        """Every point of some axes, the base first; all axes when nothing is said.

        Raises:
            RequestError: there is no such axis.
        """
        asks: dict[Point, Ask] = {}
        for name in (BASE, *(axes or self.axes)):
            if name not in self.axes:
                known = ", ".join(self.axes)
                raise RequestError(f"--axis {name}: there is no such axis; use one of {known}")
            axis = self.axes[name]
            for point in self.curve(name):
                unasked = axis.unasked.get(point.on(name, NONSELF), [])
                methods = {
                    kind: {name: method for name, method in named.items() if name not in unasked}
                    for kind, named in axis.methods.items()
                }
                asks.setdefault(point, Ask(methods, self.stories.get(name, self.stories["axes"])))
        return asks

    def config(self, architecture: str, point: Point, vocabulary: int) -> ModelConfig:
        """A model's configuration."""
        given = dict(self.architectures[architecture])
        if "d_ff" in given:
            given["d_ff"] = given["d_ff"] * point.width // self.base.width
        size = {"d_model": point.width, "n_layers": point.depth, "context": self.context}
        return ModelConfig(vocab_size=vocabulary, **size, **given)


@lru_cache(maxsize=1)
def plan() -> Plan:
    """What is asked, as the file says."""
    return read_plan(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def read_plan(data: dict[str, Any]) -> Plan:
    """The content of such a file.

    Raises:
        RequestError: a method or a setting that does not exist.
    """
    base = dict(data["base"])
    context = base.pop("context")
    axes = {}
    for name, entry in ({BASE: {"values": [0], "steps": data["steps"]}} | data["axes"]).items():
        named = data["methods"] | entry.get("methods", {})
        methods = {kind: parse_solvers(solvers) for kind, solvers in named.items()}
        steps, unasked = tuple(entry.get("steps", (0,))), entry.get("unasked", {})
        axes[name] = Axis(tuple(entry["values"]), steps, methods, unasked)
    point = Point(layer=base["depth"], step=0, channels=base["width"], **base)
    return Plan(data["architectures"], point, context, data["seeds"], axes, data["stories"])


def family(method: Solver) -> str:
    """What a method is drawn as."""
    if method.name == "descent":
        return PUBLISHED
    return TUNED if method.family == "gradient" else SEARCH


def curve_records(plan: Plan, rows: Iterable[Row]) -> tuple[list[Record], list[str]]:
    """The records, the base by itself first, and a line for rows that were left out.

    One for each place on an axis, architecture, state, method and slice. Rows that another version
    of the bench asked for, and of methods with other settings, are left out; records among the rows
    are taken as they are.
    """
    asks, by_key = plan.points(), {row["key"]: row for row in rows}
    parts = [r for r in by_key.values() if r["kind"] == "claim" and r["claim"] == CURVES]
    asked = {key: part["arm"] for part in parts if part["bench"] == BENCH for key in part["keys"]}
    fewer = sum(len(part["keys"]) for part in parts if part["bench"] != BENCH)
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for key, architecture in asked.items():
        row = by_key[key]
        about, kind, label = row["checkpoint"], NONSELF if row["hidden"] else SELF, row["method"]
        channels, layer = channel_count(row) or 0, row["site"]["layer"]
        size = about["d_model"], about["n_layers"], layer, about["step"]
        point = Point(*size, channels, row["length"], row["noise"])
        method = asks[point].methods[kind].get(label) if point in asks else None
        if method is None or method.settings != row["settings"]:
            fewer += 1
        else:
            groups[architecture, point, kind, label].append(row)
    figures = {key: _figures(several, key[2]) for key, several in groups.items()}
    several = [row for row in by_key.values() if row["kind"] == "curve record"]
    for axis in plan.axes:
        for name, point, kind in product(plan.architectures, plan.curve(axis), KINDS):
            about = {"axis": axis, "x": point.on(axis, kind), "architecture": name}
            several += [
                about
                | {"state": point.state, "family": family(method), "method": label, "slice": kind}
                | figures[name, point, kind, label]
                for label, method in asks[point].methods[kind].items()
                if (name, point, kind, label) in figures
            ]
    words = f"left out: {fewer} rows that this bench, or curves.yaml as it is now, asks otherwise"
    return several, [words] if fewer else []


def write(directory: str | Path, rows: list[Record]) -> list[Path]:
    """Writes every figure that there are records for, as SVG."""
    figures = [_curve(axis, several) if axis != BASE else _summary(several)
               for axis, several in _by_axis(rows).items()]  # fmt: skip
    return write_figures(directory, figures, "svg")


def curves_markdown(rows: list[Record], drawn: str = "") -> str:
    """The tables as Markdown: the base point's open, the others folded.

    `drawn` is where the figures lie, seen from the page; "" leaves them out.
    """
    parts = []
    for axis, chosen in _by_axis(rows).items():
        name = "summary" if axis == BASE else axis
        image = [f"![curves {name}]({drawn}/curves-{name}.svg)\n"] if drawn else []
        if axis == BASE:
            table = _table(chosen, ["architecture", "training"], "asked")
            parts += [*image, table, _counts(chosen)]
            continue
        parts += [f"### Against {TITLES[axis]}\n", *image, f"`{COMMAND} --axis {axis}`\n"]
        parts.append("<details><summary>the numbers</summary>\n")
        for kind, shown in group(chosen, lambda r: r["slice"]).items():
            parts.append(_table(shown, [SHOWN[kind], "training", "by"], "x"))
        parts += [_counts(chosen), "</details>\n"]
    return "\n".join(parts)


def _by_axis(rows: list[Record]) -> dict[str, list[Record]]:
    """The records of each axis, in the order of the page."""
    axes = group(rows, lambda record: record["axis"])
    return {axis: axes[axis] for axis in (BASE, *TITLES) if axis in axes}


def _summary(rows: list[Record]) -> Figure:
    size = "architecture", "family", "slice", "state", DOTS
    about = (
        "Tokens recovered from the last block's output, before and after training: those whose "
        "own position is shown, and a first token that is hidden. By the published gradient "
        "descent, by a tuned one, and by exact search. Lines are 95 % intervals."
    )
    chart = plots.dots(_percent(rows), "tokens found, %", *size)
    return Figure("curves-summary", "What can be found again, and by what", about, chart)


def _curve(axis: str, rows: list[Record]) -> Figure:
    shown = sorted(_percent(rows), key=lambda r: r["state"], reverse=True)  # the last: whole
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
        "" if axis == "step" else "state",  # one line, which training is along
        states=list(STATES.values()),
        share=True,
        x_scale=kind | {"nice": False, "padding": 7},
        axis={
            "title": None,
            "values": sorted({r["x"] for r in rows if r["slice"] == NONSELF}),
            "grid": False,
            "labelFlush": False,
            "labelFontSize": 10,
            "labelOverlap": "greedy",
            "labelSeparation": 4,
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


def _percent(rows: list[Record]) -> list[Record]:
    """What the charts look at, in percent and words."""
    return [
        {name: r[name] for name in ("x", "architecture", "family")}
        | {"slice": SHOWN[r["slice"]]}
        | {"state": STATES[AFTER if r["axis"] == "step" else r["state"]]}
        | {to: round(100 * r[name], 2)
           for to, name in (("value", "share"), ("low", "low"), ("high", "high"))}
        for r in rows
    ]  # fmt: skip


def _table(rows: list[Record], places: list[str], over: str) -> str:
    """A line for each architecture and state of training."""
    lines = [
        r
        | {SHOWN[r["slice"]]: r["architecture"], "training": r["state"], "by": r["family"]}
        | {"asked": f"{SHOWN[r['slice']]}: {r['family']}"}
        | {"share_low": r["low"], "share_high": r["high"]}
        for r in rows
    ]
    return tables.markdown(tables.across(lines, places, over, [("share", "", True)]))


def _counts(rows: list[Record]) -> str:
    """How many tokens a figure is of, at the least and at the most."""

    def span(name: str, several: list[Record]) -> str:
        counts = [r[name] for r in several]
        return " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))

    tokens = [
        f"{span('tokens', several)} {SHOWN[kind].removesuffix('s')}s"
        for kind, several in group(rows, lambda r: r["slice"]).items()
    ]
    return (
        f"Percent of tokens, 95 % interval; a figure is of {' and '.join(tokens)}, "
        f"of {span('prompts', rows)} prompts and {span('models', rows)} models.\n"
    )


def _figures(rows: list[Row], kind: str) -> Record:
    """The share of shown tokens, or of the hidden one, with its interval."""
    figures = measure(rows)
    share = figures[kind]
    return {
        "share": round(share.value, 6),
        "low": round(share.low or 0.0, 6),
        "high": round(share.high or 0.0, 6),
        "tokens": figures[f"{kind}_tokens"].value,
        "prompts": share.n,
        "models": len({weights(row) for row in rows}),
    }
