"""The solvers by name: a solver is a function with a decorator.

    @solver("search", random=True)
    def name(batch, chance, *, starts=24) -> list[Answer]:
        '''Its description on pages.'''

Those that descend have a decorator with a loop, `gradient.loop.gradient`.

A solver is called with a batch of problems and a source of chance for each row; it returns an
answer for each row. Parameters after these that bear the name of a field of `Tools` get that tool.
Keyword-only arguments are the settings, recorded in every row. The modules of `PACKAGES` are read
for solvers, and files of the user's own (`eval.commands`).
"""

from __future__ import annotations

import hashlib
import inspect
import pkgutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import docstring_parser
import torch
from torch import Tensor

from eval import RequestError
from eval.inversion.spaces import OBJECTIVES, VARIABLES

if TYPE_CHECKING:
    from eval.circuit import Circuit
    from eval.inversion.answer import Answer
    from eval.inversion.guesses import ReadBack
    from eval.inversion.problem import Batch
    from eval.recovery import Slice

PACKAGES = ("eval.inversion.gradient", "eval.inversion.search")
FAMILIES = ("gradient", "prior", "search", "control")
"""In the order of reading: a `prior` also measures what the model expects, a `control` nothing."""
NAMES: dict[str, Collection[Any]] = {"objective": OBJECTIVES, "variable": VARIABLES}
"""Settings whose values are names."""
ANY = 1 << 30

Chance = list[torch.Generator]
"""A source of chance for each row, so that no row depends on its batch."""
ReadBacksOf = Callable[[list["Circuit"]], list["ReadBack"]]
Solve = Callable[..., "list[Answer]"]
F = TypeVar("F", bound=Solve)


@dataclass(frozen=True)
class Tools:
    """Tools beside the problems; a solver gets those that are parameters of its function.

    Attributes:
        truth: the tokens, `(B, T)`. Only the published protocol's own criterion looks at them;
            answers are ranked by them.
        readback: of circuits that differ in their layers only, to guess tokens from outputs.
    """

    truth: Tensor | None = None
    readback: ReadBacksOf | None = None


@dataclass(frozen=True)
class Solver:
    """A solver with its settings.

    Attributes:
        name: as in rows, flags and suites.
        family: one of `FAMILIES`.
        function: called with a batch, its chance, the tools that it needs, and the settings.
        settings: keyword-only arguments, recorded in every row.
        needs: fields of `Tools` that it is given.
        code: of a user's own file, its SHA-256; None for our own.
        together: the problems of one call: those of a "batch" that have nothing but the model
            and the length in common, "layers" of the same prompts, or one "problem".
        title: its name on pages.
        hidden: how many hidden tokens it can work with, of those before the last position shown, in
            a causal model; None: any slice and any model.
        random: whether another seed can give another answer.
    """

    name: str
    family: str
    function: Solve
    settings: dict[str, Any]
    needs: tuple[str, ...]
    code: str | None
    together: str
    title: str
    hidden: range | None = None
    random: bool = False

    @property
    def text(self) -> str:
        """Its description on pages: its docstring, up to the arguments."""
        return " ".join((inspect.getdoc(self.function) or "").split("\nArgs:")[0].split())

    @property
    def guesses(self) -> bool:
        """Whether it guesses from background text."""
        return "readback" in self.needs

    @property
    def slices(self) -> str:
        """The slices that it takes, in words."""
        if self.hidden is None:
            return "any slice"
        least, most = self.hidden[0], self.hidden[-1]
        if most == 0:
            return "every position shown, as in [:, 0:, :]"
        few = f"{least} to {most}" if most < ANY - 1 else f"{least} or more"
        return f"{few} positions hidden, as in [:, {least}:, :] or [:, :3+{3 + least}:, :]"

    @property
    def setting_texts(self) -> dict[str, str]:
        """The help of each setting, from its docstring; empty where it has none."""
        documented = docstring_parser.parse(inspect.getdoc(self.function) or "").params
        texts = {each.arg_name: " ".join((each.description or "").split()) for each in documented}
        choices = {name: f" One of {', '.join(values)}." for name, values in NAMES.items()}
        return {name: texts.get(name, "") + choices.get(name, "") for name in self.settings}

    @property
    def record(self) -> dict[str, Any]:
        """The `settings` field of its rows: the settings, and whose code it was if not ours."""
        return self.settings | ({"code": self.code} if self.code else {})

    def answer(
        self,
        batch: Batch,
        chance: Chance,
        tools: Tools,
    ) -> list[Answer]:
        """An answer for each row of the batch, with the ranks of the true tokens if there are such.

        Args:
            batch: the problems, without tokens after the last position shown for a solver that
                searches left to right (`Problem.shortened`).
            chance: of each row.
            tools: those that the solver needs; the truth.
        """
        started = time.perf_counter()
        given = {name: getattr(tools, name) for name in self.needs}
        answers = self.function(batch, chance, **given, **self.settings)
        share = (time.perf_counter() - started) / len(answers)
        for row, answer in enumerate(answers):
            answer.seconds = answer.seconds or share
            if answer.certificate and answer.collisions:  # others fit as well: nothing is ruled out
                answer.certificate = "residual"
            if tools.truth is not None:
                answers[row] = answer.ranked(tools.truth[row], batch.allowed)
        return answers

    def refusal(self, shown: Slice, length: int, causal: bool) -> str | None:
        """Why it cannot be asked this, or None."""
        if self.hidden is None:
            return None
        if not causal:
            return "searches left to right, which needs a causal model, not one without mask"
        return None if shown.hidden(length) in self.hidden else f"needs {self.slices}"

    def configured(self, settings: dict[str, Any]) -> Solver:
        """With other settings.

        Raises:
            RequestError: one that it does not have, or a value of another kind.
        """
        for name, value in settings.items():
            if name not in self.settings:
                raise RequestError(
                    f"method {self.name} has no setting {name!r}; "
                    f"it has {', '.join(self.settings) or 'none'}"
                )
            kind = type(self.settings[name])
            fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
            if isinstance(value, bool) != (kind is bool) or not fits:
                raise RequestError(
                    f"method {self.name}, setting {name}: {value!r} is not {kind.__name__}, "
                    f"as in {name}={self.settings[name]}"
                )
            if kind in (int, float) and value <= 0:
                raise RequestError(f"method {self.name}, setting {name}: {value!r} must be above 0")
            if value not in NAMES.get(name, (value,)):
                raise RequestError(
                    f"method {self.name}, setting {name}: {value!r} does not exist; "
                    f"use one of {', '.join(NAMES[name])}"
                )
        return replace(self, settings=self.settings | settings)


