"""Solvers by name: a solver is a function with a decorator, and `ask_solver` asks it.

    @solver("search", hidden=range(1))
    def name(problem, generators, *, starts=24) -> list[Answer]:
        '''Its description on pages.'''

It is called with a `Problem` and a random generator for each of its rows, and gives an answer for
each row. Keyword-only arguments are the settings, recorded in every row. What an answer claims is
checked by `ask_solver`: no solver certifies itself. The modules of `eval.inversion.solvers` are
read for solvers, and files of the user's own (`eval.rows.plugins`).
"""

import inspect
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

import docstring_parser
import torch
from torch import Tensor

from arch.errors import reason
from eval.inversion.gradient.objectives import OBJECTIVES, VARIABLES, restrict
from eval.inversion.problem import Generators, Problem
from eval.messages import ArgumentError, RequestError, nearest
from eval.models.identity import hash_source
from eval.rows.plugins import Registry, foreign_code
from eval.sites.circuit import uncertified
from eval.sites.slices import Slice

FAMILIES = ("gradient", "prior", "search", "control")
"""In the order of reading: a `prior` also measures what the model expects, a `control` nothing."""
NAMES: dict[str, Sequence[str]] = {"objective": list(OBJECTIVES), "variable": list(VARIABLES)}
"""Settings whose values are names."""
KINDS = (bool, int, float, str)
"""What the value of a setting may be."""
ANY = 1 << 30
"""The end of a range of hidden tokens that has none: `hidden=range(1, ANY)`."""
COLLISIONS = 16
"""Tokens that an answer names, at most, where several lie within the limit."""


@dataclass
class Answer:
    """A solver's tokens for one prompt.

    Attributes:
        tokens: `(T,)`.
        scores: how well each token of the vocabulary fits each position, `(T, V)`; higher is
            better. `ask_solver` leaves `(T, 0)`.
        vectors: the model's input that a descent ended with, `(T, D)`.
        enumerated: whether every other token was run at each position, and none fitted.
        runner_up: distance of the second-best token at each position shown, `(S,)`; None for
            solvers that do not try all tokens.
        collisions: positions at which several tokens lie within the limit, with those tokens.
        steps: steps until solved, for a solver that takes steps; None if it was not.
        evaluations: tokens sent through the circuit; a gradient step sends each of them thrice.
        seconds: time taken. Where a solver sets none, a batch's time is shared evenly.
        notes: further figures of the solver, by name.
        residual: distance from the target over the whole slice, set by `ask_solver`.
        within: whether it is within the limit everywhere, set by `ask_solver`.
        certificate: why the answer counts as one, set by `ask_solver`: "residual" (consistent: its
            outputs are those shown, to rounding), or "enumerated" (proved: every other choice was
            tried, and none fits); None for nothing.
        ranks: how many tokens score higher than the true one at each position, `(T,)`, 0 where it
            is the answer, set by `score_answer` where the truth is known.
        diverged: whether a score is NaN or infinity, or a position has none above -inf: then the
            answer and the ranks say nothing.
    """

    tokens: Tensor
    scores: Tensor
    vectors: Tensor | None = None
    enumerated: bool = False
    runner_up: Tensor | None = None
    collisions: dict[int, list[int]] = field(default_factory=dict)
    steps: int | None = None
    evaluations: int = 0
    seconds: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)
    residual: float = float("nan")
    within: bool = False
    certificate: str | None = None
    ranks: Tensor | None = None
    diverged: bool = False


Solve = Callable[..., Iterable[Answer]]
"""Its arguments: `Problem`, or a list of them; `Generators`; settings by name."""
Score = Callable[[Answer, int], Answer]
"""An answer and the number of its row, to the answer with what its scores tell in their place."""
F = TypeVar("F", bound=Solve)


