"""Charts: lines, cells, bars and dots of records, as Vega-Lite specifications.

A specification is a dictionary; `eval.drawing` has their common style, and draws them.
"""

import csv
import io
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eval.drawing import LIGHT, MARKS, SERIES, Chart, plain
from eval.drawing import Figure as Figure  # what lenses draw

Record = dict[str, Any]
DASHES = [[1, 0], [4, 3], [2, 2], [8, 3, 2, 3]]
WIDTH, HEIGHT = 620, 240
FEW = 5
"""Points of a line whose intervals are upright lines; those of more points are a band."""
APART = 0.014
"""Between lines that would cover each other, as a share of either axis."""
LISTED = 20
"""Lines in a column of a legend; of more that are ordered by colour, so many are listed."""
ROW = 9
"""Height of a row of cells, at least, unless rows are all one size."""
SLIDING = "position"
LABELS = {"model": "checkpoint", "group": "at"}
"""Of menus, where they are not called as their field."""
DIVERGING = {"scheme": "blueorange", "reverse": True, "domainMid": 0}
"""Colours of a scale: blue above 0 and orange below, as in the highlighted texts."""
APART_LABELS = {"labelOverlap": "parity"}
"""Of an axis whose labels may be too many: those that would cover others are left out."""
PLACE = {"labelAngle": -60, "title": None, "labelLimit": 90}
"""Of an axis whose values are tokens."""


