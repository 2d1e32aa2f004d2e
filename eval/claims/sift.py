"""Which rows of claims count: of this bench and registry, of one setting, asked to the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from eval.claims import BENCH
from eval.claims.ask import DONE
from eval.claims.entries import Claim
from eval.results import Row

Asked = tuple[int, str, str]
"""A claim's number, an arm's name, a protocol."""


def sift(
    rows: Iterable[Row], claims: dict[int, Claim], settings: dict[Asked, str]
) -> tuple[list[Row], list[str]]:
    """The rows that count, and a line for each kind of the others: named, not mixed.

    Left out are those of another version of the bench, of entries as they once were, of other
    models and stories than were asked last, and of what was not asked to the end.

    Args:
        rows: of any kind.
        claims: by number.
        settings: the settings that count, where they are not the last ones.
    """
    named = {row["key"]: row for row in rows if "claim" in row}.values()
    here = [row for row in named if row["bench"] == BENCH]
    known = {arm.fingerprint for claim in claims.values() for arm in claim.arms}
    own = [row for row in here if row["entry"] in known]
    last = {_asked(row): row.get("setting") for row in own} | settings
    of_last = [row for row in own if row.get("setting") == last[_asked(row)]]
    other = Counter(row["bench"] for row in named if row["bench"] != BENCH)
    changed, earlier = _fewer(here, own), _fewer(own, of_last)
    torn = _unfinished(of_last)
    kept = [row for row in of_last if row.get("kind") != DONE and _asked(row) not in torn]
    return kept, list(_notes(other, changed, earlier, torn))


def _fewer(rows: list[Row], kept: list[Row]) -> Counter[int]:
    """By claim, how many rows are not among those kept."""
    return Counter(row["claim"] for row in rows) - Counter(row["claim"] for row in kept)


def _asked(row: Row) -> Asked:
    return row["claim"], row["arm"], row["protocol"]


def _unfinished(rows: list[Row]) -> set[Asked]:
    """What was not asked of all its models: each ends with a row that says so."""
    ends: Counter[Asked] = Counter()
    wanted: Counter[Asked] = Counter()
    models: dict[Asked, set[str]] = defaultdict(set)
    for row in rows:
        if row.get("kind") == DONE:
            ends[_asked(row)] += 1
            wanted[_asked(row)] = row.get("of", 1)
        elif not row.get("control"):
            models[_asked(row)].add(row["checkpoint"]["weights_sha256"])
    return {one for one in {*ends, *models} if ends[one] < max(wanted[one], len(models[one]))}


def _notes(
    other: Counter[int], changed: Counter[int], earlier: Counter[int], torn: set[Asked]
) -> Iterator[str]:
    for version, count in sorted(other.items()):
        yield (
            f"left out: {count} rows that version {version} of the bench made, this is {BENCH}; "
            "run those claims again"
        )
    for number, count in sorted(changed.items()):
        yield (
            f"left out: {count} rows of claim {number}, which is asked otherwise now; run it again"
        )
    for number, count in sorted(earlier.items()):
        yield f"left out: {count} rows of claim {number}, of other models or stories than its last"
    for number, arm, protocol in sorted(torn):
        name = f", {arm}" if arm else ""
        yield f"left out: claim {number}{name}, {protocol}: not asked to the end; run it again"
