"""Charts: Vega-Lite specifications of records, with one theme, in the page and as files.

A page with menus carries Vega itself (some 0.9 MB), so that it needs no network. A specification
says nothing of colours of its own: `theme` does, for light and for dark. Altair takes a while to
import, so only the functions that draw import it.
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.files import write_file
from eval.errors import RequestError
from eval.files import write_text

if TYPE_CHECKING:
    import altair as alt

Record = dict[str, Any]
SERIES = ("#0b63b5", "#b86e00", "#00795c", "#8e3b8c", "#a5243d", "#6a727d")
SERIES_DARK = ("#62aef7", "#f0a33c", "#3fc8a0", "#d18ccf", "#f08096", "#a3acb7")
FORMATS = ("svg", "png")
WIDTH, HEIGHT = 620, 240
SLIDING = "position"
LABELS = {"model": "checkpoint", "of": "units", "group": "at"}
"""Of menus, where they are not called as their field."""
DIVERGING = {"scheme": "blueorange", "reverse": True, "domainMid": 0}
"""Colours of a scale: blue above 0 and orange below, as in the highlighted texts."""
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif'


@dataclass(frozen=True)
class Figure:
    """A chart with its words.

    Attributes:
        name: short, of letters, digits and dashes; its file's name.
        title: above it.
        about: what is seen, in a sentence; also what a screen reader says.
        chart: an altair chart, or its specification; None where there is nothing to show.
    """

    name: str
    title: str
    about: str
    chart: Any

    @property
    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification, with its description."""
        spec = self.chart if isinstance(self.chart, dict) else self.chart.to_dict()
        spec.pop("config", None)
        return {**spec, "description": self.about}

    @property
    def packed(self) -> str:
        """The specification as a page holds it: JSON, in gzip, in base64; a fifth of its length."""
        text = json.dumps(self.spec, separators=(",", ":")).encode()
        return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def theme(dark: bool) -> dict[str, Any]:
    """Vega-Lite's `config` for the page's colours, which the colour-blind tell apart.

    Args:
        dark: for a dark background.
    """
    ink, muted, line, card = (
        ("#e6eaee", "#9aa6b3", "#2e3844", "#181e25")
        if dark
        else ("#1b2430", "#5d6875", "#dde2e7", "#ffffff")
    )
    text = {"labelColor": muted, "titleColor": muted, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": card,
        "font": FONT,
        "view": {"stroke": None},
        "title": {"color": ink, "fontSize": 13, "fontWeight": 600, "anchor": "start"},
        "axis": {**text, "gridColor": line, "domainColor": line, "tickColor": line},
        "legend": {**text, "symbolStrokeWidth": 2.5},
        "header": {**text, "labelFontSize": 12},
        "text": {"color": ink},
        "rule": {"color": muted},
        "line": {"strokeWidth": 2},
        "mark": {"color": (SERIES_DARK if dark else SERIES)[0]},
        "range": {
            "category": list(SERIES_DARK if dark else SERIES),
            "heatmap": {"scheme": "viridis"},
            "ramp": {"scheme": "viridis"},
            "diverging": {"scheme": "blueorange"},
        },
    }


