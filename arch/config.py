"""The description of a model, everything needed to build it; and the patterns in it.

A pattern such as `attention(heads=4)+flat` names classes and their keyword arguments. The notation
is Python's own expression syntax, so the parser is Python's own: a name, a call with constant
keyword arguments, or several of them joined by `+`. Bare words are strings (`activation=gelu`). The
legal arguments of a name are the keyword-only parameters of its class, the legal values those of
the parameter's annotation.
"""

import ast
import dataclasses
import difflib
import importlib
import inspect
import json
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from arch.errors import ModelError, check_count

WORDS = {"true": True, "false": False, "none": None}  # as YAML and JSON write them
KINDS = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}


@dataclass(frozen=True)
class ModelConfig:
    """A language model: an embedding, `n_layers` pre-norm blocks, a final norm and a head."""

    vocab_size: int = 4096
    """Number of tokens V."""
    context: int = 512
    """The most positions that the model can see; any shorter input runs unpadded."""
    d_model: int = 512
    """Width D of the residual stream."""
    n_layers: int = 8
    """Number of blocks."""
    mixers: tuple[str, ...] = ("flat",)
    """Token mixers, cycled over the depth: flat, attention(heads=4), attention+flat, ..."""
    channel_mixer: str = "gelu"
    """The per-position part: gelu or swiglu, with arguments where wanted: gelu(bias=false)."""
    d_ff: int | None = None
    """Width of the channel mixer's hidden layer; 4 * d_model when not given."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Norm before each part of a block, and at the end."""
    norm_eps: float = 1e-5
    """Added under the norm's root."""
    final_norm: bool = True
    """Whether a norm stands before the head."""
    tied: bool = False
    """Whether the head is the embedding's transpose."""
    init: Literal["default", "reference"] = "default"
    """Column of the initialisation table."""
    embedding_std: float | None = None
    """Standard deviation of the initial embedding; the table's own when not given."""
    vocab_multiple: int = 1
    """Multiple to which rows are added to the embedding and the head, that no token has: 64 suits
    a GPU's products. They are there in training only; a model that is loaded lacks them."""

    def __post_init__(self) -> None:
        if isinstance(self.mixers, str):
            object.__setattr__(self, "mixers", (self.mixers,))
        if not isinstance(self.mixers, list | tuple) or not self.mixers:
            raise ModelError(f"mixers is {self.mixers!r}; give a list, for example [flat]")
        object.__setattr__(self, "mixers", tuple(self.mixers))
        for name in ("vocab_size", "vocab_multiple", "context", "d_model", "n_layers"):
            check_count(name, getattr(self, name))
        if self.d_ff is not None:
            check_count("d_ff", self.d_ff)
        from arch.mixers import parse_mixer
        from arch.model import parse_channel_mixer  # they need torch, and --help does not

        for entry in self.mixers:
            parse_mixer(_text("mixers", entry))
        parse_channel_mixer(_text("channel_mixer", self.channel_mixer))
        _one_of("norm", self.norm, ("layernorm", "rmsnorm"))
        _one_of("init", self.init, ("default", "reference"))
        _one_of("final_norm", self.final_norm, (True, False))
        _one_of("tied", self.tied, (True, False))
        _above("norm_eps", self.norm_eps)
        if self.embedding_std is not None:
            _above("embedding_std", self.embedding_std)

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding and of the head: `vocab_size`, and what `vocab_multiple` adds."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def hidden_width(self) -> int:
        """Width of the channel mixer's hidden layer."""
        return self.d_ff or 4 * self.d_model

    def to_json(self) -> str:
        """The configuration as indented JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str, source: str = "config") -> "ModelConfig":
        """Reads what `to_json` wrote.

        Raises:
            ModelError: not JSON, unknown fields, or values that are not allowed.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            raise ModelError(f"{source} is not JSON: {error}") from None
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - known) if isinstance(fields, dict) else ["not an object"]
        if unknown:
            raise ModelError(
                f"{source} has unknown fields: {', '.join(unknown)}; "
                f"allowed: {', '.join(sorted(known))}"
            )
        return cls(**fields)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ModelError(f"{name} holds {value!r}; write a name, for example flat or gelu")
    return value


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if type(value) is not type(allowed[0]) or value not in allowed:
        raise ModelError(f"{name} is {value!r}; allowed: {', '.join(map(str, allowed))}")


def _above(name: str, value: object) -> None:
    if type(value) not in (int, float) or not 0 < value < math.inf:  # pyright: ignore
        raise ModelError(f"{name} is {value!r}; it must be a number above 0")


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
    place = f"{what} {entry!r}"
    unreadable = ModelError(
        f"{place} cannot be read; write name, name(key=value, ...), or several joined by +"
    )
    try:
        tree = ast.parse(entry.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise unreadable from None
    terms = []
    for node in _terms(tree):
        name, keywords = node, []
        if isinstance(node, ast.Call) and not node.args:
            name, keywords = node.func, node.keywords
        written = ast.unparse(name)
        if base is not None and isinstance(name, ast.Attribute):
            chosen = _imported(written, place, base)
        elif not isinstance(name, ast.Name):
            raise unreadable
        elif written not in registry:
            near = difflib.get_close_matches(written, registry, n=1)
            guess = f", did you mean {near[0]!r}?" if near else ""
            of_your_own = "" if base is None else ", or module.Class of your own"
            raise ModelError(
                f"{place}: there is no {written!r}{guess}; "
                f"allowed: {', '.join(sorted(registry))}{of_your_own}"
            )
        else:
            chosen = registry[written]
        parameters, hints = inspect.signature(chosen).parameters, get_type_hints(chosen.__init__)
        allowed = [n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
        arguments = {}
        for keyword in keywords:
            if keyword.arg not in allowed:
                raise ModelError(
                    f"{place}: {written} has no argument {keyword.arg!r}; "
                    f"allowed: {', '.join(allowed) or 'none'}"
                )
            kinds = _kinds(hints.get(keyword.arg, Any))
            try:
                value = _value(keyword.value, kinds)
            except ValueError:
                raise unreadable from None
            if not any(_fits(value, kind) for kind in kinds):
                words = (k if isinstance(k, str) else KINDS.get(k, str(k)) for k in kinds)
                raise ModelError(
                    f"{place}: {keyword.arg} is {value!r}; allowed: {' or '.join(words)}"
                )
            arguments[keyword.arg] = value
        terms.append((chosen, arguments))
    return terms


def _terms(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _terms(node.left) + _terms(node.right)
    return [node]


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
