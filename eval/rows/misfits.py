"""JSON from a file: read strictly, and whether a value is of a declared type, or a row is whole."""

import json
import re
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

from arch.config import read_pairs
from eval.rows.schema import KINDS, Row

LIMITS = {int: 2**63, float: 1e300}
"""Numbers lie below these, so that libraries hold them."""
MOST_POSITIONS = 1 << 20
"""Of a prompt that a row may be about."""
BY_POSITION = ("truth", "found", "truth_text", "found_text", "rank", "verdict")
"""Lists of a recovery that have an entry for each of its `length` positions."""


def to_json(value: Any, allow_nan: bool = True) -> str:
    """JSON in ASCII; bytes of a file's name that are no UTF-8 are spelt out, as `printable` does.

    Raises:
        ValueError: it holds a value that JSON has not.
    """
    text = json.dumps(value, allow_nan=allow_nan)
    if "\\udc" in text:  # half a character, or the second half of one
        whole = json.dumps(value, ensure_ascii=False)
        spelt = re.sub("[\udc80-\udcff]", lambda half: rf"\\u{ord(half[0]):x}", whole)
        text = json.dumps(json.loads(spelt))
    return text


def parse_json(source: bytes) -> Any:
    """What JSON in UTF-8 says.

    Raises:
        ValueError: it is none, or holds numbers that are none, half a character, or an object
            that has a name twice, of which one value would be lost.
    """
    try:
        value = json.loads(
            source.decode(), parse_constant=_refuse_constant, object_pairs_hook=read_pairs
        )
        if b"\\ud" in source.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("too deep") from None
    return value


def find_fault(row: Row) -> str | None:
    """What is wrong with a row of a kind of `KINDS` that was read from a file; None if nothing is.

    Fields that are not declared may hold anything.
    """
    if fault := find_misfit(row, KINDS[row["kind"]]):
        return fault
    if isinstance(site := row.get("site"), dict) and site.get("layer") == []:
        return "site.layer: [], expected a layer"
    if row["kind"] == "recovery":
        counts = {"hidden": row["hidden"], "notes.cut": row["notes"].get("cut", 0)}
        for name, most in (("hidden", row["length"]), ("notes.cut", MOST_POSITIONS)):
            if type(counts[name]) is not int or not 0 <= counts[name] <= most:
                return f"{name}: {counts[name]!r}, expected 0 to {most}"[:200]
        if any(not 0 <= t < row["length"] for t in row["shown"]):
            return f"shown: {row['shown']}"[:200] + f", expected positions below {row['length']}"
        if row["exact"] != (row["found"] == row["truth"]):
            return f"exact: {row['exact']}, and found beside truth says otherwise"
    if row["kind"] == "captured":
        proven = [proof is not None for proof in row["certificates"]]
        if [grade == "certain" for grade in row["grades"]] != proven:
            return "grades: certain, and a certificate beside it says otherwise"
        if ("likely", None) in zip(row["grades"], row["probabilities"], strict=False):
            return "grades: likely, and no probability beside it"
        if any(not 0 <= t < len(row["tokens"]) for t in row["left_out"]):
            return f"left_out: {row['left_out']}"[:200] + ", expected positions of its tokens"
    if row["kind"] == "loss" and not all(size > 0 for size in row["parts"]["bytes"]):
        return "parts.bytes: must be above 0"
    for name, (values, expected) in _lists(row).items():
        if len(values) != expected:
            return f"{name}: {len(values)} entries, expected {expected}"
    return None


def _lists(row: Row) -> dict[str, tuple[list[Any], int]]:
    """The lists of a row by their names, each with how many entries it must have."""
    kind = row["kind"]
    if kind == "recovery":
        return {name: (row[name], row["length"]) for name in BY_POSITION}
    if kind == "captured":
        names = ("pieces", "certificates", "grades", "probabilities")
        return {name: (row[name], len(row["tokens"])) for name in names}
    if kind == "loss":
        return {"parts": (row["parts"]["bytes"], len(row["parts"]["nats"]))}
    if kind != "bits":
        return {}
    figures = {name: row[name] for name in ("rms", "effect", "effect_sampled")}
    figures |= {f"margin_bits.{name}": values for name, values in row["margin_bits"].items()}
    for prior, precisions in row["bits"].items():
        figures |= {
            f"bits.{prior}.{precision}.{name}": values
            for precision, kinds in precisions.items()
            for name, values in kinds.items()
        }
    return {name: (values, len(row["distances"])) for name, values in figures.items()}


def find_misfit(value: Any, hint: Any) -> str | None:
    """Where a value that was read from JSON is not of a type, in words; None if it is."""
    return _checker(hint)(value)


Checker = Callable[[Any], "str | None"]
"""Says what is wrong with a value, or None."""


@cache
def _checker(hint: Any) -> Checker:
    """The check of a value by its declared type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: None
    if typing.is_typeddict(hint):
        return _check_fields(hint)
    if origin in (typing.Union, types.UnionType):
        nothing, others = type(None) in inner, [kind for kind in inner if kind is not type(None)]
        if nothing and len(others) == 1:
            check_other = _checker(others[0])
            return lambda value: None if value is None else check_other(value)
        checks = [_checker(kind) for kind in inner]
        return lambda value: (
            None if any(check(value) is None for check in checks) else _unlike(value, hint)
        )
    if origin in (list, dict):
        return _check_entries(hint, origin, inner[-1])
    kinds, limit = {float, int} if hint is float else {hint}, LIMITS.get(hint)
    return lambda value: (
        None
        if type(value) in kinds and (limit is None or -limit < value < limit)
        else _unlike(value, hint)
    )


def _check_fields(hint: Any) -> Checker:
    checks = {name: _checker(kind) for name, kind in typing.get_type_hints(hint).items()}
    required = hint.__required_keys__

    def check(value: Any) -> str | None:
        if type(value) is not dict:
            return _unlike(value, hint)
        for name, check_field in checks.items():
            if name not in value:
                if name in required:
                    return f"no {name}"
            elif fault := check_field(value[name]):
                return f"{name}{'' if fault[0] in '.:' else '.'}{fault}"
        return None

    return check


def _check_entries(hint: Any, kind: type, of: Any) -> Checker:
    check_entry, plain, limit = _checker(of), {of}, LIMITS.get(of)

    def check(value: Any) -> str | None:
        if type(value) is not kind:
            return _unlike(value, hint)
        entries = value.values() if kind is dict else value
        if set(map(type, entries)) == plain and (  # all at once, as rows are many
            limit is None or -limit < min(entries) <= max(entries) < limit
        ):
            return None
        return next(filter(None, map(check_entry, entries)), None)

    return check


def _unlike(value: Any, hint: Any) -> str:
    text = repr(value)
    expected = "object" if typing.is_typeddict(hint) else getattr(hint, "__name__", str(hint))
    if typing.get_origin(hint):
        expected = str(hint).replace("typing.", "").replace("eval.rows.schema.", "")
    return f": {text if len(text) < 40 else text[:40] + '...'}, expected {expected}"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
