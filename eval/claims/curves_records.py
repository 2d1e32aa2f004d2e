"""Records of the curves: one for each place on an axis, architecture, state, method and slice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from eval.claims import BENCH
from eval.claims.curves import BASE, CURVES, KINDS, NONSELF, SELF, Plan, Point, family
from eval.recovery import channel_count, weights
from eval.rows import Row
from eval.summary import measure

Record = dict[str, Any]


def records(plan: Plan, rows: Iterable[Row]) -> tuple[list[Record], list[str]]:
    """The records, the base by itself first, and a line for rows that were left out.

    Rows that another version of the bench asked for, and of methods with other settings, are left
    out; records among the rows are taken as they are.
    """
    asks = plan.points()
    by_key = {row["key"]: row for row in rows}
    parts = [r for r in by_key.values() if r["kind"] == "claim" and r["claim"] == CURVES]
    asked = {key: part["arm"] for part in parts if part["bench"] == BENCH for key in part["keys"]}
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    fewer = sum(len(part["keys"]) for part in parts if part["bench"] != BENCH)
    for key, architecture in asked.items():
        row = by_key[key]
        point, kind, label = _point(row), NONSELF if row["hidden"] else SELF, row["method"]
        method = asks[point].methods[kind].get(label) if point in asks else None
        if method is None or method.settings != row["settings"]:
            fewer += 1
        else:
            groups[architecture, point, kind, label].append(row)
    figures = {key: _figures(several, key[2]) for key, several in groups.items()}
    bases = [plan.base.at("step", step) for step in plan.steps]
    curves = {BASE: bases} | {name: plan.curve(name) for name in plan.axes}
    several = [row for row in by_key.values() if row["kind"] == "curve record"]
    for axis, points in curves.items():
        for name in plan.architectures:
            for point in points:
                for kind in KINDS:
                    x = None if axis == BASE else point.on(axis, kind)
                    about = {"axis": axis, "x": x, "architecture": name, "state": point.state}
                    several += [
                        about
                        | {"family": family(method), "method": label, "slice": kind}
                        | figures[name, point, kind, label]
                        for label, method in asks[point].methods[kind].items()
                        if (name, point, kind, label) in figures
                    ]
    words = f"left out: {fewer} rows that this bench, or curves.yaml as it is now, asks otherwise"
    return several, [words] if fewer else []


def _point(row: Row) -> Point:
    about = row["checkpoint"]
    return Point(
        width=about["d_model"],
        depth=about["n_layers"],
        layer=row["site"]["layer"],
        step=about["step"],
        channels=channel_count(row) or 0,
        length=row["length"],
        noise=row["noise"],
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
