"""Golden tables on the disk, and in what two of them differ."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden.adaptor import Place, Table

FACTS = Path(__file__).parent / "facts"
RELATIVE, ABSOLUTE = 5e-4, 1e-4
"""How far a number may be from the stored one: see README.md for how they were chosen."""
ROUNDING_BITS = 4.0
"""How far log2 of a rounding floor may be, which another processor or thread count moves."""
LOOSE = {"patching effect": (2e-2, 1e-1), "array effect": (2e-2, 0.0), "evaluations": (0.05, 0.0)}
"""Relative and absolute tolerance of quantities, by a part of their names."""
ABOUT = {"about rank": 1.0, "about evaluations": 1.0, "about residual": 0.02}
"""How far log2(1 + x) may be, of an answer that a solver's steps led to and nothing proves."""
EXACT = ("found", "rank", "hidden", "observed")
"""Quantities that are exact even where they have a fraction, as ranks with half the ties have."""
LOGARITHMIC = ("floor", "residual_floors", "margin")
"""Quantities that rounding floors scale, or that are taken where the floor is the worst."""


def read(part: str) -> Table:
    """The stored table of a part of the suite; an empty one of a new part."""
    path = FACTS / f"{part}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return {
        Place(**{name: record.get(name, "") for name in Place._fields}): record["values"]
        for record in records
    }


def write(part: str, table: Table) -> None:
    """Stores a table, a place a line; empty fields are left out, numbers have six digits.

    A quantity that is like the stored one stays as it is stored, so that a file changes where a
    figure did.
    """
    FACTS.mkdir(exist_ok=True)
    stored = read(part)
    lines = [
        json.dumps(
            {name: value for name, value in place._asdict().items() if value}
            | {"values": _settled(stored.get(place, {}), values)},
            ensure_ascii=False,
        )
        for place, values in table.items()
    ]
    (FACTS / f"{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def differences(stored: Table, measured: Table) -> Iterator[str]:
    """One line for each quantity that is gone, new or another than stored."""
    for place in dict.fromkeys([*stored, *measured]):
        before, now = stored.get(place, {}), measured.get(place, {})
        for name in dict.fromkeys([*before, *now]):
            if name not in now or name not in before:
                verb = "is new" if name in now else "is gone"
                yield f"{_words(place)}: {name} {verb}: {_short(now.get(name, before.get(name)))}"
            elif not alike(name, before[name], now[name]):
                yield f"{_words(place)}: {name}: {_short(before[name])} -> {_short(now[name])}"


def alike(name: str, stored: Any, measured: Any) -> bool:
    """Whether a quantity is what was stored: numbers with a fraction nearly, all else exactly."""
    if isinstance(stored, list) and isinstance(measured, list):
        pairs = zip(stored, measured, strict=False)
        return len(stored) == len(measured) and all(alike(name, *pair) for pair in pairs)
    if isinstance(stored, list) or isinstance(measured, list):
        return False
    if name == "about right":
        return abs(stored - measured) <= 1
    if name in ABOUT:
        return abs(math.log2((1 + stored) / (1 + measured))) <= ABOUT[name]
    if name in EXACT:
        return stored == measured
    fraction = isinstance(stored, float) or isinstance(measured, float) or name == "evaluations"
    if not (fraction and isinstance(stored, int | float) and isinstance(measured, int | float)):
        return stored == measured
    if "margin_bits" in name or "margin bits" in name:
        return abs(stored - measured) <= ROUNDING_BITS
    if name in LOGARITHMIC and stored > 0 and measured > 0:
        return abs(math.log2(stored / measured)) <= ROUNDING_BITS
    if name.endswith("condition") and stored > 0 and measured > 0:  # of a singular matrix: rounding
        stored, measured = 1 / stored, 1 / measured
        return math.isclose(stored, measured, rel_tol=RELATIVE, abs_tol=1e-9)
    loose = (tolerance for part, tolerance in LOOSE.items() if part in name)
    relative, absolute = next(loose, (RELATIVE, ABSOLUTE))
    return math.isclose(stored, measured, rel_tol=relative, abs_tol=absolute)


def _settled(stored: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    return {
        name: stored[name] if name in stored and alike(name, stored[name], value) else _short(value)
        for name, value in sorted(measured.items())
    }


def _words(place: Place) -> str:
    return " / ".join(filter(None, place))


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_short(one) for one in value] if isinstance(value, list) else value
