"""Charts: lines, cells, bars and dots of records, by Altair; `eval.drawing.figures` draws them.

One style for pages and for files, in light and in dark. Charts have the colours of `LIGHT`; the
style rules of `colours`, in the page or in the file, replace them by those of `DARK` where the
reader prefers that. Records have `value`, `low` and `high` where there is an interval, and `tip`,
which is shown when the mark is pointed at.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = dict[str, Any]
Chart = Any
"""An Altair chart, or a Vega-Lite specification."""
LIGHT = {
    "card": "#ffffff", "ink": "#1b2430", "muted": "#5d6875", "line": "#dde2e7",
    "c0": "#0b63b5", "c1": "#b86e00", "c2": "#00795c", "c3": "#8e3b8c", "c4": "#a5243d",
    "c5": "#6a727d",
}  # fmt: skip
"""Colours by their names in style sheets; c0 to c5 are those of series."""
DARK = {
    "card": "#181e25", "ink": "#e6eaee", "muted": "#9aa6b3", "line": "#2e3844",
    "c0": "#62aef7", "c1": "#f0a33c", "c2": "#3fc8a0", "c3": "#d18ccf", "c4": "#f08096",
    "c5": "#a3acb7",
}  # fmt: skip
SERIES = [LIGHT[f"c{i}"] for i in range(6)]
MARKS = ["diamond", "square", "triangle-up", "cross", "triangle-down", "circle"]
DASHES = [[1, 0], [4, 3], [2, 2], [8, 3, 2, 3]]
SIZE = (230, 130)
"""Width and height inside the axes: a chart fits a telephone, four stand beside each other."""
LISTED = 6
"""Names that a legend lists, whether they are in its chart or in one beside it."""
MARKED = 20
"""Points of a line that has marks, at most."""


def options(records: Sequence[Record], field: str) -> list[Any]:
    """The values of a field in order of appearance."""
    return list(dict.fromkeys(record[field] for record in records))


def lines(
    records: Sequence[Record],
    x: str,
    y: str,
    colour: str,
    dash: str = "",
    *,
    names: Sequence[Any] = (),
    percent: bool = False,
    top: float | None = None,
    ordered: bool = False,
    even: bool = False,
    stepped: bool = False,
    scale: Mapping[str, Any] | None = None,
    axis: Mapping[str, Any] | None = None,
    size: tuple[int, int] = SIZE,
) -> Chart:
    """Lines with points over `x`, of `value` under the title `y`, intervals as upright lines.

    Args:
        x: field, and the axis' title.
        y: the title of the values.
        colour: field of the lines; each has a mark of its own, too.
        dash: another: lines of its last value are whole, and their marks filled.
        names: all values of `colour`, in the order of colours; default: as they come.
        percent: whether values are fractions, shown in per cent from 0 to 100.
        top: where values end that begin at 0; default: the axis has the range of the values.
        ordered: whether the lines have an order, such as depth, that colours should show.
        even: whether values of x are evenly spaced.
        stepped: whether lines are steps, without marks: counts over the middles of bins.
        scale: of x, where it is not linear.
        axis: of x, where it is not as usual.
        size: width and height.
    """
    alt = open_altair()

    names = list(names) or options(records, colour)
    sizes = Counter((r[colour], r.get(dash)) for r in records)
    records = [r | {"marked": sizes[r[colour], r.get(dash)] <= MARKED} for r in records]
    upright: Record = {"title": y, "type": "quantitative"}
    ends = [0, 1] if percent else alt.Undefined if top is None else [0, top]
    upright |= {"scale": alt.Scale(domain=ends, zero=stepped)}
    upright |= {"axis": alt.Axis(format="%", tickCount=5) if percent else alt.Axis(tickCount=5)}
    base = alt.Chart(_data(records, "value"), width=size[0], height=size[1]).encode(
        x=_along(records, x, even, scale, axis),
        y=alt.Y(field="value", **upright),
        color=_channel(alt.Color, records, colour, names, SERIES, ordered),
    )
    line = base
    if dash:
        states = options(records, dash)[::-1]
        line = base.encode(strokeDash=_channel(alt.StrokeDash, records, dash, states, DASHES))
    elif len(names) > len(SERIES) and not ordered:
        dashes = [dash for dash in DASHES for _ in SERIES]
        line = base.encode(strokeDash=_channel(alt.StrokeDash, records, colour, names, dashes))
    if stepped:
        return line.mark_line(interpolate="step", aria=False)
    layers = [line.mark_line(aria=False)]
    if any(_has_limits(r) for r in records):
        limits = base.transform_filter("datum.low < datum.high").mark_rule(aria=False, opacity=0.4)
        layers.append(limits.encode(y=alt.Y(field="low", **upright), y2=alt.Y2(field="high")))
    if any(r["marked"] for r in records):
        if not ordered:
            marks = [MARKS[(i + i // len(SERIES)) % len(MARKS)] for i in range(len(names))]
            base = base.encode(shape=_channel(alt.Shape, records, colour, names, marks))
        base = base.transform_filter("datum.marked")
        layers += _points(base, options(records, dash) if dash else [], dash)
    return alt.layer(*layers)


def _along(
    records: Sequence[Record],
    x: str,
    even: bool,
    scale: Mapping[str, Any] | None,
    axis: Mapping[str, Any] | None,
) -> Any:
    """The horizontal channel of lines, with ticks at whole numbers where all values are whole."""
    alt = open_altair()

    values = [record[x] for record in records]
    ticks: Record = {"tickCount": 6}
    if not even and all(isinstance(value, int) for value in values):
        low, high = min(values, default=0), max(values, default=0)
        ticks["format"] = ",d"
        if high - low <= 12:  # Vega would put ticks between whole numbers
            ticks["values"] = list(range(low, high + 1, 1 + (high - low) // 8))
    labels = {"grid": False, "labelAngle": 0, "labelOverlap": True, "labelSeparation": 6}
    linear = {} if even else {"zero": False, "nice": False, "padding": 8}
    return alt.X(
        field=x,
        type="ordinal" if even else "quantitative",
        scale=alt.Scale(**(scale or linear)),
        axis=alt.Axis(**labels | ticks | dict(axis or {})),
    )


def _points(base: Any, states: Sequence[Any], dash: str) -> list[Any]:
    """The marks of lines with their tips, filled at the last of the states of `dash`, if any."""
    alt = open_altair()

    base = base.encode(description=alt.Description(field="tip", type="nominal"))
    parts = [(base.transform_filter(_equals(dash, s)), s == states[-1]) for s in states]
    return [
        part.mark_point(filled=last, opacity=1, size=32) for part, last in parts or [(base, True)]
    ]


def cells(
    records: Sequence[Record],
    x: str,
    y: str,
    value: str,
    *,
    diverging: bool = False,
    domain: Sequence[float],
    text: str = "",
    facet: str = "",
    descending: bool = False,
    size: tuple[int, int] = (230, 150),
) -> Chart:
    """A cell for each record, coloured by its value, whose title is `value`.

    Args:
        x: field along; words in the order of appearance.
        y: field upright, from the top; from the bottom where `descending`.
        value: the title of the values.
        diverging: whether 0 is the middle of the colours: blue above, orange below, of equal
            strength where sizes are equal.
        domain: the least and the largest value.
        text: field of words that stand in the cells.
        facet: a field: small ones beside each other for each of its values.
        descending: whether the first value of y is at the bottom.
        size: width and height, at least.
    """
    alt = open_altair()

    scheme = {"scheme": "blues"} if text else {"scheme": "viridis"}
    if diverging:
        scheme = {"scheme": "blueorange", "reverse": True}
        most = max(map(abs, domain)) or 1
        domain = (-most, most)
    columns = 3 if facet else 1
    width, height = (side // columns - 4 * bool(facet) for side in size)
    up = options(records, y)
    height = width if facet else max(height, 9 * len(up))
    order = sorted(up) if all(isinstance(label, int | float) for label in up) else up
    words, upright = (any(isinstance(r[axis], str) for r in records) for axis in (x, y))
    labels = {"labelOverlap": True, "labelLimit": 160, "labels": not facet, "ticks": not facet}
    titles = [None if facet or wordy else axis for wordy, axis in ((words, x), (upright, y))]
    width -= 60 * (upright and not text)  # the room that words take
    base = alt.Chart(_data(records, "value"), width=width, height=height).encode(
        x=alt.X(field=x, type="ordinal", sort=options(records, x) if words else None,
                axis=alt.Axis(labelAngle=-60 * words, title=titles[0], **labels)),
        y=alt.Y(field=y, type="ordinal", sort=order[::-1] if descending else order,
                axis=alt.Axis(title=titles[1], **labels)),
    )  # fmt: skip
    legend = alt.Legend(orient="bottom", direction="horizontal", gradientLength=140, title=value)
    drawn = base.mark_rect(aria=False).encode(
        color=alt.Color(
            field="value",
            type="quantitative",
            scale=alt.Scale(domain=list(domain), **scheme),
            legend=legend,
        )
    )
    if text:  # by the cell, which is the same on a dark page; `LIGHT` changes there
        ink = alt.condition("datum.value > 0.75", alt.value("white"), alt.value("black"))
        written = base.mark_text(fontSize=10, aria=False)
        drawn += written.encode(text=alt.Text(field=text, type="nominal"), color=ink)
    if facet:
        header = alt.Header(title=None, labelFontSize=8, labelPadding=2, labelLimit=width + 4)
        by = alt.Facet(field=facet, type="nominal", sort=options(records, facet), header=header)
        drawn = drawn.facet(facet=by, columns=columns, spacing=8)
    return drawn


def bars(records: Sequence[Record], x: str, y: str, group: str, names: Sequence[Any]) -> Chart:
    """Bars of `value` under the title `y`, coloured by `x`, with intervals as upright lines.

    Those of one `group`, if that is not empty, stand together. `names` are all values of `x`, in
    the order of colours, which are shades where they are many.
    """
    alt = open_altair()

    slant = {"labelAngle": -40, "labelLimit": 160, "title": None, "labelOverlap": True}
    base = alt.Chart(_data(records, "value"), width=SIZE[0], height=SIZE[1]).encode(
        x=alt.X(field=group or x, type="nominal", sort=options(records, group or x),
                axis=alt.Axis(**slant)),
        y=alt.Y(field="value", type="quantitative", title=y, axis=alt.Axis(tickCount=4)),
        color=_channel(alt.Color, records, x, names, SERIES, len(names) > len(SERIES))
        if group else alt.value(SERIES[0]),
        description=alt.Description(field="tip", type="nominal"),
    )  # fmt: skip
    if group:
        base = base.encode(xOffset=alt.XOffset(field=x, type="nominal", sort=names))
    drawn = base.mark_bar()
    if any(_has_limits(r) for r in records):
        ends = {"y": alt.Y(field="low", type="quantitative"), "y2": alt.Y2(field="high")}
        drawn += base.mark_rule(aria=False).encode(color=alt.value(LIGHT["ink"]), **ends)
    return drawn


def dots(
    records: Sequence[Record],
    x: str,
    y: str,
    colour: str,
    text: str,
    *,
    joined: str,
) -> Chart:
    """Points in a plane, coloured by a field, with the words of the field `text` above.

    Those whose colour is `joined` are joined by a line, in their order.
    """
    alt = open_altair()

    records = [{**record, "order": i} for i, record in enumerate(records)]
    base = alt.Chart(_data(records, x, y), width=230, height=180).encode(
        x=alt.X(field=x, type="quantitative", scale=alt.Scale(padding=14)),
        y=alt.Y(field=y, type="quantitative", scale=alt.Scale(padding=14)),
        color=_channel(alt.Color, records, colour, options(records, colour), SERIES),
    )
    along = base.transform_filter(_equals(colour, joined)).mark_line(aria=False)
    points = base.mark_point(filled=True, size=50, opacity=1).encode(
        description=alt.Description(field="tip", type="nominal"),
        shape=_channel(alt.Shape, records, colour, options(records, colour), MARKS[::-1]),
    )
    above = base.mark_text(dy=-11, aria=False, fontWeight=600)
    return (
        along.encode(order=alt.Order(field="order", type="quantitative"))
        + points
        + above.encode(text=alt.Text(field=text, type="nominal"))
    )


def open_altair() -> Any:
    """Altair, without the types of its arguments, which leave out what a dictionary holds."""
    import altair

    return altair


def _data(records: Iterable[Record], *needed: str) -> Any:
    """Records that have a finite number in each field that is needed."""
    alt = open_altair()

    numbers = [{k: v for k, v in record.items() if not isinstance(v, float) or math.isfinite(v)}
               for record in records]  # fmt: skip
    # A tuple, as Altair copies a list, and all that is in it, for each layer and panel.
    return alt.Data(values=tuple(record for record in numbers if record.keys() >= {*needed}))


def _channel(
    channel: Any, records: Sequence[Record], field: str, names: Sequence[Any],
    styles: Sequence[Any], ordered: bool = False,
) -> Any:  # fmt: skip
    """The channel by which values of a field are told apart; the legend has those of records."""
    alt = open_altair()

    kind, known = "ordinal" if ordered else "nominal", set(options(records, field))
    used = {"range": [styles[i % len(styles)] for i in range(len(names))]}
    bright = {"scheme": alt.SchemeParams(name="viridis", extent=[0.25, 0.9])}
    scale = alt.Scale(domain=list(names), **(bright if ordered else used))
    listed = [n for n in names if n in known or len(names) <= LISTED]
    if ordered:  # evenly chosen, the first and the last among them
        last, steps = len(names) - 1, max(1, min(LISTED, len(names)) - 1)
        listed = [names[round(i * last / steps)] for i in range(steps + 1)] if last else names
    legend = alt.Legend(title=field if ordered else None, values=listed)
    return channel(
        field=field, type=kind, sort=list(names), scale=scale,
        legend=legend if len(names) > 1 else None,
    )  # fmt: skip


def _equals(field: str, value: Any) -> str:
    return f"datum[{json.dumps(field)}] === {json.dumps(value)}"


def _has_limits(record: Record) -> bool:
    low, high = record.get("low"), record.get("high")
    return low is not None and high is not None and low < high
