"""Evidence: a claim's rows summed up, one record for each arm, protocol, method and control.

Records are what verdicts are made of, and small enough to be kept beside the page made of them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from eval.claims import BENCH
from eval.claims.entries import REPORTED, Claim
from eval.claims.sift import Asked, sift
from eval.claims.sources import size_of
from eval.errors import RequestError
from eval.files import write_text
from eval.inversion.answer import set_recall
from eval.inversion.fields import hidden_positions, prompt, weights
from eval.inversion.summary import figures
from eval.results import Row
from eval.statistics import over_seeds, share

Record = dict[str, Any]

SHARES = ("self", "nonself", "exact")  # of the bench's summary, with an interval each
PLAIN = ("residual_floors", "false_accepts", "tokens_accepted", "prompts")
OF_ROWS: dict[str, Callable[[Row], tuple[float, float] | None]] = {
    "self_top5": lambda row: _in_top5(row["self"]),
    "nonself_top5": lambda row: _in_top5(row["nonself"]),
    "set_recall": lambda row: _recall(row, sorted(hidden_positions(row))),
    "anywhere": lambda row: _recall(row, list(range(len(row["truth"])))),
    "hidden_anywhere": lambda row: _one(_left_over(row)),
    "permuted": lambda row: _one(row.get("permuted")),
    "criterion": lambda row: _one(row.get("criterion")),
    "minimised": lambda row: _one(_minimised(row)),
}
"""Further shares, of what in a row, out of how much; None where it does not apply."""
FIELDS = ("claim", "arm", "protocol", "entry", "bench", "sizes", "models", "prompts")
ANGLE = 0.15  # below which the source holds 1 - cos to be minimised
ABOUT_LENS = {
    "schema", "key", "kind", "lens", "checkpoint", "prompts", "prompt_kind", "length", "look",
    "claim", "arm", "protocol", "entry", "bench", "question", "figure", "value", "low", "high", "n",
}  # fmt: skip
"""Fields of a lens's row that do not say where its figure was taken."""


def evidence(
    rows: Iterable[Row], claims: dict[int, Claim], settings: dict[Asked, str] | None = None
) -> tuple[list[Record], list[str]]:
    """The records, and a line for each kind of rows that were left out.

    Args:
        rows: of any kind.
        claims: by number.
        settings: the settings that count, where they are not the last ones.
    """
    kept, notes = sift(rows, claims, settings or {})
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in kept:
        groups[_group(row)].append(row)
    records = []
    for key in sorted(groups, key=str):
        own = groups[key]
        if own[0].get("kind") == "lens":
            wanted = {t.figure for c in claims[own[0]["claim"]].judge for t in c.terms}
            if own[0]["figure"] in wanted:
                records.append(_lens_record(own))
        else:
            records.append(_record(own))
    return sorted(records, key=_order), notes


def store(path: str | Path, records: list[Record]) -> None:
    """Writes records, a line each."""
    write_text(path, "".join(json.dumps(record, sort_keys=True) + "\n" for record in records))


def load(path: str | Path, claims: dict[int, Claim]) -> tuple[list[Record], list[str]]:
    """Reads what `store` wrote, less what this bench would ask or answer otherwise.

    Raises:
        RequestError: not such a file.
    """
    try:
        records = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
        numbers = {record["claim"] for record in records}
        lacking = {name for record in records for name in FIELDS if name not in record}
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise RequestError(
            f"{path}: no records of claims ({error}); make them with --store"
        ) from None
    if lacking:
        raise RequestError(
            f"{path}: no records of claims (no {', '.join(sorted(lacking))}); make them with "
            "--store, from the directory of the results"
        )
    known = {arm.fingerprint for claim in claims.values() for arm in claim.arms}
    kept = [r for r in records if r["bench"] == BENCH and r["entry"] in known]
    left = sorted(numbers - {record["claim"] for record in kept})
    words = (
        f"left out: claims {', '.join(map(str, left))}, which this bench asks or answers otherwise"
    )
    return kept, [f"{words}; run them again"] if left else []


def _group(row: Row) -> tuple[Any, ...]:
    tags = (row["claim"], row["arm"], row["protocol"], row["entry"])
    if row.get("kind") == "lens":
        where = {k: v for k, v in row.items() if k not in ABOUT_LENS}
        return (*tags, row["lens"], row["figure"], json.dumps(where, sort_keys=True))
    return (*tags, row["method"], row["control"], row["padded"])