@dataclass(frozen=True)
class Solver:
    """A solver with its settings.

    Attributes:
        name: as in rows, flags and suites.
        family: one of `FAMILIES`.
        function: called with a problem, its rows' generators and the settings.
        title: its name on pages.
        hidden: how many hidden tokens it can work with, of those before the last position shown, in
            a causal model; None: any slice and any model.
        random: whether another seed can give another answer.
        layers: whether it takes a list of problems of the same prompts, one for each layer, and
            answers all; its generators are then of one problem's rows.
        guesses: whether it guesses from background text (`Problem.readbacks`).
        settings: keyword-only arguments, recorded in every row.
        code: of a user's own file, its SHA-256; None for our own.
    """

    name: str
    family: str
    function: Solve
    title: str
    hidden: range | None
    random: bool
    layers: bool
    guesses: bool
    settings: dict[str, Any]
    code: str | None

    @property
    def text(self) -> str:
        """The description on pages: the function's docstring, up to the arguments."""
        return " ".join((inspect.getdoc(self.function) or "").split("\nArgs:")[0].split())

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
        texts = {
            entry.arg_name: " ".join((entry.description or "").split()) for entry in documented
        }
        choices = {name: f" One of {', '.join(values)}." for name, values in self._names.items()}
        return {name: texts.get(name, "") + choices.get(name, "") for name in self.settings}

    @property
    def _names(self) -> dict[str, Sequence[str]]:
        """`NAMES`, of a solver of ours: a user's own may give a setting of that name others."""
        return {} if self.code else NAMES

    @property
    def record(self) -> dict[str, Any]:
        """The `settings` field of its rows: the settings, and whose code it was if not ours."""
        return self.settings | ({"code": self.code} if self.code else {})

    def refusal(self, shown: Slice, length: int, causal: bool) -> str | None:
        """Why it cannot be asked this, or None."""
        try:
            hidden = shown.hidden(length)
        except RequestError as error:  # nothing of it is shown
            return str(error)
        if self.hidden is None:
            return None
        if not causal:
            return "searches left to right, which needs a causal model, not one without mask"
        return None if hidden in self.hidden else f"needs {self.slices}"

    def configured(self, settings: dict[str, Any]) -> "Solver":
        """With other settings; one that weighs a prior is of the family "prior".

        Raises:
            RequestError: one that it does not have, or a value of another kind.
        """
        chosen = self.settings.copy()
        for name, value in settings.items():
            if name not in self.settings:
                raise RequestError(
                    f"solver {self.name} has no setting {name!r}; "
                    f"it has {', '.join(self.settings) or 'none'}"
                )
            default = self.settings[name]
            kind = type(default)
            fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
            if isinstance(value, bool) != (kind is bool) or not fits:
                raise RequestError(
                    f"solver {self.name}, setting {name}: {value!r} is not {kind.__name__}, "
                    f"as in {name}={default}"
                )
            if kind in (int, float) and not (0 < value < math.inf or value == default == 0):
                raise RequestError(
                    f"solver {self.name}, setting {name}: {value!r} must be above 0, and finite"
                )
            if value not in self._names.get(name, (value,)):
                raise RequestError(
                    f"solver {self.name}, setting {name}: {value!r} does not exist; "
                    f"use one of {', '.join(NAMES[name])}"
                )
            # Of two spellings of one number a row has the shorter one: 1, not 1.0.
            whole = kind is float and value == int(value) and value != default
            chosen[name] = int(value) if whole else kind(value)
        family = "prior" if settings.get("prior") else self.family
        return replace(self, family=family, settings=chosen)


def drop_scores(answer: Answer, _row: int = 0) -> Answer:
    """The answer without its scores, and with its tokens alone, not as a view of all rows'."""
    tokens, scores = answer.tokens.clone(), answer.scores.new_empty(len(answer.tokens), 0)
    return replace(answer, tokens=tokens, scores=scores)


def ask_solver(
    chosen: Solver, problems: Sequence[Problem], generators: Generators, score: Score = drop_scores
) -> list[list[Answer]]:
    """Each problem's answers, verified in fp32, with their certificates.

    Args:
        problems: one; of a solver that shares passes over layers, one for each layer.
        generators: of each row of a problem.
        score: gives an answer, with the number of its row, without its scores, which take V times
            as much as its tokens; called for each before the next one is made.
    """
    started, P = time.perf_counter(), len(problems[0].target)
    given = list(problems) if chosen.layers else problems[0]
    who, answers = f"solver {chosen.name}", list[Answer]()
    tensors, model = chain.from_iterable(map(_judges, problems)), problems[0].circuit.model
    with foreign_code(who, chosen.function, model, tensors) if chosen.code else nullcontext():
        for answer in chosen.function(given, generators, **chosen.settings):
            if fault := _fault(answer, problems[0]):
                raise RequestError(f"{who}: answer {1 + len(answers)}: {fault}")
            answers.append(score(_restricted(answer, problems[0].allowed), len(answers) % P))
    if len(answers) != P * len(problems):
        raise RequestError(f"{who}: gives {len(answers)} answers to {P * len(problems)} rows")
    seconds = (time.perf_counter() - started) / len(answers)
    parts = [answers[i : i + P] for i in range(0, len(answers), P)]
    for problem, of_problem in zip(problems, parts, strict=True):
        tokens = torch.stack([answer.tokens for answer in of_problem]).to(problem.target.device)
        residual, within = problem.residual(tokens)
        unproved = uncertified(problem.circuit.model)
        for answer, distance, fits in zip(
            of_problem, residual.tolist(), within.tolist(), strict=True
        ):
            answer.residual, answer.within = distance, fits
            answer.seconds = answer.seconds or seconds
            alone = answer.enumerated and not answer.collisions and not chosen.code
            proof = "enumerated" if alone else "residual"
            answer.certificate = proof if fits and not unproved else None
    return parts


