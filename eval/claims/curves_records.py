"""Records of the curves: one for each place on an axis, architecture, state, method and slice."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eval.claims import BENCH
from eval.claims.curves import BASE, KINDS, Plan, Point, family
from eval.errors import RequestError
from eval.files import write_text
from eval.inversion.fields import channel_count, prompt, weights
from eval.results import Row
from eval.statistics import share

Record = dict[str, Any]
FIELDS = ("axis", "x", "architecture", "state", "family", "method", "slice", "share", "low", "high",
          "tokens", "prompts", "models", "bench")  # fmt: skip


def records(plan: Plan, rows: Iterable[Row]) -> tuple[list[Record], list[str]]:
    """The records, the base by itself first, and a line for rows that were left out.

    Rows of another version of the bench, and of methods with other settings, are left out.
    """
    asks = plan.points()
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    left = 0
    for row in {row["key"]: row for row in rows if "curve" in row}.values():
        point, kind, label = _point(row), row["curve"], row["method"]
        method = asks[point].methods[kind].get(label) if point in asks else None
        if row["bench"] != BENCH or method is None or method.settings != row["settings"]:
            left += 1
        else:
            groups[row["architecture"], point, kind, label].append(row)
    figures = {key: _figures(own) for key, own in groups.items()}
    bases = [plan.base.at("step", step) for step in plan.steps]
    curves = {BASE: bases} | {name: plan.curve(name) for name in plan.axes}
    found = []
    for axis, points in curves.items():
        for name in plan.architectures:
            for point in points:
                for kind in KINDS:
                    x = None if axis == BASE else point.on(axis, kind)
                    about = {"axis": axis, "x": x, "architecture": name, "state": point.state}
                    found += [
                        about
                        | {"family": family(method), "method": label, "slice": kind}
                        | figures[name, point, kind, label]
                        for label, method in asks[point].methods[kind].items()
                        if (name, point, kind, label) in figures
                    ]
    words = f"left out: {left} rows that this bench, or curves.yaml as it is now, asks otherwise"
    return found, [words] if left else []


def store(path: str | Path, found: list[Record]) -> None:
    """Writes records, a line each."""
    write_text(path, "".join(json.dumps(record) + "\n" for record in found))


def load(path: str | Path) -> list[Record]:
    """Reads what `store` wrote.

    Raises:
        RequestError: not such a file, or of another version of the bench.
    """
    try:
        found = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
        whole = bool(found) and all(set(FIELDS) <= set(record) for record in found)
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise RequestError(f"--records {path}: cannot be read ({error})") from None
    if not whole:
        raise RequestError(f"--records {path}: no records of curves; make them with --store")
    other = {record["bench"] for record in found} - {BENCH}
    if other:
        raise RequestError(
            f"--records {path}: made by version {min(other)} of the bench, this is {BENCH}; "
            "run the curves again"
        )
    return found


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


def _figures(own: list[Row]) -> Record:
    """The share of shown tokens, or of the hidden one, with its interval."""
    tallies = [row[row["curve"]] for row in own]
    counts = [tally["count"] for tally in tallies]
    hits = [round(tally["top1"] * tally["count"]) for tally in tallies]
    prompts, models = [prompt(row) for row in own], [weights(row) for row in own]
    found = share(hits, counts, prompts, models)
    return {
        "share": round(found.estimate, 6),
        "low": round(found.low, 6),
        "high": round(found.high, 6),
        "tokens": sum(counts),
        "prompts": len(set(prompts)),
        "models": len(set(models)),
        "bench": BENCH,
    }
