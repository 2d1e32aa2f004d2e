"""What a lens is, and the register of all of them.

A lens is one file: a function that finds numbers, decorated with `lens`, and beside it the
functions that draw them. Those of the modules of this folder are registered when they are first
asked for; one in a user's own file, when that file is run.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.checkpoints import Checkpoint
from eval.errors import RequestError
from eval.lenses.named import Named
from eval.text import Prompt

if TYPE_CHECKING:
    from markupsafe import Markup

    from eval.plots import Figure

TOKENS = 8192
ALL = "all"


@dataclass(frozen=True)
class Request:
    """What is asked of a lens.

    Attributes:
        prompts: what is looked at, each short enough for the model.
        words: tokens whose probability or direction is followed, as texts; a lens that needs some
            and is given none takes the model's own answers.
        corpus: where text comes from, for a lens that is fitted or counted on some.
        tokens: how much of that text: with more of it all fits are better, and take longer.
        seed: of whatever is drawn.
    """

    prompts: tuple[Prompt, ...]
    words: tuple[str, ...] = ()
    corpus: str = "toy"
    tokens: int = TOKENS
    seed: int = 0


@dataclass(frozen=True)
class Finding:
    """What a lens found in one checkpoint.

    Attributes:
        arrays: by name; what figures are drawn from.
        figures: records of single numbers, which become rows: `figure` (its name), `value`, and
            whatever places it (`layer`, `part`, `method`, ...); `low`, `high`, `n` for an interval.
        notes: anything else that the page shows, as JSON holds it: `tokens` (a list of pieces for
            each prompt), tables, texts.
    """

    arrays: dict[str, Named] = field(default_factory=dict)
    figures: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


Find = Callable[[Checkpoint, Request], Finding]
Figures = Callable[[Sequence[dict[str, Any]]], "list[Figure]"]
Texts = Callable[[Sequence[dict[str, Any]]], "list[Markup]"]


@dataclass(frozen=True)
class Lens:
    """One way of looking.

    Attributes:
        name: as on the command line.
        about: in a line.
        find: looks. Raises RequestError for a model or a request that it cannot look at.
        title: of its section of the page; the name when empty.
        figures: draws the documents of all checkpoints.
        texts: tables and texts of those documents, as HTML.
        order: its place in lists and on the page, the smallest first.
    """

    name: str
    about: str
    find: Find
    title: str = ""
    figures: Figures = lambda documents: []
    texts: Texts = lambda documents: []
    order: float = 100.0


REGISTER: dict[str, Lens] = {}
"""Lenses by name, as far as their modules are imported; `lenses` imports those of this folder."""


def lens(name: str, about: str, **settings: Any) -> Callable[[Find], Find]:
    """Registers the decorated function as the `find` of a lens.

    Args:
        name: as on the command line.
        about: in a line.
        settings: the other attributes of `Lens`.

    Raises:
        RequestError: another file has a lens of that name.
    """

    def register(find: Find) -> Find:
        before = REGISTER.get(name)
        if before and _file(before.find) != _file(find):
            raise RequestError(f"lens {name}: {_file(before.find)} has one of that name; rename it")
        REGISTER[name] = Lens(name, about, find, **settings)
        return find

    return register


def lenses() -> dict[str, Lens]:
    """All lenses by name, in their order."""
    _import_all()
    return {one.name: one for one in sorted(REGISTER.values(), key=lambda one: one.order)}


def choose(names: list[str]) -> list[Lens]:
    """The lenses of these names, `all` standing for every one, each once.

    Raises:
        RequestError: a name that is not there.
    """
    known, chosen = lenses(), {}
    for name in names:
        if name != ALL and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise RequestError(
                f"--lens {name}: no lens of that name; {hint}use {ALL} or some of "
                f"{', '.join(known)}"
            )
        chosen |= known if name == ALL else {name: known[name]}
    return list(chosen.values())


@functools.cache
def _import_all() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")


def _file(find: Find) -> str:
    return inspect.getfile(inspect.unwrap(find))
