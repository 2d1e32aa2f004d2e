"""Patterns such as `attention(heads=4)+flat`: classes and their keyword arguments by name.

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

WORDS = {"true": True, "false": False, "none": None}  # as YAML and JSON write them
KINDS = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
Term = tuple[type, dict[str, Any]]


def parse(
    entry: str, registry: Mapping[str, type], what: str, base: type | None = None
) -> list[Term]:
    """Splits `a(x=1)+b` into classes and arguments: `[(A, {"x": 1}), (B, {})]`.

    The registry has the classes by name; subclasses of `base` may be named by their modules too, as
    `module.Class`. `what` is the kind of thing in errors, for example "mixer".

    Raises:
        ModelError: not an expression of this form, an unknown name, a module that cannot be
            imported, an unknown argument, or a value of another type than the argument's.
    """
    place = f"{what} {entry!r}"
    try:
        tree = ast.parse(entry.strip(), mode="eval").body
        return [_read_term(node, registry, place, base) for node in _terms(tree)]
    except (SyntaxError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(
            f"{place} cannot be read; write name, name(key=value, ...), or several joined by +"
        ) from None


def _terms(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _terms(node.left) + _terms(node.right)
    return [node]


def _read_term(node: ast.expr, registry: Mapping[str, type], place: str, base: type | None) -> Term:
    """The class and the arguments of one term.

    Raises:
        ModelError: a name, an argument or a value that is not allowed.
        ValueError: it is no name and no call.
    """
    name, keywords = node, []
    if isinstance(node, ast.Call) and not node.args:
        name, keywords = node.func, node.keywords
    written = ast.unparse(name)
    if base is not None and isinstance(name, ast.Attribute):
        chosen = _imported(written, place, base)
    elif not isinstance(name, ast.Name):
        raise ValueError(written)
    elif written not in registry:
        near = difflib.get_close_matches(written, registry, n=1)
        guess = f", did you mean {near[0]!r}?" if near else ""
        own = "" if base is None else ", or module.Class of your own"
        allowed = f"{', '.join(sorted(registry))}{own}"
        raise ModelError(f"{place}: there is no {written!r}{guess}; allowed: {allowed}")
    else:
        chosen = registry[written]
    parameters, hints = inspect.signature(chosen).parameters, get_type_hints(chosen.__init__)
    allowed = [n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    arguments = {}
    for keyword in keywords:
        key = keyword.arg
        if key not in allowed:
            known = ", ".join(allowed) or "none"
            raise ModelError(f"{place}: {written} has no argument {key!r}; allowed: {known}")
        kinds = _kinds(hints.get(key, Any))
        value = arguments[key] = _value(keyword.value, kinds)
        if not any(_fits(value, kind) for kind in kinds):
            words = (k if isinstance(k, str) else KINDS.get(k, str(k)) for k in kinds)
            raise ModelError(f"{place}: {key} is {value!r}; allowed: {' or '.join(words)}")
    return chosen, arguments


def _imported(name: str, place: str, base: type) -> type:
    """The class that `module.Class` names, a subclass of base."""
    module, _, attribute = name.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise ModelError(
            f"{place}: {module} cannot be imported ({error}); run where {module}.py lies, "
            "or set PYTHONPATH to its folder"
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ModelError(f"{place}: {module} has no {base.__name__} called {attribute}")
    return kind


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """What a union allows, one by one: types, None's type, and the words of a Literal."""
    if get_origin(annotation) in (Union, types.UnionType, Literal):
        return tuple(kind for part in get_args(annotation) for kind in _kinds(part))
    return (annotation,)


def _value(node: ast.expr, kinds: tuple[Any, ...]) -> Any:
    if isinstance(node, ast.Name):
        return node.id if node.id in kinds else WORDS.get(node.id.lower(), node.id)
    return ast.literal_eval(node)


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, str):
        return value == kind
    return kind is Any or type(value) in ((int, float) if kind is float else (kind,))
