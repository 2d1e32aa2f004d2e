"""Evidence: a claim's rows summed up, one record for each arm, protocol, method and control.

Verdicts are made of records. Where rows are gone, the records of them are kept in their place.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from eval.claims import BENCH, CURVES
from eval.claims.entries import REPORTED, Claim
from eval.claims.sources import size_of
from eval.inversion.answer import set_recall
from eval.quantities import MEASURED, Quantity, one
from eval.recovery import hidden_positions, weights
from eval.schema import Row
from eval.statistics import over_seeds
from eval.summary import measure
from eval.tables import group

Record = dict[str, Any]
Asked = tuple[int, str, str, str]
"""A claim's number, an arm's name, a protocol, and the stand-in of the claim's model, if any."""

ANGLE = 0.15  # below which the source holds 1 - cos to be minimised
TAGS = ("claim", "arm", "protocol", "criteria", "stand_in")
ABOUT_LENS = {
    "schema", "key", "kind", "lens", "checkpoint", "prompts", "prompt_kind", "length", "look",
    "figure", "value", "low", "high", "n",
}  # fmt: skip
"""Fields of a lens's row that do not say where its figure was taken."""


def evidence(
    rows: Iterable[Row], claims: dict[int, Claim], settings: dict[Asked, str] | None = None
) -> tuple[list[Record], list[str]]:
    """The records, and a line for each claim of which rows were left out.

    Rows are left out that another version of the bench asked for, that the registry asks otherwise
    now, of other models and stories than the last ones, and of arms not asked to the end.

    Args:
        rows: of any kind; records among them are taken as they are.
        claims: by number.
        settings: the settings that count, where they are not the last ones.
    """
    by_key = {row["key"]: row for row in rows}
    notes: dict[str, None] = {}
    fingerprints = {
        (claim.number, arm.fingerprint)
        for claim in claims.values()
        for arms in (claim.arms, *claim.stand_ins.values())
        for arm in arms
    }
    asked: list[Row] = []
    for row in by_key.values():
        if row["kind"] not in ("claim", "claim record") or row["claim"] == CURVES:
            continue
        if row["bench"] != BENCH:
            why = f"which version {row['bench']} of the bench asked, this is {BENCH}"
        elif (row["claim"], row["entry"]) not in fingerprints:
            why = "which is asked otherwise now"
        else:
            asked.append(row)
            continue
        notes[f"claim {row['claim']}, {why}; run it again"] = None
    records = []
    for place, several in group(asked, place_of).items():
        number, arm, protocol, _ = place
        last = (settings or {}).get(place, several[-1].get("setting"))
        counted = [row for row in several if row.get("setting") == last]
        if len(counted) < len(several):
            notes[f"answers to claim {number} by other models or stories than its last"] = None
        records += [row for row in counted if row["kind"] == "claim record"]
        parts = [row for row in counted if row["kind"] == "claim"]
        keys = list(dict.fromkeys(key for part in parts for key in part["keys"]))
        if parts and (len(parts) < parts[0]["of"] or not by_key.keys() >= set(keys)):
            name = f", {arm}" if arm else ""
            notes[f"claim {number}{name}, {protocol}: not asked to the end; run it again"] = None
        elif parts:
            tags = {name: parts[0][name] for name in TAGS if name in parts[0]}
            wanted = {term.figure for each in claims[number].judge for term in each.terms}
            answering = (by_key[key] for key in keys)
            known = [r for r in answering if r["kind"] == "recovery" or r.get("figure") in wanted]
            records += [tags | _summed_up(g, protocol) for g in group(known, _question).values()]
    return sorted(records, key=_order), [f"left out: {note}" for note in notes]


def place_of(tags: dict[str, Any]) -> Asked:
    """What a task's tags, or the row that holds them, are of."""
    return tags["claim"], tags["arm"], tags["protocol"], tags.get("stand_in", "")


