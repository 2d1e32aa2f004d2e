"""How parameters of commands are read: alike from a command line, from a suite and from Python.

A command is a function. Its parameters are the flags, their types say what may be given, and its
docstring is the help, with `HELP` for flags that several commands have. Of
`str | Sequence[str] | None` a command line takes several words. The types below say what plain ones
cannot: a range, a place among the words.
"""

import math
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from tyro.conf import Positional, UseAppendAction, arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from eval.messages import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from eval.models.checkpoint import Checkpoint


def _number(
    words: str, allowed: Callable[[float], bool], kind: Callable[[float], Any] = float
) -> PrimitiveConstructorSpec[Any]:
    """The reader of a number, which says in `words` what is allowed."""

    def read(given: list[str]) -> Any:
        try:
            value = _read_number(given[0])
            fits = allowed(value) and abs(value) < (2**63 if kind is int else math.inf)
            fits = fits and (kind is float or value == int(value))
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"{given[0]!r} is not {words}")
        return kind(value)

    return PrimitiveConstructorSpec(1, "N", read, lambda value: True, lambda value: [str(value)])


def _read_number(word: str) -> float:
    """A number; a whole one to its last digit."""
    try:
        return int(word)
    except ValueError:
        return float(word)


NUMBERS = {
    int: _number("a whole number", lambda n: True, int),
    float: _number("a number", lambda n: True),
}
Positive: TypeAlias = Annotated[int, _number("a whole number of at least 1", lambda n: n >= 1, int)]
Natural: TypeAlias = Annotated[int, _number("a whole number of at least 0", lambda n: n >= 0, int)]
NotNegative: TypeAlias = Annotated[float, _number("a number of at least 0", lambda n: n >= 0)]
Fraction: TypeAlias = Annotated[
    float, _number("a number above 0 and at most 1", lambda n: 0 < n <= 1)
]
AboveZero: TypeAlias = Annotated[float, _number("a number above 0", lambda n: n > 0)]
Words: TypeAlias = str | Sequence[str] | None
Out: TypeAlias = Annotated[str | None, arg(metavar="DIR")]
Shard: TypeAlias = Annotated[str | None, arg(metavar="I/N")]
Part: TypeAlias = Literal["block", "mixer", "stream", "key", "rotated_key", "value", "final"]
"""Of a layer: `eval.sites.circuit.PARTS`."""
CapturedPart: TypeAlias = Literal[Part, "logits"]
"""Also logits, from which the head is solved; one `Literal`, as a flag takes one alone."""
File: TypeAlias = Annotated[str, Positional, arg(metavar="FILE")]

if TYPE_CHECKING:
    Model: TypeAlias = str | Path | Checkpoint
    Models: TypeAlias = Model | Sequence[Model]
    Places: TypeAlias = str | Path | Sequence[str | Path]
    Plugins: TypeAlias = Words
    Layers: TypeAlias = int | str | Sequence[int | str]
else:
    Model = Annotated[str, Positional, arg(metavar="DIR")]
    Models = Annotated[Sequence[str], Positional, arg(metavar="DIR ...")]
    Places = Models
    Plugins = Annotated[tuple[str, ...], UseAppendAction, arg(metavar="FILE")]
    Layers = str | Sequence[str]

TRUST_HELP = "let a model directory name mixers outside this project, whose code then runs"
HELP = {
    "models": "model directories, or runs (RUN, RUN@STEP, RUN@best), remnant:NAME or hf:NAME",
    "results": "results directories",
    "out": "results directory; rows that it already has are not computed again",
    "corpus": "source of the held-out stories: packed data, hub:NAME, toy (the built-in "
    "generator), a directory with valid.*, or a .txt, .csv, .json, .jsonl or .parquet file, whose "
    "held-out part is read, or all of a valid.*; default: the models' training data, or toy",
    "plugin": "your Python file that registers more (docs/extending.md); you can give this flag "
    "several times. The file runs with all your rights: give only files that you trust",
    "device": "cpu, cuda, or auto: a GPU if there is one",
    "shard": "do part I of N of the work; each part writes its own rows file",
}
"""The help of flags that several commands have, where a command's docstring has none."""

READERS = ConstructorRegistry()
"""How words are read, in the place of tyro's own rules."""
TEXTS, PLACES = ("text", "prompt"), ("models", "model", "places", "results")
"""Parameters that hold texts, and those that one value at least must be given for."""
EMPTY = ("plugin", "words", "set_", "without", "controls", "quantisers", "runs")
"""Parameters of which there may be none: an empty list of others would mean their default."""
SEQUENCES = (Sequence, list, tuple)


