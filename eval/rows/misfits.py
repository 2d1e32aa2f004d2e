"""JSON from a file: read strictly, and whether a value is of a declared type."""

import json
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

from arch.config import read_pairs

LIMITS = {int: 2**63, float: 1e300}
"""Numbers lie below these, so that libraries hold them."""


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
