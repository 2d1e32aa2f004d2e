"""What the figures of all lenses share: records, menus and sliders, two kinds of chart."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
from markupsafe import Markup

from eval.lenses.named import Named
from eval.report.charts import whole_ticks

Document = dict[str, Any]
Record = dict[str, Any]

WIDTH, HEIGHT = 620, 240
SLIDING = "position"
LABELS = {"model": "checkpoint", "of": "units", "group": "at"}
"""Of menus, where they are not called as their field."""
DIVERGING = alt.Scale(scheme="blueorange", reverse=True, domainMid=0)
"""Blue above 0 and orange below, as in the highlighted texts."""


def model_name(document: Document) -> str:
    """What a checkpoint is called in a menu: its name and its step."""
    checkpoint = document["checkpoint"]
    return f"{checkpoint['name']} at {checkpoint['step']}"


def records(documents: Sequence[Document], array: str) -> list[Record]:
    """A record for each number of an array in every document that has it, with its `model`."""
    found = []
    for document in documents:
        if array in document["arrays"]:
            named = Named.read(document["arrays"][array])
            found += [{"model": model_name(document)} | r for r in named.records()]
    return known(found)


def figure_records(documents: Sequence[Document], *names: str) -> list[Record]:
    """The single figures of these names in every document, with its `model`."""
    return known(
        {"model": model_name(document)} | figure
        for document in documents
        for figure in document["figures"]
        if figure["figure"] in names
    )


def known(found: Iterable[Record]) -> list[Record]:
    """Those with a value, which is what a chart can show."""
    return [r for r in found if r["value"] is not None and r["value"] == r["value"]]


def averaged(found: list[Record], *fields: str) -> list[Record]:
    """The mean value over all records that agree in these fields."""
    values: dict[tuple[Any, ...], list[float]] = {}
    for record in found:
        values.setdefault(tuple(record[f] for f in fields), []).append(record["value"])
    return [
        dict(zip(fields, place, strict=True)) | {"value": sum(own) / len(own)}
        for place, own in values.items()
    ]


def at_tokens(documents: Sequence[Document], found: list[Record]) -> list[Record]:
    """With `token` and `place` (a label for an axis) for records of a prompt's positions.

    Padded or missing positions are left out.
    """
    pieces = {
        (model_name(d), f"{p['kind']} {p['index']}"): p["pieces"]
        for d in documents
        for p in d["prompts"]
    }
    placed = []
    for record in found:
        tokens = pieces[record["model"], record["prompt"]]
        if record["position"] < len(tokens):
            token = visible(tokens[record["position"]])
            place = f"{record['position']} {token}"
            placed.append(record | {"token": token, "place": place})
    return placed


def visible(piece: str) -> str:
    """A token whose spaces, ends of line and control characters can be seen."""
    text = piece.replace(" ", "·").replace("\n", "⏎")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text) or "∅"


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


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
    """A small table as HTML, every text in it escaped."""
    head = Markup("").join(Markup("<th>{}</th>").format(column) for column in columns)
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row)
        )
        for row in rows
    )
    return Markup(
        '<div class="scroll"><table class="plain"><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>"
    ).format(head, body)


def folded(summary: str, *content: Markup) -> Markup:
    """What opens on a click, and in print."""
    return Markup('<details class="print"><summary>{}</summary>{}</details>').format(
        summary, Markup("").join(content)
    )


def codes(pieces: Iterable[str]) -> Markup:
    """Tokens, each as it is."""
    return Markup(" ").join(Markup("<code>{}</code>").format(visible(p)) for p in pieces)


def data(found: list[Record]) -> alt.Data:
    """Records as a chart's data: as CSV, which is a fifth of JSON, numbers to five digits."""
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


def lines(
    found: list[Record],
    x: str,
    y: str,
    colour: str,
    dash: str | None = None,
    ordered: bool = False,
) -> alt.Chart:
    """Lines with points over `x`, of `value` under the title `y`.

    Args:
        found: records.
        x: field, with Vega-Lite's type where it is not the usual one.
        y: what the value is.
        colour: field of the lines.
        dash: another.
        ordered: whether the lines have an order, such as depth, that colours should show.
    """
    scale = alt.Scale(scheme="viridis") if ordered else alt.Undefined
    channels: dict[str, Any] = {
        "x": alt.X(x if ":" in x else f"{x}:Q", axis=_axis(x, found)),
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
    scale: alt.Scale | None = None,
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
    return (
        alt.Chart(data(found))
        .mark_rect()
        .encode(
            x=alt.X(f"{x}:O", sort=sort_x or alt.EncodingSortField("position"), axis=_axis(x)),
            y=alt.Y(f"{y}:O", sort=sort_y),
            color=alt.Color("value:Q", title=what, scale=scale or alt.Scale(scheme="viridis")),
            tooltip=[*_tips(found, "value"), alt.Tooltip("value:Q", title=what, format=".4g")],
        )
        .properties(width=size[0], height=size[1])
    )


def _axis(field: str, found: Sequence[Record] = ()) -> alt.Axis:
    """Of a field; of one that is drawn to scale, with the records that it is drawn for."""
    if field == "place":
        return alt.Axis(labelAngle=-60, title=None, labelLimit=90)
    if field in ("method", "with"):
        return alt.Axis(labelAngle=-30, title=None, labelLimit=220)
    values = [record.get(field) for record in found]
    numbers = [value for value in values if isinstance(value, int | float)]
    ticks = whole_ticks(numbers) if len(numbers) == len(values) else None
    return alt.Axis(labelAngle=0, values=ticks, format=",d") if ticks else alt.Axis(labelAngle=0)


def _tips(found: list[Record], *left_out: str) -> list[alt.Tooltip]:
    hidden = {*left_out, "place", "figure"}
    fields = [field for field in (found[0] if found else {}) if field not in hidden]
    return [alt.Tooltip(field, type="nominal") for field in fields]
