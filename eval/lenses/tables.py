"""What lenses found, as tables for a terminal."""

from __future__ import annotations

import io
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eval.lenses.named import Label
from eval.results import Row

WIDTH = 140
LAYERS = 12  # columns
LINES = 30  # of one lens' figures
PLACES = ("figure", "value", "low", "high", "n", "layer")
ROW = {"key", "kind", "lens", "checkpoint", "prompts", "prompt_kind", "length", "look", "schema"}


def lens_tables(document: dict[str, Any], rows: list[Row]) -> str:
    """The figures of one look, those by layer in columns, then the tables that the lens made."""
    model = document["checkpoint"]
    title = f"{document['lens']}: {document['about']} ({model['name']}, step {model['step']})"
    figures = [{k: v for k, v in row.items() if k not in ROW} for row in rows]
    layered = [figure for figure in figures if "layer" in figure]
    parts = [title, _by_layer(layered), _single([f for f in figures if "layer" not in f])]
    for made in document["notes"].get("tables", []):
        parts.append(made["title"])
        parts.append(_table(made["columns"], made["rows"]))
    return "\n".join(part for part in parts if part)


def _by_layer(figures: list[dict[str, Any]]) -> str:
    labels = dict.fromkeys(figure["layer"] for figure in figures)
    layers = sorted(labels, key=lambda label: (isinstance(label, str), label))
    if not layers:
        return ""
    step = max(1, -(-len(layers) // LAYERS))
    shown = list(dict.fromkeys([*layers[::step], layers[-1]]))
    lines: dict[str, dict[Label, str]] = {}
    for figure in figures:
        lines.setdefault(_name(figure), {})[figure["layer"]] = _number(figure["value"])
    body = [[name, *(cells.get(layer, "") for layer in shown)] for name, cells in lines.items()]
    return _short(["by layer", *map(str, shown)], body)


def _single(figures: list[dict[str, Any]]) -> str:
    body = [[_name(f), _number(f["value"]), _interval(f), str(f.get("n", ""))] for f in figures]
    return _short(["figure", "value", "interval", "n"], body) if body else ""


def _short(columns: list[str], body: list[list[str]]) -> str:
    table = _table(columns, body[:LINES])
    more = len(body) - LINES
    return table if more <= 0 else f"{table}\n... and {more} more lines in the rows"


def _name(figure: dict[str, Any]) -> str:
    places = [
        str(value) if isinstance(value, str) else f"{name} {_number(value)}"
        for name, value in figure.items()
        if name not in PLACES
    ]
    return ", ".join([figure["figure"], *places])


def _interval(figure: dict[str, Any]) -> str:
    if figure.get("low") is None or figure.get("high") is None:
        return ""
    return f"{_number(figure['low'])} to {_number(figure['high'])}"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _table(columns: list[str], rows: list[list[str]]) -> str:
    table = Table(box=box.SIMPLE_HEAD)
    for place, name in enumerate(columns):
        table.add_column(escape(name), justify="right" if place else "left")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    out = io.StringIO()
    Console(file=out, width=WIDTH).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
