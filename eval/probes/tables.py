"""Rows of probes, geometry and basins as tables for a terminal."""

import io
from collections import defaultdict
from collections.abc import Callable, Hashable
from statistics import mean, median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from eval.results import Row

WIDTH = 140
LINEAR = "Linear probes: top-1 %, and I_e = 1 - CE / ln V. Unigram: no output is looked at."
TRAINED = "Trained inverter: top-1 %, and I_e, each beside what no output says."
JACOBIAN = "Jacobian, hidden to visible: medians over prompts."
BASINS = "Adam from a start at r |e|: hidden tokens right / prompts right, %."
KINDS = {"ridge": 0, "gaussian": 1, "softmax": 2}


def probe_tables(rows: list[Row]) -> str:
    """Accuracy and I_e of linear probes by offset, and of inverters by slice."""
    probes = [row for row in rows if row.get("kind") == "probe"]
    linear = [row for row in probes if "offset" in row]
    trained = [row for row in probes if row["method"] == "inverter"]
    parts = []
    if linear:
        offsets = sorted({row["offset"] for row in linear})
        table = _table(
            ["model", "step", "layer", "probe"],
            [f"t{offset:+d}" if offset else "t" for offset in offsets],
        )
        places = _group(linear, lambda row: (*_site(row), row["method"]))
        for place in sorted(places, key=lambda p: (*p[:3], KINDS[p[3]])):
            found = {row["offset"]: _pair(row) for row in places[place]}
            table.add_row(*map(str, place), *(found.get(o, "") for o in offsets))
        base = {row["offset"]: _pair(row["unigram"]) for row in linear}
        table.add_row("unigram", "", "", "", *(base[o] for o in offsets))
        parts += [LINEAR, _text(table)]
    if trained:
        table = _table(
            ["model", "step", "layer", "slice"],
            ["self", "unigram", "non-self", "unigram"],
        )
        for row in sorted(trained, key=lambda row: (*_site(row), row["hidden"], row["slice"])):
            cells = []
            for figures in (row["self"], row["nonself"]):
                cells += [_pair(figures), _pair(figures["unigram"])] if figures else ["", ""]
            table.add_row(*map(str, _site(row)), row["slice"].replace("[", r"\["), *cells)
        parts += [TRAINED, _text(table)]
    return "\n".join(parts)


def geometry_tables(rows: list[Row]) -> str:
    """The Jacobian's figures, medians over prompts; and what came right from each distance."""
    jacobians = [row for row in rows if row.get("kind") == "geometry"]
    basins = [row for row in rows if row.get("kind") == "basin"]
    place = ["model", "step", "layer", "hidden"]
    parts = []
    if jacobians:
        table = _table(
            place,
            ["sigma max", "sigma min", "condition", "effective rank", "stable rank", "of"],
        )
        places = _group(jacobians, lambda row: (*_site(row), row["hidden"]))
        for key in sorted(places):
            names = ("sigma_max", "sigma_min", "condition", "effective_rank", "stable_rank")
            figures = [_median(places[key], name) for name in names]
            first = places[key][0]
            table.add_row(*map(str, key), *figures, str(first["inputs"] - first["removed"]))
        parts += [JACOBIAN, _text(table)]
    if basins:
        radii = sorted({row["radius"] for row in basins})
        table = _table(
            place,
            [f"r = {r:g}" for r in radii],
        )
        places = _group(basins, lambda row: (*_site(row), row["hidden"]))
        for key in sorted(places):
            cells = []
            for r in radii:
                own = [row for row in places[key] if row["radius"] == r]
                shares = [mean(row[name] for row in own) for name in ("nonself", "exact") if own]
                cells.append(" / ".join(f"{100 * share:.0f}" for share in shares))
            table.add_row(*map(str, key), *cells)
        parts += [BASINS, _text(table)]
    return "\n".join(parts)


def _site(row: Row) -> tuple[str, int, int]:
    return row["checkpoint"]["name"], row["checkpoint"]["step"], row["site"]["layer"]


def _pair(figures: dict[str, Any]) -> str:
    information = figures["information"]
    told = "diverged" if information is None else f"{information:.3f}"
    return f"{100 * figures['top1']:.1f} {told}"


def _median(rows: list[Row], name: str) -> str:
    values = [float("inf") if row[name] is None else row[name] for row in rows]
    return f"{median(values):.4g}"


def _group(rows: list[Row], by: Callable[[Row], Hashable]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[by(row)].append(row)
    return groups


def _table(left: list[str], right: list[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _text(table: Table) -> str:
    out = io.StringIO()
    Console(file=out, width=WIDTH).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
