"""Reads `name(key=value, ...)` as a class and its keyword arguments.

The notation is Python's own expression syntax, so the parser is Python's own: a name, a call with
constant keyword arguments, or several of them joined by `+`. Bare words are strings
(`activation=gelu`). The legal arguments of a name are the keyword-only parameters of its class, the
legal values those of the parameter's annotation.
"""

import ast
import difflib
import importlib
import inspect
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from arch.errors import ModelError

_WORDS = {"true": True, "false": False, "none": None}  # as YAML and JSON write them


def parse(
    entry: str, registry: Mapping[str, type], what: str, base: type | None = None
) -> list[tuple[type, dict[str, Any]]]:
    """Splits `a(x=1)+b` into classes and arguments: `[(A, {"x": 1}), (B, {})]`.

    Args:
        entry: the text.
        registry: the classes by name.
        what: how to call the kind of thing in an error, for example "mixer".
        base: a class whose subclasses may be named by their modules too, as `module.Class`.

    Raises:
        ModelError: not an expression of this form, an unknown name, a module that cannot be
            imported, an unknown argument, or a value of another type than the argument's.
    """
    try:
        tree = ast.parse(entry.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise _unreadable(entry, what) from None
    return [_term(node, entry, registry, what, base) for node in _terms(tree)]


def _terms(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _terms(node.left) + _terms(node.right)
    return [node]


def _term(
    node: ast.expr, entry: str, registry: Mapping[str, type], what: str, base: type | None
) -> tuple[type, dict[str, Any]]:
    name, keywords = node, []
    if isinstance(node, ast.Call) and not node.args:
        name, keywords = node.func, node.keywords
    written = ast.unparse(name)
    if base is not None and isinstance(name, ast.Attribute):
        found = _imported(written, entry, what, base)
    elif not isinstance(name, ast.Name):
        raise _unreadable(entry, what)
    elif written not in registry:
        of_your_own = "" if base is None else ", or module.Class of your own"
        raise ModelError(
            f"{what} {entry!r}: there is no {written!r}{_nearest(written, registry)}; "
            f"allowed: {', '.join(sorted(registry))}{of_your_own}"
        )
    else:
        found = registry[written]
    allowed = _parameters(found)
    arguments = {}
    for keyword in keywords:
        if keyword.arg not in allowed:
            raise ModelError(
                f"{what} {entry!r}: {written} has no argument {keyword.arg!r}; "
                f"allowed: {', '.join(allowed) or 'none'}"
            )
        kinds = _kinds(allowed[keyword.arg])
        value = _value(keyword.value, kinds, entry, what)
        if not any(_fits(value, kind) for kind in kinds):
            raise ModelError(
                f"{what} {entry!r}: {keyword.arg} is {value!r}; "
                f"allowed: {' or '.join(_described(kind) for kind in kinds)}"
            )
        arguments[keyword.arg] = value
    return found, arguments


def _imported(name: str, entry: str, what: str, base: type) -> type:
    """The class that `module.Class` names, a subclass of base."""
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise ModelError(
            f"{what} {entry!r}: {module} cannot be imported ({error}); run where {module}.py lies, "
            "or set PYTHONPATH to its folder"
        ) from None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ModelError(f"{what} {entry!r}: {module} has no {base.__name__} called {attribute}")
    return found


def _parameters(found: type) -> dict[str, Any]:
    """The keyword-only parameters of a class, and their annotations."""
    hints = get_type_hints(found.__init__)
    return {
        p.name: hints.get(p.name, Any)
        for p in inspect.signature(found).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """What a union allows, one by one: types, None's type, and the words of a Literal."""
    if get_origin(annotation) in (Union, types.UnionType, Literal):
        return tuple(kind for part in get_args(annotation) for kind in _kinds(part))
    return (annotation,)


def _value(node: ast.expr, kinds: tuple[Any, ...], entry: str, what: str) -> Any:
    if isinstance(node, ast.Name):
        return node.id if node.id in kinds else _WORDS.get(node.id.lower(), node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _unreadable(entry, what) from None


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, str):
        return value == kind
    if kind is float:
        return type(value) in (int, float)
    return kind is Any or type(value) is kind


def _described(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    named = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
    return named.get(kind, str(kind))


def _unreadable(entry: str, what: str) -> ModelError:
    return ModelError(
        f"{what} {entry!r} cannot be read; write name, name(key=value, ...), or several joined by +"
    )


def _nearest(name: str, registry: Mapping[str, type]) -> str:
    near = difflib.get_close_matches(name, registry, n=1)
    return f", did you mean {near[0]!r}?" if near else ""
