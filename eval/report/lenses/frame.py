"""What the figures of all lenses share: names of checkpoints, records of arrays, menus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from eval.lenses.named import Named

Document = dict[str, Any]


def model_name(document: Document) -> str:
    """What a checkpoint is called in a menu: its name, and its step."""
    checkpoint = document["checkpoint"]
    return f"{checkpoint['name']}, step {checkpoint['step']:,}"


def records(documents: Sequence[Document], array: str) -> list[dict[str, Any]]:
    """A flat record for each number of an array in every document that has it, with its `model`."""
    found = []
    for document in documents:
        if array in document["arrays"]:
            named = Named.read(document["arrays"][array])
            found += [{"model": model_name(document)} | r for r in named.records()]
    return found


def menu(field: str, options: Sequence[Any], label: str) -> alt.Parameter:
    """A choice among the values of a field; filter by `alt.datum[field] == parameter`."""
    box = alt.binding_select(options=list(options), name=f"{label} ")
    return alt.param(name=f"chosen_{field}", value=options[-1], bind=box)


def slider(field: str, last: int, label: str, first: int = 0) -> alt.Parameter:
    """A choice among whole numbers."""
    bar = alt.binding_range(min=first, max=last, step=1, name=f"{label} ")
    return alt.param(name=f"chosen_{field}", value=last, bind=bar)


def chosen(chart: alt.Chart, *parameters: tuple[str, alt.Parameter]) -> alt.Chart:
    """The chart with only the records that menus and sliders name: (field, parameter) pairs."""
    for field, parameter in parameters:
        chart = chart.add_params(parameter).transform_filter(
            f"datum[{field!r}] == {parameter.name}"
        )
    return chart