@READERS.primitive_rule
def read_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Numbers, and one line for what is none."""
    return NUMBERS.get(info.type) if isinstance(info.type, type) else None


@READERS.primitive_rule
def read_one_of(info: PrimitiveTypeInfo) -> Any:
    """Reads a union of types as its sequence, else as its first; None is no word."""
    if info.type_origin not in (typing.Union, types.UnionType):
        return None
    kinds = [kind for kind in typing.get_args(info.type) if kind is not type(None)]
    sequences = [kind for kind in kinds if typing.get_origin(kind) in SEQUENCES]
    chosen = PrimitiveTypeInfo.make((sequences or kinds)[0], info.markers)
    return ConstructorRegistry.get_primitive_spec(chosen)


@READERS.primitive_rule
def read_several(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Several words, one at least."""
    if info.type_origin not in SEQUENCES or UseAppendAction in info.markers:
        return None
    inner = PrimitiveTypeInfo.make(typing.get_args(info.type)[0], info.markers)
    inner_reader: Any = ConstructorRegistry.get_primitive_spec(inner)

    def read(given: list[str]) -> tuple[Any, ...]:
        if not given:
            raise ValueError("give one at least")
        return tuple(inner_reader.instance_from_str([word]) for word in given)

    def write(values: Any) -> list[str]:
        return [str(value) for value in listed(values)]

    return PrimitiveConstructorSpec(
        "*", f"{inner_reader.metavar} ...", read, lambda value: True, write, inner_reader.choices
    )


def read_arguments(hints: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call, read as the command line reads its words.

    None and open models stay as they are. What can be gone through once alone becomes a list.

    Args:
        hints: the type of each parameter.
        given: the arguments.

    Raises:
        RequestError: a value that the flag refuses.
    """
    arguments = {
        name: list(value) if isinstance(value, Iterator) else value for name, value in given.items()
    }
    for name, value in list(arguments.items()):
        values = listed(value)
        positional = Positional in getattr(hints[name], "__metadata__", ())
        where = name if positional else flag_name(name)
        _refuse_others(name, where, values, value is None)
        plain = all(isinstance(v, str | int | float | os.PathLike) for v in values)
        if values == [] and name in EMPTY:
            arguments[name] = ()
            continue
        if not plain and len(values) == 1:
            continue
        reader = reader_of(hints[name])
        if not plain:
            if reader.nargs == 1:
                raise RequestError(f"{where}: {len(values)} are given; give one value")
            continue
        words = [str(value) for value in values]
        try:
            if hints[name] is not bool and any(isinstance(value, bool) for value in values):
                raise ValueError(f"{' '.join(words)}: true and false are no words; quote them")
            if reader.nargs == 1 and len(words) > 1:
                raise ValueError(f"{' '.join(words)}: give one value")
            for word in words:
                if reader.choices and word not in reader.choices:
                    raise ValueError(f"{word!r} is not one of {', '.join(reader.choices)}")
            arguments[name] = reader.instance_from_str(words)
        except ValueError as error:
            raise RequestError(f"{where}: {error}") from None
    return arguments


def _refuse_others(name: str, where: str, values: Sequence[Any], absent: bool) -> None:
    """Refuses values that a call in Python may give and no command line: nothing, bytes, a path.

    Also an empty word, as of a shell's variable that is not set: a path would be the working
    directory. `where` names the parameter to its user, and `absent` is whether None stands for all
    values.
    """
    fix = ""
    if name in PLACES and all(value is None for value in values):
        raise RequestError(f"{where}: give one at least")
    if not values and name not in EMPTY:
        raise RequestError(f"{where}: the list is empty; give one value, or leave it out")
    for value in values:
        if isinstance(value, float) and math.isnan(value) and name in TEXTS:
            fix = "a missing value is no text; leave it out, as by dropna()"
        elif isinstance(value, str) and not value and name not in (*TEXTS, "truth"):
            fix = "the value is empty; give one"
        elif value is None and not absent:
            fix = "give words or numbers"
        elif name in ("places", "results") and not isinstance(value, str | os.PathLike):
            fix = f"a {type(value).__name__}; give the directory of its rows, its out"
        elif isinstance(value, bytes | bytearray):
            fix = "give a text, as by decode()"
        elif isinstance(value, slice):
            fix = "give it in quotes, as in '[:, 1:, :]'"
        elif isinstance(value, os.PathLike) and name in TEXTS:
            fix = "a path is no text; give what the file holds, as by read_text()"
        elif isinstance(value, list) and name not in TEXTS:
            fix = "give a flat list"
        elif isinstance(value, Mapping):
            fix = "give words or numbers, not a mapping"
        if fix:
            words = " ".join(str(value).split())[:80] or repr(value)
            raise RequestError(f"{where} {words}: {fix}")


def reader_of(hint: Any) -> PrimitiveConstructorSpec[Any]:
    """What reads the words of a parameter; its `nargs` are "*" where it takes several."""
    with READERS:
        kind = PrimitiveTypeInfo.make(hint, set(), {UseAppendAction})
        reader: Any = ConstructorRegistry.get_primitive_spec(kind)
    return reader


def flag_name(parameter: str) -> str:
    """A parameter as a flag: `--pad-to` for `pad_to`."""
    return "--" + parameter.strip("_").replace("_", "-")


def listed(value: Any) -> list[Any]:
    """A value, or a sequence of values, as a list; a text is one value.

    Those of numpy, pandas and torch are taken for the plain ones that they hold.
    """
    plain = _plain(value)
    alone = isinstance(plain, str | bytes | bytearray) or not isinstance(plain, Sequence)
    return [plain] if alone else list(map(_plain, plain))


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
