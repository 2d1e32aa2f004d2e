"""The curves behind the claims: the points that are asked, read from `curves.yaml`.

A curve varies one thing of the base point. A point that several curves share is one point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from arch import ModelConfig
from eval.errors import RequestError
from eval.inversion.solvers import Solver, parse_solvers
from eval.slices import Slice

FILE = Path(__file__).parent / "curves.yaml"
BASE = "base"
CURVES = "curves"
"""What stands for a claim's number where rows answer the curves."""
BEFORE, AFTER = "before", "after"
SELF, NONSELF = "self", "nonself"
KINDS = (SELF, NONSELF)
"""Every position shown, and the first one hidden."""
PUBLISHED, TUNED, SEARCH = "published descent", "tuned gradient", "search"
FAMILIES = (PUBLISHED, TUNED, SEARCH)

Methods = dict[str, dict[str, Solver]]


@dataclass(frozen=True)
class Point:
    """What is asked of one architecture.

    Attributes:
        width, depth, step: of the model; 0 steps are those of a model as it was drawn.
        layer: whose output is shown.
        channels: how many of it.
        length: tokens of a prompt.
        noise: of what is shown, over its root mean square.
    """

    width: int
    depth: int
    layer: int
    step: int
    channels: int
    length: int
    noise: float

    @property
    def state(self) -> str:
        """Before or after training."""
        return AFTER if self.step else BEFORE

    def at(self, axis: str, value: Any) -> Point:
        """The point with another value on an axis; the last layer and all channels stay such."""
        if axis == "width":
            return replace(self, width=value, channels=value)
        if axis == "depth":
            return replace(self, depth=value, layer=value)
        if axis == "observed":
            return replace(self, length=value + 1)
        return replace(self, **{axis: value})

    def on(self, axis: str, kind: str) -> float | int:
        """Its place on an axis; positions are counted that are shown."""
        if axis == "observed":
            return self.length - (kind == NONSELF)
        return getattr(self, axis)

    def shown(self, kind: str) -> Slice:
        """The slice."""
        high = None if self.channels == self.width else self.channels
        return Slice(start=int(kind == NONSELF), high=high)


@dataclass(frozen=True)
class Axis:
    """The values of one thing, and how they are asked.

    Attributes:
        steps: of training, at each of which every value is asked.
        unasked: methods that a value is not asked by.
    """

    values: tuple[Any, ...]
    steps: tuple[int, ...]
    methods: Methods
    unasked: dict[Any, list[str]]

    def by(self, value: Any) -> Methods:
        """The methods that a value is asked by."""
        left = self.unasked.get(value, [])
        return {
            kind: {name: method for name, method in own.items() if name not in left}
            for kind, own in self.methods.items()
        }


@dataclass(frozen=True)
class Ask:
    """How a point is asked.

    Attributes:
        axis, value: where it was met first.
        methods: by kind of token and label.
        stories: of each model.
    """

    axis: str
    value: Any
    methods: Methods
    stories: int


@dataclass(frozen=True)
class Plan:
    """All that is asked.

    Attributes:
        architectures: fields of a `ModelConfig` by name.
        base: the point that all axes share, before training.
        steps: at which it is asked.
        context, seeds: of the models.
        axes: by name.
        methods: of the base, by kind of token and name.
        stories: per model, at the base and off it (`axes`); a seed's begin `apart` stories after
            those of the seed before.
    """

    architectures: dict[str, dict[str, Any]]
    base: Point
    steps: tuple[int, ...]
    context: int
    seeds: int
    axes: dict[str, Axis]
    methods: Methods
    stories: dict[str, int]

    def curve(self, name: str) -> list[Point]:
        """The points of an axis, at every step it is asked at."""
        axis = self.axes[name]
        bases = [self.base.at("step", step) for step in axis.steps]
        found = [base.at(name, value) for base in bases for value in axis.values]
        return list(dict.fromkeys(found))

    def points(self, axes: list[str] | None = None) -> dict[Point, Ask]:
        """Every point of some axes, the base first; all axes when nothing is said.

        Raises:
            RequestError: there is no such axis.
        """
        for name in axes or []:
            if name not in self.axes:
                known = ", ".join(self.axes)
                raise RequestError(f"--axis {name}: there is no such axis; use one of {known}")
        base = Ask(BASE, None, self.methods, self.stories[BASE])
        found = {self.base.at("step", step): base for step in self.steps}
        for name in axes or self.axes:
            for point in self.curve(name):
                value = point.on(name, NONSELF)
                methods = self.axes[name].by(value)
                ask = Ask(name, value, methods, self.stories["axes"])
                found.setdefault(point, ask)
        return found

    def config(self, architecture: str, point: Point, vocabulary: int) -> ModelConfig:
        """A model's configuration."""
        given = dict(self.architectures[architecture])
        if "d_ff" in given:
            given["d_ff"] = given["d_ff"] * point.width // self.base.width
        size = {"d_model": point.width, "n_layers": point.depth, "context": self.context}
        return ModelConfig(vocab_size=vocabulary, **size, **given)


@lru_cache(maxsize=1)
def plan() -> Plan:
    """What is asked, as the file says."""
    return read(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def read(data: dict[str, Any]) -> Plan:
    """What such a file says.

    Raises:
        RequestError: a method or a setting that does not exist.
    """
    base, context = dict(data["base"]), data["base"]["context"]
    del base["context"]
    methods = _methods(data["methods"])
    return Plan(
        data["architectures"],
        Point(layer=base["depth"], step=0, channels=base["width"], **base),
        tuple(data["steps"]),
        context,
        data["seeds"],
        {
            name: Axis(
                tuple(own["values"]),
                tuple(own.get("steps", (0,))),
                methods | _methods(own.get("methods", {})),
                own.get("unasked", {}),
            )
            for name, own in data["axes"].items()
        },
        methods,
        data["stories"],
    )


def family(method: Solver) -> str:
    """What a method is drawn as."""
    if method.name == "descent":
        return PUBLISHED
    return TUNED if method.family == "gradient" else SEARCH


def _methods(data: dict[str, dict[str, Any]]) -> Methods:
    return {kind: parse_solvers(own) for kind, own in data.items()}
