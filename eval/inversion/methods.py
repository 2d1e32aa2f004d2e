"""The solvers by name: what each can be asked, its settings, and how it is called."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from eval.errors import RequestError
from eval.inversion import gradient
from eval.inversion.alternating import alternating
from eval.inversion.answer import Answer
from eval.inversion.decode import DECODERS
from eval.inversion.enumerate import enumerate_hidden
from eval.inversion.gradient.variable import VARIABLES
from eval.inversion.guess import chance
from eval.inversion.objective import objective
from eval.inversion.prior import expected
from eval.inversion.propose import propose
from eval.inversion.slices import Slice
from eval.inversion.snap import snap
from eval.inversion.sweep import sweep

GIVEN = ("batch", "problem", "lexicon", "chance", "truth", "start", "free")
"""Arguments that are no settings."""

NAMES: dict[str, Collection[Any]] = {"variable": VARIABLES, "decode": DECODERS}
"""Settings whose values are names."""


@dataclass(frozen=True)
class Method:
    """A solver with its settings.

    Attributes:
        name: of the solver.
        family: `gradient`, `search`, or `control` for what looks at nothing.
        solve: gradient solvers answer a batch of problems, the others one problem.
        hidden: which numbers of hidden leading tokens it can work with; None: any slice at all.
        random: whether another seed can give another answer.
        settings: keyword arguments, recorded in every row.
        cost: tokens it is likely to send through the circuit for one prompt, given the vocabulary,
            the length and the hidden tokens; for the time-left estimate alone.
    """

    name: str
    family: str
    solve: Callable[..., list[Answer]]
    hidden: range | None
    random: bool
    settings: dict[str, Any]
    cost: Callable[[int, int, int], float]

    def refusal(self, shown: Slice, length: int, causal: bool) -> str | None:
        """Why it cannot be asked this, or None."""
        if self.hidden is None:
            return None
        if not causal:
            return "searches left to right, which needs a causal model, not one without mask"
        positions = shown.positions(length)
        if positions != list(range(positions[0], positions[-1] + 1)):
            return "needs neighbouring positions"
        if positions[0] not in self.hidden:
            least, most = self.hidden[0], self.hidden[-1]
            if most == 0:
                return "needs every position shown, as in [:, 0:, :]"
            few = f"{least} to {most}" if most < ANY else f"{least} or more"
            return f"needs the first k positions hidden, k = {few}, as in [:, {least}:, :]"
        return None

    def configured(self, settings: dict[str, Any]) -> "Method":
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
            if name == "objective":
                objective(str(value))
            elif value not in NAMES.get(name, (value,)):
                raise RequestError(
                    f"method {self.name}, setting {name}: {value!r} does not exist; "
                    f"use one of {', '.join(NAMES[name])}"
                )
        return replace(self, settings=self.settings | settings)


ANY = 1 << 30


def _method(
    name: str,
    family: str,
    solve: Callable[..., list[Answer]],
    hidden: range | None,
    random: bool,
    cost: Callable[[int, int, int], float],
) -> Method:
    parameters = inspect.signature(solve).parameters.values()
    settings = {p.name: p.default for p in parameters if p.name not in GIVEN}
    return Method(name, family, solve, hidden, random, settings, cost)


def methods() -> dict[str, Method]:
    """All solvers, each with its defaults."""
    steps = {"gcg": 4096, "arca": 4096, "levenberg": 30 * 130}  # tokens' worth of work a token

    def descends(name: str) -> Method:
        solve = getattr(gradient, name)
        default = inspect.signature(solve).parameters.get("steps")
        each = steps.get(name) or 3 * (default.default if default else 300)
        return _method(name, "gradient", solve, None, True, lambda V, T, k: each * T)

    search = [
        _method("sweep", "search", sweep, range(1), False, lambda V, T, k: V * T),
        _method("propose", "search", propose, range(1), False, lambda V, T, k: 10 * T),
        _method(
            "alternating",
            "search",
            alternating,
            range(1, ANY),
            True,
            lambda V, T, k: V * (4 + k * k),
        ),
        _method("snap", "search", snap, range(1, ANY), True, lambda V, T, k: 3 * 900 * T + V * k),
        _method(
            "enumerate", "search", enumerate_hidden, range(1, 3), True, lambda V, T, k: V * 40 * k
        ),
        _method("expected", "prior", expected, range(1), False, lambda V, T, k: 2 * V * T),
        _method("chance", "control", chance, None, True, lambda V, T, k: T),
    ]
    found = [*(descends(name) for name in gradient.__all__), *search]
    return {method.name: method for method in found}


def parse_methods(wanted: dict[str, Any] | list[str]) -> dict[str, Method]:
    """Methods by label, from names or from `{label: settings}`.

    A label is a method's name, or anything with the name under the key `method` of its settings.

    Raises:
        RequestError: no such method or setting.
    """
    if not isinstance(wanted, dict) and not (
        isinstance(wanted, list) and all(isinstance(name, str) for name in wanted)
    ):
        raise RequestError(
            f"methods: {wanted!r} is neither a list of names nor a mapping of names to settings"
        )
    known, found = methods(), {}
    for label, settings in (
        wanted.items() if isinstance(wanted, dict) else ((name, {}) for name in wanted)
    ):
        if not isinstance(settings or {}, dict):
            raise RequestError(
                f"method {label}: {settings!r} is not a mapping of settings, as in {{steps: 100}}"
            )
        settings = dict(settings or {})
        name = settings.pop("method", label)
        if not isinstance(name, str) or name not in known:
            raise RequestError(f"method {name}: there is no such method; use {', '.join(known)}")
        found[label] = known[name].configured(settings)
    return found
