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
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from arch.errors import LARGEST, ModelError, printable, show_value

TERMS = 16
"""Classes that + joins, at most."""
WORDS = {"true": True, "false": False, "none": None}  # as YAML and JSON write them
KINDS = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none",
         str: "a word", list: "a list", tuple: "a tuple"}  # fmt: skip


def parse(
    entry: str, registry: Mapping[str, type], what: str, base: type | None = None
) -> list[tuple[type, dict[str, Any]]]:
    """Splits `a(x=1)+b` into classes and arguments: `[(A, {"x": 1}), (B, {})]`.

    The registry has the classes by name; subclasses of `base` may be named by their modules too, as
    `module.Class`. `what` is the kind of thing in errors, for example "mixer".

    Raises:
        ModelError: not an expression of this form, an unknown name, a module that cannot be
            imported, an unknown argument, or a value of another type than the argument's.
    """
    where = f"{what} {printable(repr(entry), 120)}"
    found = []
    for name, given in read_terms(entry, where):
        chosen = _find(name, registry, where, base)
        try:
            hints, parameters = (
                get_type_hints(chosen.__init__),
                inspect.signature(chosen).parameters,
            )
        except Exception as error:  # of somebody else's class, whose annotations are no types
            said = printable(f"{type(error).__name__}: {error}", 200)
            raise ModelError(f"{where}: {name} has no readable arguments ({said})") from error
        allowed = [n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
        if wrong := [key for key in given if key not in allowed]:
            known = ", ".join(allowed) or "none"
            if wrong[0] in [*parameters][2:]:  # behind the sizes
                known += f"; write * before {wrong[0]} in __init__, as arguments are keyword-only"
            raise ModelError(f"{where}: {name} has no argument {wrong[0]!r}; allowed: {known}")
        given = {k: _checked(v, hints.get(k, Any), f"{where}: {k}") for k, v in given.items()}
        found.append((chosen, given))
    return found


def locate_module(name: str) -> list[Path]:
    """The files and folders that importing a module would run, its parents' first; runs none."""
    paths: list[Path] = []
    full, folders = "", None
    for part in name.split("."):
        full = f"{full}.{part}" if full else part
        loaded = sys.modules.get(full)
        spec = loaded.__spec__ if loaded else _find_spec(full, folders)
        if spec is None:
            break
        if spec.has_location and spec.origin:
            paths.append(Path(spec.origin))
            folders = list(spec.submodule_search_locations or ())
        else:  # a folder without code of its own, in one place or in several
            beside = [Path(folder, part) for folder in (sys.path if folders is None else folders)]
            paths += [folder for folder in beside if folder.is_dir()]
            folders = [str(folder) for folder in beside]
    return paths


def _find_spec(name: str, folders: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, folders)
        except KeyError:  # a folder without code, whose parent is not imported
            spec = ModuleSpec(name, None)
        if spec is not None:
            return spec
    return None


def read_terms(entry: str, source: str) -> list[tuple[str, dict[str, Any]]]:
    """The names of a pattern and their arguments; nothing is imported.

    Raises:
        ModelError: not an expression of this form.
    """
    try:
        terms = [*map(_read_term, _split(ast.parse(entry.strip(), mode="eval").body))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ModelError(
            f"{source} cannot be read; write name, name(key=value, ...), or several joined by +"
        ) from None
    if len(terms) > TERMS:
        raise ModelError(f"{source} joins {len(terms)} by +; allowed: up to {TERMS}")
    return terms


def _split(node: ast.expr) -> list[ast.expr]:
    """The terms of a sum."""
    terms = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        terms.append(node.right)
        node = node.left
    return [node, *reversed(terms)]


def _read_term(node: ast.expr) -> tuple[str, dict[str, Any]]:
    """A name and its arguments; bare words are strings.

    Raises:
        ValueError: it is no name and no call, or gives an argument twice.
    """
    keywords: list[ast.keyword] = []
    if isinstance(node, ast.Call) and not node.args:
        node, keywords = node.func, node.keywords
    if not isinstance(node, ast.Name | ast.Attribute):
        raise ValueError(ast.unparse(node))
    values = {str(k.arg): k.value for k in keywords}
    if len(values) < len(keywords):
        raise ValueError("an argument twice")
    return ast.unparse(node), {
        key: value.id if isinstance(value, ast.Name) else ast.literal_eval(value)
        for key, value in values.items()
    }


def _find(name: str, registry: Mapping[str, type], source: str, base: type | None) -> type:
    """The class of this name, or the subclass of base that `module.Class` names."""
    module, dot, attribute = name.rpartition(".")
    if name in registry:
        return registry[name]
    if not dot or base is None:
        alike = difflib.get_close_matches(name, registry, n=1)
        guess = f"; did you mean {alike[0]!r}?" if alike else ";"
        allowed = ", ".join(sorted(registry)) + (", or module.Class of your own" if base else "")
        raise ModelError(f"{source}: there is no {name!r}{guess} allowed: {allowed}")
    shown = printable(module, 120)
    try:
        kind = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        said = printable(error, 160)
        raise ModelError(
            f"{source}: {shown} cannot be imported ({said}); run where {shown}.py lies, "
            "or set PYTHONPATH to its folder"
        ) from None
    except (Exception, SystemExit) as error:
        said = printable(f"{type(error).__name__}: {error}", 200)
        raise ModelError(f"{source}: {shown} cannot be imported ({said})") from error
    if not (isinstance(kind, type) and issubclass(kind, base)):
        missing = printable(attribute, 80)
        raise ModelError(f"{source}: {shown} has no {base.__name__} called {missing}")
    return kind


def _checked(value: Any, annotation: Any, source: str) -> Any:
    """The value of an argument: one of its types, or of the words of a Literal.

    Raises:
        ModelError: it is neither.
    """
    kinds = list_alternatives(annotation)
    if isinstance(value, str) and value not in kinds:
        constant = WORDS.get(value.lower(), value)
        if str not in kinds or any(_fits(constant, kind) for kind in kinds):
            value = constant
    if isinstance(value, int | float) and not abs(value) < LARGEST:
        raise ModelError(f"{source} is {show_value(value)}; allowed: up to {LARGEST:.2g}")
    if not any(_fits(value, kind) for kind in kinds):
        given = show_value(value)
        raise ModelError(f"{source} is {given}; allowed: {describe_kinds(kinds)}")
    return value


def list_alternatives(annotation: Any) -> list[Any]:
    """The types of a union and the values of a Literal, one by one."""
    if get_origin(annotation) in (Union, UnionType, Literal):
        return [kind for part in get_args(annotation) for kind in list_alternatives(part)]
    return [annotation]


def describe_kinds(kinds: list[Any]) -> str:
    """The types and values of `list_alternatives` in words, such as `a number or none`."""
    return " or ".join(KINDS.get(kind, str(kind)) for kind in kinds)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, of a generic such as list[int], or the value of a Literal."""
    if kind is Any:
        return True
    if generic := get_origin(kind):  # what is in it is not looked at
        return isinstance(value, generic) and not isinstance(value, str)
    if isinstance(kind, type):
        return type(value) is kind or (kind is float and type(value) is int)
    return type(value) is type(kind) and value == kind