def _shared(own: list[Row]) -> Record:
    first = own[0]
    models = {row["checkpoint"]["weights_sha256"]: row["checkpoint"] for row in own}
    tags = {name: first[name] for name in ("claim", "arm", "protocol", "entry", "bench")}
    sizes = sorted({size_of(provenance) for provenance in models.values()})
    return tags | {"sizes": sizes, "models": len(models)}


def _record(own: list[Row]) -> Record:
    first, found = own[0], figures(own)
    record = _shared(own) | {
        "method": first["method"],
        "family": first["family"],
        "control": first["control"],
        "padded": first["padded"],
        "site": first["site"],
        "slice": first["slice"],
        "tokens": (found["self_tokens"] or 0) + (found["nonself_tokens"] or 0),
    }
    for name in SHARES:
        record[name] = found[name]
        record |= {f"{name}_{end}": found[f"{name}_{end}"] for end in ("low", "high")}
    record |= {name: found[name] for name in PLAIN}
    for name, of_row in OF_ROWS.items():
        record |= _of_rows(name, of_row, own)
    record |= _beside_a_constant(own)
    if first["protocol"] == REPORTED:
        record["found"] = "".join(first["found_text"])
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in record.items()}


def _of_rows(
    name: str, of_row: Callable[[Row], tuple[float, float] | None], own: list[Row]
) -> Record:
    counted = [(row, *found) for row in own if (found := of_row(row))]
    if not counted:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    rows, hits, counts = zip(*counted, strict=True)
    found = share(hits, counts, [prompt(row) for row in rows], [weights(row) for row in rows])
    return {name: found.estimate, f"{name}_low": found.low, f"{name}_high": found.high}


def _beside_a_constant(own: list[Row]) -> Record:
    """`constant`: the share of hidden tokens that are the commonest of them, which always naming it
    would find. `others`: how many of the other ones were found, with its interval.
    """
    places = [(row, sorted(hidden_positions(row))) for row in own]
    tokens = Counter(row["truth"][t] for row, hidden in places for t in hidden)
    if not tokens:
        return dict.fromkeys(("constant", "others", "others_low", "others_high"))
    (commonest, count), *_ = tokens.most_common(1)

    def found(row: Row) -> tuple[float, float] | None:
        others = [t for t in hidden_positions(row) if row["truth"][t] != commonest]
        hits = sum(row["found"][t] == row["truth"][t] for t in others)
        return (hits, len(others)) if others else None

    return {"constant": count / tokens.total()} | _of_rows("others", found, own)


def _in_top5(tokens: dict[str, float] | None) -> tuple[float, float] | None:
    if not tokens or not tokens["count"]:
        return None
    return tokens["top5"] * tokens["count"], tokens["count"]


def _recall(row: Row, places: list[int]) -> tuple[float, float] | None:
    return _one(set_recall(row["found"], row["truth"], places))


def _left_over(row: Row) -> float | None:
    """Share of the hidden tokens that are found at any place, the shown ones taken out."""
    hidden = hidden_positions(row)
    if not hidden:
        return None
    wanted = Counter(row["truth"][t] for t in hidden)
    shown = Counter(token for t, token in enumerate(row["truth"]) if t not in hidden)
    return (wanted & (Counter(row["found"]) - shown)).total() / len(hidden)


def _minimised(row: Row) -> bool | None:
    """Whether a descent on the angle brought it down."""
    loss = row["notes"].get("loss") if row["settings"].get("objective") == "cosine" else None
    return None if loss is None else loss < ANGLE


def _one(value: float | None) -> tuple[float, float] | None:
    return None if value is None else (float(value), 1.0)


def _lens_record(own: list[Row]) -> Record:
    first = own[0]
    values = [row["value"] for row in own if row["value"] is not None]
    interval = over_seeds(values)
    low, high = interval[1:] if interval else (first.get("low"), first.get("high"))
    where = {name: value for name, value in first.items() if name not in ABOUT_LENS}
    record = _shared(own) | {
        "lens": first["lens"],
        "figure": first["figure"],
        "where": where,
        "value": fmean(values) if values else None,
        "low": low,
        "high": high,
        "prompts": sum(row["prompts"] for row in own),  # each model is asked others
    }
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in record.items()}


def _order(record: Record) -> tuple[Any, ...]:
    names = ("arm", "protocol", "method", "control", "padded", "figure", "where")
    return (record["claim"], *(str(record.get(name)) for name in names))