_REGISTRY: dict[str, Solver] = {}


def solver(family: str, *, name: str = "", **about: Any) -> Callable[[F], F]:
    """Enters a function among the solvers, under its own name if no other is given.

    Args:
        family: one of `FAMILIES`.
        name: of the solver.
        about: fields of `Solver`: hidden, random, together, title. A gradient solver
            answers a batch at once, any other one problem, if `together` says nothing else.

    Raises:
        RequestError: another solver has the name.
    """

    def enter(function: F) -> F:
        parameters = inspect.signature(function).parameters
        settings = {p.name: p.default for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
        key = name or function.__name__
        ours = function.__module__.startswith("eval.")
        if not ours:
            solvers()  # so that no name of ours is taken
        if key in _REGISTRY and _REGISTRY[key].function.__module__ != function.__module__:
            raise RequestError(f"solver {key}: there is one of that name; give it another")
        together = "batch" if family == "gradient" else "problem"
        defaults: dict[str, Any] = {"together": together, "title": key}
        _REGISTRY[key] = Solver(
            name=key,
            family=family,
            function=function,
            settings=settings,
            needs=tuple(field.name for field in fields(Tools) if field.name in parameters),
            code=None if ours else _sha256(function),
            **(defaults | about),
        )
        return function

    return enter


def _sha256(function: Solve) -> str | None:
    """Of the file that a function stands in; None if it is in none."""
    file = Path(inspect.getsourcefile(inspect.unwrap(function)) or "")
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def solvers() -> dict[str, Solver]:
    """All solvers, each with its defaults, in the order of reading.

    By family, the published protocol first; searches of shown tokens before those of hidden ones.
    """
    for package in PACKAGES:
        for module in pkgutil.iter_modules(import_module(package).__path__):
            import_module(f"{package}.{module.name}")

    def place(each: Solver) -> tuple[Any, ...]:
        hidden = each.hidden[0] if each.hidden else 0
        return FAMILIES.index(each.family), hidden, "truth" not in each.needs, each.name

    return {each.name: each for each in sorted(_REGISTRY.values(), key=place)}


def parse_solvers(wanted: dict[str, Any] | list[str]) -> dict[str, Solver]:
    """Solvers by label, from names or from `{label: settings}`.

    A label is a solver's name, or anything with the name under the key `method` of its settings.

    Raises:
        RequestError: no such solver or setting.
    """
    names = wanted if isinstance(wanted, list | dict) else [wanted]
    if isinstance(wanted, str) or not all(isinstance(name, str) for name in names):
        raise RequestError(
            f"methods: {wanted!r} is neither a list of names nor a mapping of names to settings"
        )
    by_label: dict[str, Any] = wanted if isinstance(wanted, dict) else dict.fromkeys(wanted)
    known, chosen = solvers(), {}
    for label, settings in by_label.items():
        if not isinstance(settings or {}, dict):
            raise RequestError(
                f"method {label}: {settings!r} is not a mapping of settings, as in {{steps: 100}}"
            )
        settings = dict(settings or {})
        name = str(settings.pop("method", label))
        if name not in known:
            raise RequestError(f"method {name}: there is no such method; use {', '.join(known)}")
        chosen[label] = known[name].configured(settings)
    return chosen
