"""Reads `name(key=value, ...)` as a class and its keyword arguments.

The notation is Python's own expression syntax, so the parser is Python's own: a name, a call with
constant keyword arguments, or several of them joined by `+`. Bare words are strings
(`activation=gelu`). The legal arguments of a name are the keyword-only parameters of its class.
"""

import ast
import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from arch.errors import ModelError


def parse(entry: str, registry: Mapping[str, type], what: str) -> list[tuple[type, dict[str, Any]]]:
    """Splits `a(x=1)+b` into classes and arguments: `[(A, {"x": 1}), (B, {})]`.

    Args:
        entry: the text.
        registry: the classes by name.
        what: how to call the kind of thing in an error, for example "mixer".

    Raises:
        ModelError: not an expression of this form, an unknown name, or an unknown argument.
    """
    try:
        tree = ast.parse(entry.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise _unreadable(entry, what) from None
    return [_term(node, entry, registry, what) for node in _terms(tree)]


def _terms(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _terms(node.left) + _terms(node.right)
    return [node]


def _term(
    node: ast.expr, entry: str, registry: Mapping[str, type], what: str
) -> tuple[type, dict[str, Any]]:
    name, keywords = node, []
    if isinstance(node, ast.Call) and not node.args:
        name, keywords = node.func, node.keywords
    if not isinstance(name, ast.Name):
        raise _unreadable(entry, what)
    if name.id not in registry:
        raise ModelError(
            f"{what} {entry!r}: there is no {name.id!r}{_nearest(name.id, registry)}; "
            f"allowed: {', '.join(sorted(registry))}"
        )
    found = registry[name.id]
    allowed = [
        p.name
        for p in inspect.signature(found).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    arguments = {}
    for keyword in keywords:
        if keyword.arg not in allowed:
            raise ModelError(
                f"{what} {entry!r}: {name.id} has no argument {keyword.arg!r}; "
                f"allowed: {', '.join(allowed) or 'none'}"
            )
        arguments[keyword.arg] = _value(keyword.value, entry, what)
    return found, arguments


def _value(node: ast.expr, entry: str, what: str) -> Any:
    if isinstance(node, ast.Name):  # a bare word, or true/false as YAML and JSON write them
        return {"true": True, "false": False, "none": None}.get(node.id.lower(), node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _unreadable(entry, what) from None


def _unreadable(entry: str, what: str) -> ModelError:
    return ModelError(
        f"{what} {entry!r} cannot be read; write name, name(key=value, ...), or several joined by +"
    )


def _nearest(name: str, registry: Mapping[str, type]) -> str:
    near = difflib.get_close_matches(name, registry, n=1)
    return f", did you mean {near[0]!r}?" if near else ""