def _judges(problem: Problem) -> list[Tensor]:
    """The tensors of a problem by which its answers, and others' after them, are judged."""
    tolerance = problem.tolerance
    held = problem.vocabulary, problem.target, problem.noise, tolerance.limit, tolerance.usual_limit
    return [x for x in (*held, *vars(tolerance).values()) if isinstance(x, Tensor)]


def _fault(answer: Any, problem: Problem) -> str | None:
    """What of an answer is not as `Answer` says, and what is allowed; None: all is."""
    if not isinstance(answer, Answer):
        return f"is a {type(answer).__name__}; give an Answer"
    T, (V, D) = problem.length, problem.vocabulary.shape
    shapes = {"tokens": (T,), "scores": (T, V), "vectors": (T, D)}
    shapes["runner_up"] = (len(problem.positions),)
    for name, shape in shapes.items():
        value = getattr(answer, name)
        seen = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if seen != shape and not (value is None and name in ("vectors", "runner_up")):
            return f"{name} are {seen}; allowed: a tensor {shape}"
    tokens = answer.tokens
    if tokens.dtype != torch.int64 or ((tokens < 0) | (tokens >= V)).any():
        seen = f"{tokens.min().item()} to {tokens.max().item()} in {tokens.dtype}"
        return f"tokens are {seen}; allowed: whole numbers from 0 to {V - 1} in torch.int64"
    kinds: dict[str, Any] = {"evaluations": int, "steps": int | None, "seconds": float | int}
    for name, kind in kinds.items():
        value = getattr(answer, name)
        if not isinstance(value, kind):
            allowed = "a number" if name == "seconds" else "a whole number"
            return f"{name}: {value!r} is a {type(value).__name__}; give {allowed} of Python's own"
    for name in ("notes", "collisions"):
        try:
            json.dumps([*getattr(answer, name).items()])
        except (TypeError, ValueError, AttributeError) as error:
            return f"{name}: {reason(error)}; give numbers and words of Python's own"
    return None


def _restricted(answer: Answer, allowed: Sequence[int] | None) -> Answer:
    """The answer in allowed tokens, and whether it diverged."""
    best = answer.scores.amax(dim=-1)  # NaN where any is
    answer = replace(answer, diverged=answer.diverged or not bool(best.isfinite().all()))
    if allowed is None:
        return answer
    scores = restrict(answer.scores, allowed)
    return replace(answer, scores=scores, tokens=scores.argmax(dim=-1))


SOLVERS: Registry[Solver] = Registry("solver", "eval.inversion.solvers")
"""Solvers by name; `solvers` gives them in order."""


def solver(
    family: str,
    *,
    title: str = "",
    hidden: range | None = None,
    random: bool = False,
    layers: bool = False,
    guesses: bool = False,
) -> Callable[[F], F]:
    """Enters a function among the solvers, under its own name.

    Args:
        family: one of `FAMILIES`.
        title: its name on pages.
        hidden: how many hidden tokens it can work with; None: any slice and any model.
        random: whether another seed can give another answer.
        layers: whether it takes a list of problems, one for each layer.
        guesses: whether it guesses from background text.

    Raises:
        RequestError: another solver has the name; a setting without a default, or with one that
            no flag can replace.
    """

    def enter(function: F) -> F:
        parameters, key = inspect.signature(function).parameters, function.__name__
        settings = {p.name: p.default for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
        for name, default in settings.items():
            settings[name] = default = default.item() if hasattr(default, "item") else default
            if type(default) not in KINDS:
                seen = "none" if default is inspect.Parameter.empty else repr(default)
                raise RequestError(
                    f"solver {key}, setting {name}: its default is {seen}; give it a number, a "
                    "word, True or False"
                )
        about = hidden, random, layers, guesses, settings, hash_source(function)
        SOLVERS.enter(key, Solver(key, family, function, title or key, *about), function)
        return function

    return enter


def solvers() -> dict[str, Solver]:
    """All solvers, each with its defaults: by family, those of shown tokens before the others."""

    def order(entry: Solver) -> tuple[Any, ...]:
        published = entry.name == "descent"
        return FAMILIES.index(entry.family), (entry.hidden or [0])[0], not published, entry.name

    return {entry.name: entry for entry in sorted(SOLVERS.load().values(), key=order)}


def parse_solvers(wanted: dict[str, dict[str, Any]]) -> list[Solver]:
    """Solvers with their settings, from `{name: settings}`.

    Raises:
        RequestError: no such solver or setting.
    """
    known = solvers()
    for name in wanted:
        if name not in known:
            raise ArgumentError("solver", f"there is no such solver; {nearest(name, known)}", name)
    return [known[name].configured(settings) for name, settings in wanted.items()]