def whole_ticks(values: Iterable[float], steps: int = 12) -> list[int] | None:
    """The ticks of an axis over whole numbers, each of them whole; None for other values.

    Vega would put ticks between them, and write those rounded: 1, 2, 2, 3, 3.

    Args:
        values: what the axis is over.
        steps: between the first tick and the last one, at most.
    """
    values = list(values)
    if not values or any(value != int(value) for value in values):
        return None
    low, high = int(min(values)), int(max(values))
    powers = (10**power for power in itertools.count())
    sizes = (digit * power for power in powers for digit in (1, 2, 5))
    step = next(size for size in sizes if high - low <= steps * size)
    return list(range(-(-low // step) * step, high + 1, step))


def options(found: list[Record], field: str) -> list[Any]:
    """The values of a field in order of appearance."""
    return list(dict.fromkeys(record[field] for record in found))


def chosen(
    chart: alt.Chart | alt.LayerChart | alt.FacetChart, found: list[Record], *fields: str
) -> alt.Chart | None:
    """The chart with a menu for each field, a slider for positions; the last value at first.

    A menu offers what there is for the choices before it: `usermeta` tells the page's script.
    None where there is nothing to choose from.
    """
    import altair as alt

    if not found:
        return None
    left = found
    for field in fields:
        values = options(found, field)
        label = f"{LABELS.get(field, field)} "
        sliding = field == SLIDING
        bind = (
            alt.binding_range(min=0, max=max(values), step=1, name=label)
            if sliding
            else alt.binding_select(options=values, name=label)
        )
        value = max(options(left, field)) if sliding else options(left, field)[-1]
        left = [r for r in left if r[field] == value]
        parameter = alt.param(name=f"chosen_{field}", value=value, bind=bind)
        chart = chart.add_params(parameter).transform_filter(
            f"datum[{field!r}] == {parameter.name}"
        )
    menus = [field for field in fields if field != SLIDING]
    ends: dict[tuple[Any, ...], int] = {}
    for record in found:
        place = tuple(record[field] for field in menus)
        ends[place] = max(ends.get(place, 0), record.get(SLIDING, 0))
    there = [[*place, end] for place, end in ends.items()]
    return chart.properties(usermeta={"menus": menus, "there": there})  # pyright: ignore


def by_model(chart: alt.Chart | alt.FacetChart, found: list[Record]) -> alt.Chart | None:
    """With a menu of checkpoints."""
    return chosen(chart, found, "model")


def lines(
    found: list[Record],
    x: str,
    y: str,
    colour: str,
    dash: str | None = None,
    ordered: bool = False,
    x_scale: dict[str, Any] | None = None,
) -> alt.Chart:
    """Lines with points over `x`, of `value` under the title `y`.

    Args:
        found: records.
        x: field.
        y: what the value is.
        colour: field of the lines.
        dash: another.
        ordered: whether the lines have an order, such as depth, that colours should show.
        x_scale: of an axis that is not linear.
    """
    import altair as alt

    scale = alt.Scale(scheme="viridis") if ordered else alt.Undefined
    channels: dict[str, Any] = {
        "x": alt.X(f"{x}:Q", scale=alt.Scale(**x_scale))
        if x_scale
        else alt.X(f"{x}:Q", axis=_axis(x, found)),
        "y": alt.Y("value:Q", title=y),
        "color": alt.Color(
            colour,
            type="ordinal" if ordered else "nominal",
            sort=options(found, colour),
            scale=scale,
            legend=alt.Legend(columns=1 + len(options(found, colour)) // 20, symbolLimit=60),
        ),
        "tooltip": [*_tips(found, "value"), alt.Tooltip("value:Q", title=y, format=".4g")],
    }
    if dash:
        channels["strokeDash"] = alt.StrokeDash(f"{dash}:N", sort=options(found, dash))
        channels["shape"] = alt.Shape(f"{dash}:N", sort=options(found, dash), legend=None)
    chart = alt.Chart(data(found)).mark_line(point=alt.OverlayMarkDef(size=40))
    return chart.encode(**channels).properties(width=WIDTH, height=HEIGHT)


def heat(
    found: list[Record],
    x: str,
    y: str,
    what: str,
    scale: dict[str, Any] | None = None,
    sort_x: Any = None,
    sort_y: Any = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> alt.Chart:
    """A cell for each record, coloured by its value.

    Args:
        found: records.
        x: field along.
        y: field up.
        what: the value is.
        scale: of the colours; viridis when not given.
        sort_x: order along: that of appearance when not given.
        sort_y: order from the top.
        size: width and height.
    """
    import altair as alt

    return (
        alt.Chart(data(found))
        .mark_rect()
        .encode(
            x=alt.X(f"{x}:O", sort=sort_x or alt.EncodingSortField("position"), axis=_axis(x)),
            y=alt.Y(f"{y}:O", sort=sort_y),
            color=alt.Color(
                "value:Q", title=what, scale=alt.Scale(**(scale or {"scheme": "viridis"}))
            ),
            tooltip=[*_tips(found, "value"), alt.Tooltip("value:Q", title=what, format=".4g")],
        )
        .properties(width=size[0], height=size[1])
    )


def histogram(found: list[Record], field: str, colour: str) -> alt.Chart:
    """Steps of counts over the middles of bins, areas that lie on each other."""
    import altair as alt

    return (
        alt.Chart(data(found))
        .mark_area(interpolate="step", opacity=0.45, line=True)
        .encode(
            x=alt.X(f"{field}:Q"),
            y=alt.Y("value:Q", title="tokens", stack=None),
            color=alt.Color(f"{colour}:N", sort=options(found, colour)),
            tooltip=[f"{colour}:N", alt.Tooltip(f"{field}:Q", format=".3f"), "value:Q"],
        )
        .properties(width=620, height=200)
    )


def bars(found: list[Record], x: str, y: str, column: str, row: str | None = None) -> alt.Chart:
    """Bars by `x` and coloured so, a panel for each value of `column`, and of `row`."""
    import altair as alt

    channels = {} if row is None else {"row": alt.Row(f"{row}:N", sort=options(found, row))}
    return (
        alt.Chart(data(found))
        .mark_bar()
        .encode(
            x=alt.X(f"{x}:N", sort=options(found, x), axis=alt.Axis(labelAngle=0, title=None)),
            y=alt.Y("value:Q", title=y),
            color=alt.Color(f"{x}:N", sort=options(found, x), legend=None),
            column=alt.Column(f"{column}:N", sort=options(found, column), title=None),
            tooltip=[
                f"{x}:N",
                f"{column}:N",
                *([f"{row}:N"] if row else []),
                alt.Tooltip("value:Q", format=".3f"),
            ],
            **channels,
        )
        .properties(width=150, height=130)
    )


def data(found: list[Record]) -> alt.Data:
    """Records as a chart's data: as CSV, which is a fifth of JSON, numbers to five digits."""
    import altair as alt

    fields = list(dict.fromkeys(field for record in found for field in record))
    text = io.StringIO()
    rows = csv.DictWriter(text, fields, lineterminator="\n")
    rows.writeheader()
    rows.writerows({k: _short(v) for k, v in record.items()} for record in found)
    numbers = {
        field
        for field in fields
        if all(isinstance(r[field], int | float) for r in found if r.get(field) is not None)
    }
    kinds = {field: "number" if field in numbers else "string" for field in fields}
    return alt.InlineData(text.getvalue(), format=alt.CsvDataFormat(type="csv", parse=kinds))


def _short(value: Any) -> Any:
    return f"{value:.5g}" if isinstance(value, float) else value


def _axis(field: str, found: Sequence[Record] = ()) -> alt.Axis:
    """Of a field; of one that is drawn to scale, with the records that it is drawn for."""
    import altair as alt

    if field == "place":
        return alt.Axis(labelAngle=-60, title=None, labelLimit=90)
    if field in ("method", "with"):
        return alt.Axis(labelAngle=-30, title=None, labelLimit=220)
    values = [record.get(field) for record in found]
    numbers = [value for value in values if isinstance(value, int | float)]
    ticks = whole_ticks(numbers) if len(numbers) == len(values) else None
    return alt.Axis(labelAngle=0, values=ticks, format=",d") if ticks else alt.Axis(labelAngle=0)


def _tips(found: list[Record], *left_out: str) -> list[alt.Tooltip]:
    import altair as alt

    hidden = {*left_out, "place", "figure"}
    fields = [field for field in (found[0] if found else {}) if field not in hidden]
    return [alt.Tooltip(field, type="nominal") for field in fields]


def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script, which defines `window.vegaEmbed`."""
    import vl_convert

    return vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue] (its stub errs)


def write_figures(directory: str | Path, figures: Sequence[Figure], kind: str) -> list[Path]:
    """Every figure as a file of its own, on a light background, as the page first shows it.

    Args:
        directory: made when missing.
        figures: their names become the files' names.
        kind: one of `FORMATS`.

    Raises:
        RequestError: a format that there is not.
        OSError: a figure cannot be written; one that was there stays as it was.
    """
    import vl_convert

    if kind not in FORMATS:
        raise RequestError(f"figures as {kind}: allowed are {' and '.join(FORMATS)}")
    paths = []
    for figure in figures:
        path = Path(
            directory, f"{re.sub(r'[^a-z0-9]+', '-', figure.name.lower()).strip('-')}.{kind}"
        )
        if kind == "svg":
            write_text(path, vl_convert.vegalite_to_svg(figure.spec, config=theme(False)))
        else:
            write_file(path, vl_convert.vegalite_to_png(figure.spec, config=theme(False), scale=2))
        paths.append(path)
    return paths