def answers(rows: Iterable[Row]) -> list[Row]:
    """The rows that answer claims and curves, and those that say which; no others."""
    by_key = {row["key"]: row for row in rows}
    asked = [r for r in by_key.values() if r["kind"] in ("claim", "claim record", "curve record")]
    keys = {key for row in asked for key in (row["key"], *row.get("keys", ()))}
    return [row for row in by_key.values() if row["key"] in keys]


def _question(row: Row) -> tuple[Any, ...]:
    """Equal for the rows of one record."""
    if row["kind"] == "lens":
        return row["lens"], row["figure"], json.dumps(_where(row), sort_keys=True)
    return row["method"], row["control"], row["padded"]


def _where(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ABOUT_LENS}


def _summed_up(rows: list[Row], protocol: str) -> Record:
    lens = rows[0]["kind"] == "lens"
    record = _of_lens(rows) if lens else _of_recoveries(rows)
    models = {weights(row): size_of(row["checkpoint"]) for row in rows}
    record |= {"sizes": sorted(set(models.values())), "models": len(models)}
    if protocol == REPORTED and not lens:
        record["found"] = "".join(rows[0]["found_text"])
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in record.items()}


def _of_recoveries(rows: list[Row]) -> Record:
    """Shares with their intervals, and that of the hidden tokens that are the commonest one."""
    hidden = Counter(row["truth"][t] for row in rows for t in hidden_positions(row))
    commonest, count = hidden.most_common(1)[0] if hidden else (None, 0)

    def others(row: Row) -> tuple[float, int] | None:
        places = [t for t in hidden_positions(row) if row["truth"][t] != commonest]
        hits = sum(row["found"][t] == row["truth"][t] for t in places)
        return (hits, len(places)) if places else None

    figures = measure(rows, [*SHARES, Quantity("others", "share", others)])
    record = {name: rows[0][name] for name in ("method", "family", "control", "padded")}
    record |= {
        "prompts": figures["exact"].n,
        "constant": count / hidden.total() if hidden else None,
    }
    for name, figure in figures.items():
        record |= {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
    return record


def _anywhere(row: Row) -> float | None:
    return set_recall(row["found"], row["truth"], list(range(len(row["truth"]))))


def _hidden_anywhere(row: Row) -> float | None:
    """Share of the hidden tokens that are named at any place, the shown ones taken out."""
    hidden = hidden_positions(row)
    wanted = Counter(row["truth"][t] for t in hidden)
    shown = Counter(token for t, token in enumerate(row["truth"]) if t not in hidden)
    rest = Counter(row["found"]) - shown
    return (wanted & rest).total() / len(hidden) if hidden else None


def _minimised(row: Row) -> bool | None:
    """Whether a descent on the angle brought it down."""
    loss = row["notes"].get("loss") if row["settings"].get("objective") == "cosine" else None
    return None if loss is None else loss < ANGLE


SHARES = (
    *(q for q in MEASURED["recovery"].quantities if q.pool in ("share", "whole")),
    Quantity("anywhere", "share", lambda row: one(_anywhere(row))),
    Quantity("hidden_anywhere", "share", lambda row: one(_hidden_anywhere(row))),
    Quantity("minimised", "share", lambda row: one(_minimised(row))),
)


def _of_lens(rows: list[Row]) -> Record:
    first = rows[0]
    values = [row["value"] for row in rows if row["value"] is not None]
    interval = over_seeds(values)
    low, high = interval[1:] if interval else (first.get("low"), first.get("high"))
    return {
        "lens": first["lens"],
        "figure": first["figure"],
        "where": _where(first),
        "value": fmean(values) if values else None,
        "low": low,
        "high": high,
        "prompts": sum(row["prompts"] for row in rows),  # each model is asked others
    }


def _order(record: Record) -> tuple[Any, ...]:
    names = ("arm", "protocol", "method", "control", "padded", "figure", "where")
    return (record["claim"], *(str(record.get(name)) for name in names))