def whole_ticks(values: Iterable[float], steps: int = 12) -> list[int] | None:
    """At most `steps` + 1 whole ticks of an axis over whole numbers; None for other values.

    Vega would put ticks between them, and write those rounded: 1, 2, 2, 3, 3.
    """
    values = list(values)
    if not values or any(value != int(value) for value in values):
        return None
    low, high = int(min(values)), int(max(values))
    powers = (10**power for power in itertools.count())
    sizes = (digit * power for power in powers for digit in (1, 2, 5))
    step = next(size for size in sizes if high - low <= steps * size)
    return list(range(-(-low // step) * step, high + 1, step))


def options(records: Sequence[Record], field: str) -> list[Any]:
    """The values of a field in order of appearance."""
    return list(dict.fromkeys(record[field] for record in records))


def chosen(chart: Any, records: list[Record], *fields: str) -> Chart | None:
    """The chart with a menu for each field, a slider for positions; the last value at first.

    A menu offers the values that go with the choices before it: `usermeta` has them for the page's
    script. None without records.
    """
    if not records:
        return None
    remaining, params, filters = records, [], []
    for field in fields:
        values, label = options(records, field), f"{LABELS.get(field, field)} "
        if field == SLIDING:
            bind = {"input": "range", "min": 0, "max": max(values), "step": 1, "name": label}
            value = max(options(remaining, field))
        else:
            bind = {"input": "select", "options": values, "name": label}
            value = options(remaining, field)[-1]
        remaining = [r for r in remaining if r[field] == value]
        params.append({"name": f"chosen_{field}", "value": value, "bind": bind})
        filters.append({"filter": f"datum[{json.dumps(field)}] == chosen_{field}"})
    menus = [field for field in fields if field != SLIDING]
    ends: dict[tuple[Any, ...], int] = {}
    for record in records:
        place = tuple(record[field] for field in menus)
        ends[place] = max(ends.get(place, 0), record.get(SLIDING, 0))
    there = [[*place, end] for place, end in ends.items()]
    asked = {"params": params, "transform": filters, "usermeta": {"menus": menus, "there": there}}
    return {**plain(chart), **asked}


def by_model(chart: Any, records: list[Record]) -> Chart | None:
    """With a menu of checkpoints."""
    return chosen(chart, records, "model")


def lines(
    records: list[Record],
    x: str,
    y: str | None,
    colour: str,
    dash: str = "",
    *,
    states: Sequence[str] = (),
    ordered: bool = False,
    x_scale: Record | None = None,
    axis: Record | None = None,
    upright: Record | None = None,
    share: bool = False,
    series: Mapping[str, int] | None = None,
    legend: Record | None = None,
    named: bool = False,
    band: bool | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> Chart:
    """Lines with points over `x`, of `value` under the title `y`.

    Records with `low` and `high` have these intervals, as upright lines or as bands; lines that
    would cover each other are then drawn side by side. A `tip` is shown when its point is pointed
    at, a `text` stands above its point.

    Args:
        records: the points.
        x: field, and the axis' title.
        y: the title of the values.
        colour: field of the lines; each has a mark of its own, too.
        dash: another: lines of its last value are whole and their marks filled.
        states: all values of that field; default: in order of appearance.
        ordered: whether the lines have an order, such as depth, that colours should show.
        x_scale: of an axis that is not linear.
        axis: of x, where it is not as by default.
        upright: scale and axis of y, where they are not as by default.
        share: whether values are per cent, from 0 to 100.
        series: numbers of the lines' colours and marks; default: in order of appearance.
        legend: of the lines, where it is not as by default.
        named: whether lines have their names at the right end, in the place of a legend; of shares,
            or of one line.
        band: whether intervals are bands; default: where a line has more than `FEW` points.
        size: width and height.
    """
    numbers = series or {name: i for i, name in enumerate(options(records, colour))}
    names, states = list(numbers), states or (options(records, dash) if dash else [])
    most = max(Counter((r[colour], r.get(dash)) for r in records).values(), default=0)
    limits = any(r["low"] < r["high"] for r in records if "low" in r)
    band = most > FEW if band is None else band
    axis = axis or ({} if x_scale else _axis(x, records))
    across, height = x, "value"
    if limits and not band:
        records, across, height = _apart(records, x, colour, dash, share), "across", "height"

    def styled(styles: Sequence[Any], shown: bool = True) -> Record:
        """The channel by which lines are told apart."""
        used = {"domain": names, "range": [styles[i % len(styles)] for i in numbers.values()]}
        some = {"values": names[:: 1 + len(names) // LISTED]} if ordered else {"symbolLimit": 60}
        given = legend or {"columns": 1 if ordered else 1 + len(names) // LISTED} | some
        return {
            "field": colour,
            "type": "ordinal" if ordered else "nominal",
            "sort": names,
            "scale": {"scheme": "viridis", "domain": names} if ordered else used,
            "legend": given if shown and not named else None,
        }

    ticks = [0, 50, 100] if size[1] < 180 else [0, 25, 50, 75, 100]
    along_y: Record = {"field": height, "type": "quantitative", "title": y, **(upright or {})}
    if share:
        labels = {} if y else {"labelExpr": "datum.label + (datum.value == 100 ? ' %' : '')"}
        along_y |= {"scale": {"domain": [0, 100]}, "axis": {"values": ticks, **labels}}
    line: Record = {"y": along_y}
    point: Record = {"y": along_y} | ({} if ordered else {"shape": styled(MARKS)})
    if dash:
        patterns = {"domain": states, "range": DASHES[: len(states)][::-1]}
        title = {"title": dash} if (legend or {}).get("title") else {}
        key = None if named else {"symbolType": "stroke", **(legend or {}), **title}
        line["strokeDash"] = {"field": dash, "type": "nominal", "scale": patterns, "legend": key}
        whole = f"datum[{json.dumps(dash)}] == {json.dumps([*states, ''][len(states) - 1])}"
        inside = {"test": whole, **styled(SERIES, shown=False)}
        point["fill"] = {"condition": inside, "value": LIGHT["card"]}
    elif len(names) > len(SERIES) and not ordered:
        line["strokeDash"] = styled([d for d in DASHES for _ in SERIES], shown=False)
    if records and "tip" in records[0]:
        point["description"] = {"field": "tip", "type": "nominal"}
    else:
        point["tooltip"] = [*_tips(records), _value(y)]
    layers: list[Record] = [
        {"mark": {"type": "line", "aria": False}, "encoding": line},
        {
            "mark": {"type": "point", "filled": not dash, "strokeWidth": 1.5, "opacity": 1,
                     "size": 40 if most <= 25 and size[0] > 150 else 14},
            "encoding": point,
        },
    ]  # fmt: skip
    if limits:
        ends = {"y": along_y | {"field": "low"}, "y2": {"field": "high"}}
        ends |= {"detail": {"field": dash, "type": "nominal"}} if dash else {}
        rule = {"type": "rule", "strokeWidth": 1.2, "opacity": 0.35, "aria": False}
        mark = {"type": "area", "opacity": 0.13, "aria": False} if band else rule
        layers.insert(0, {"mark": mark, "encoding": ends})
    written = {"type": "text", "fontWeight": 600, "aria": False}
    if records and "text" in records[0]:
        encoding = {"y": along_y, "text": {"field": "text", "type": "nominal"}}
        layers.append({"mark": {**written, "dy": -12}, "encoding": encoding})
    if named:
        encoding = {"y": along_y, "text": {"field": colour, "type": "nominal"}}
        at_ends = data(_ends(records, across, height, colour, size[1]))
        mark = {**written, "align": "left", "dx": 12, "fontSize": 12}
        layers.append({"data": at_ends, "mark": mark, "encoding": encoding})
    along = {"field": across, "type": "quantitative", "title": x, "scale": x_scale or {}}
    return {
        "data": data(records),
        "width": size[0],
        "height": size[1],
        "encoding": {"x": along | {"axis": axis}, "color": styled(SERIES)},
        "layer": layers,
    }


def _apart(records: list[Record], x: str, colour: str, dash: str, share: bool) -> list[Record]:
    """The records with places to be drawn at, `across` and `height`, a little off for each line."""
    order = [options(records, field) if field else [None] for field in (colour, dash)]
    there = {(r[colour], r.get(dash)) for r in records}
    drawn = [line for line in itertools.product(*order) if line in there]
    span = max(r[x] for r in records) - min(r[x] for r in records)
    moved = []
    for r in records:
        off = APART * (drawn.index((r[colour], r.get(dash))) - (len(drawn) - 1) / 2)
        height = r["value"] + (100 * off if share else 0)
        moved.append({**r, "across": r[x] + span * off, "height": height})
    return moved


def _ends(records: list[Record], x: str, y: str, colour: str, height: int) -> list[Record]:
    """Where the names of lines go: beside their last points, so that none covers another."""
    space, last = 1300 / height, {r[colour]: r[y] for r in sorted(records, key=lambda r: r[x])}
    names, places = sorted(last, key=lambda name: -last[name]), []
    for name in names:
        places.append(min([last[name], *(place - space for place in places[-1:])]))
    up, right = max(0.0, -min(places, default=0.0)), max((r[x] for r in records), default=0)
    return [{colour: n, x: right, y: place + up} for n, place in zip(names, places, strict=True)]


def heat(
    records: list[Record],
    x: str,
    y: str,
    what: str,
    scale: Record | None = None,
    sort_x: Any = None,
    sort_y: Any = None,
    size: tuple[int, int | Record] = (WIDTH, HEIGHT),
) -> Chart:
    """A cell for each record, coloured by its value; `what` is the value's title.

    `scale` is of the colours. Along, the order is that of positions unless `sort_x` gives another;
    `sort_y` is the order from the top. Labels that would cover others are left out, and the cells
    of many rows make the chart higher.
    """
    across = {"field": x, "type": "ordinal", "sort": sort_x or {"field": "position"}}
    upright = {"field": y, "type": "ordinal", "axis": APART_LABELS}
    upright |= {"sort": sort_y} if sort_y else {}
    if isinstance(size[1], int):
        size = size[0], max(size[1], ROW * len(options(records, y)))
    colour = {"field": "value", "type": "quantitative", "title": what}
    encoding = {
        "x": across | {"axis": APART_LABELS | _axis(x)},
        "y": upright,
        "color": colour | {"scale": scale or {"scheme": "viridis"}},
        "tooltip": [*_tips(records), _value(what)],
    }
    return _chart(records, {"type": "rect"}, encoding, size)


def histogram(records: list[Record], field: str, colour: str) -> Chart:
    """Steps of counts over the middles of bins, areas that lie on each other."""
    encoding = {
        "x": {"field": field, "type": "quantitative"},
        "y": {"field": "value", "type": "quantitative", "title": "tokens", "stack": None},
        "color": _sorted(records, colour),
        "tooltip": [{"field": colour}, {"field": field, "format": ".3f"}, {"field": "value"}],
    }
    mark = {"type": "area", "interpolate": "step", "opacity": 0.45, "line": True}
    return _chart(records, mark, encoding, (WIDTH, 200))


def bars(
    records: list[Record],
    x: str,
    y: str | None,
    column: str | None = None,
    row: str | None = None,
    size: tuple[int, int] = (150, 130),
    angle: int = 0,
) -> Chart:
    """Bars by `x` and coloured so, a panel for each value of `column`, and of `row`."""
    across = _sorted(records, x, axis={"labelAngle": angle, "title": None} | APART_LABELS)
    panels = {"column": column, "row": row}
    encoding = {
        "x": across,
        "y": {"field": "value", "type": "quantitative", "title": y},
        "color": _sorted(records, x, legend=None),
        "tooltip": [{"field": f} for f in (x, column, row) if f] + [_value(None, ".3f")],
        **{name: _sorted(records, of, title=None) for name, of in panels.items() if of},
    }
    return _chart(records, {"type": "bar"}, encoding, size)


def data(records: list[Record]) -> Record:
    """Records as a chart's data: as CSV, which is a fifth of JSON, numbers to five digits."""
    fields = list(dict.fromkeys(field for record in records for field in record))
    text = io.StringIO()
    rows = csv.DictWriter(text, fields, lineterminator="\n")
    rows.writeheader()
    for record in records:
        rows.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in record.items()})
    numbers = {
        field
        for field in fields
        if all(isinstance(r[field], int | float) for r in records if r.get(field) is not None)
    }
    kinds = {field: "number" if field in numbers else "string" for field in fields}
    return {"values": text.getvalue(), "format": {"type": "csv", "parse": kinds}}


def _chart(records: list[Record], mark: Record, encoding: Record, size: tuple[int, Any]) -> Chart:
    drawn = {"data": data(records), "mark": mark, "encoding": encoding}
    return drawn | {"width": size[0], "height": size[1]}


def _sorted(records: list[Record], field: str, **more: Any) -> Record:
    """A channel of words, in the order of appearance."""
    return {"field": field, "type": "nominal", "sort": options(records, field), **more}


def _axis(field: str, records: Sequence[Record] = ()) -> Record:
    """Of a field; of one that is drawn to scale, with the records that it is drawn for."""
    if field == "place":
        return PLACE
    if field in ("method", "with"):
        return {"labelAngle": -30, "title": None, "labelLimit": 220}
    values = [record.get(field) for record in records]
    numbers = [value for value in values if isinstance(value, int | float)]
    ticks = whole_ticks(numbers) if len(numbers) == len(values) else None
    return {"labelAngle": 0} | ({"values": ticks, "format": ",d"} if ticks else {})


def _tips(records: list[Record]) -> list[Record]:
    hidden = {"value", "place", "figure", "across", "height"}
    fields = [field for field in (records[0] if records else {}) if field not in hidden]
    return [{"field": field, "type": "nominal"} for field in fields]


def _value(title: str | None, form: str = ".4g") -> Record:
    shown = {"field": "value", "type": "quantitative", "format": form}
    return shown | ({"title": title} if title else {})
