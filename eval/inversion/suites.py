"""Suites: what to ask, written down. `quick`, `standard`, `full`, or a YAML file of one's own.

    prompts: {set: [story], count: 100, length: 24}
    questions:
      - layers: all                        # or last, or a list such as [1, 4, [1, 4]]
        slices: ["[:, 0:, :]"]
        methods: {sweep: {}, adam-l1: {method: adam, objective: l1}}

A question may also have parts, without, seeds, noise and shuffled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from eval.errors import RequestError
from eval.inversion.questions import Question
from eval.inversion.solvers import parse_solvers
from eval.slices import Slice
from eval.text import SETS

DIRECTORY = Path(__file__).parent.parent / "suites"
PROMPTS = {"set": ["story"], "count": 8, "length": 16}


@dataclass(frozen=True)
class Suite:
    """Questions, and how many prompts of which kind they are asked of by default."""

    questions: list[Question]
    prompts: dict[str, Any]


def load_suite(name: str) -> dict[str, Any]:
    """A suite as plain data.

    Raises:
        RequestError: no such suite or file, not YAML, or of another form.
    """
    known = sorted(path.stem for path in DIRECTORY.glob("*.yaml"))
    path = DIRECTORY / f"{name}.yaml" if name in known else Path(name)
    if not path.is_file():
        raise RequestError(
            f"--suite {name}: no such suite or file; use {', '.join(known)} or a YAML file"
        )
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise RequestError(f"--suite {path}: not YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(data, dict) or not isinstance(data.get("questions"), list):
        raise RequestError(f"--suite {path}: needs a list under the key questions")
    _only(data, {"prompts", "questions"}, f"--suite {path}")
    _check_prompts(data.get("prompts") or {}, f"--suite {path}, prompts")
    if not data["questions"]:
        raise RequestError(f"--suite {path}: no questions; give at least one")
    return data


def read_suite(data: dict[str, Any], override: dict[str, Any]) -> Suite:
    """Checks and completes a suite.

    Args:
        data: as `load_suite` gives it.
        override: fields that replace those of every question.

    Raises:
        RequestError: a key or a value that is not allowed, named.
    """
    questions = []
    for number, entry in enumerate(data["questions"], start=1):
        where = f"question {number}"
        if not isinstance(entry, dict):
            raise RequestError(f"{where}: {entry!r} is not a mapping of fields to values")
        _only(entry, {field.name for field in fields(Question)}, where)
        questions.append(build_question(entry | override, where))
    return Suite(questions, PROMPTS | (data.get("prompts") or {}))


def build_question(entry: Mapping[str, Any], where: str) -> Question:
    """Checks and completes a question that a suite or a claim has written down.

    Args:
        entry: fields of `Question`, as YAML has them.
        where: it stands, for errors.

    Raises:
        RequestError: a value that is not allowed, named.
    """
    if not entry.get("methods"):
        raise RequestError(f"{where}: no methods; give some, as in methods: {{sweep: {{}}}}")
    fields: dict[str, Any] = {"methods": parse_solvers(entry["methods"])}
    if "slices" in entry:
        fields["slices"] = tuple(Slice.parse(str(text)) for text in _list(entry, "slices"))
    if "layers" in entry:
        fields["layers"] = _layers(entry["layers"], where)
    if "parts" in entry:
        fields["parts"] = tuple(str(part) for part in _list(entry, "parts"))
    if "without" in entry:
        fields["without"] = tuple(
            frozenset(map(str, each if isinstance(each, list) else [each]))
            for each in _list(entry, "without")
        )
    for name, kind in (("seeds", int), ("noise", (int, float))):
        if name in entry:
            values = _list(entry, name)
            numbers = all(isinstance(v, kind) and not isinstance(v, bool) for v in values)
            if not numbers or not all(0 <= v < float("inf") for v in values):
                words = "whole numbers" if kind is int else "numbers"
                raise RequestError(f"{where}, {name}: {values} must be {words} of at least 0")
            fields[name] = tuple(values)
    if "shuffled" in entry:
        if not isinstance(entry["shuffled"], bool):
            raise RequestError(f"{where}, shuffled: {entry['shuffled']!r} must be true or false")
        fields["shuffled"] = entry["shuffled"]
    for name in ("slices", "parts", "without", "seeds", "noise"):
        if fields.get(name) == ():
            raise RequestError(f"{where}, {name}: empty; give some, or leave it out")
    return Question(**fields)


def _layers(value: Any, where: str) -> Any:
    if value in ("all", "last"):
        return value
    layers = value if isinstance(value, list) else [value]
    joined = tuple(tuple(layer) if isinstance(layer, list) else layer for layer in layers)
    flat = [one for layer in joined for one in (layer if isinstance(layer, tuple) else (layer,))]
    if not flat or not all(type(one) is int for one in flat):
        raise RequestError(f"{where}, layers: {value!r} must be all, last, or a list of numbers")
    return joined


def _check_prompts(data: Any, where: str) -> None:
    if not isinstance(data, dict):
        raise RequestError(f"{where}: {data!r} is not a mapping, as in {PROMPTS}")
    _only(data, set(PROMPTS), where)
    wanted = data.get("set", PROMPTS["set"])
    if not isinstance(wanted, list) or not wanted or not all(name in SETS for name in wanted):
        raise RequestError(f"{where}, set: {wanted!r} must be a list of {', '.join(SETS)}")
    for name in ("count", "length"):
        value = data.get(name, 1)
        if type(value) is not int or value < 1:
            raise RequestError(f"{where}, {name}: {value!r} must be a whole number of at least 1")


def _list(entry: Mapping[str, Any], name: str) -> list[Any]:
    value = entry[name]
    return value if isinstance(value, (list, tuple)) else [value]  # pyright: ignore


def _only(data: dict[str, Any], allowed: set[str], where: str) -> None:
    for key in data:
        if key not in allowed:
            raise RequestError(
                f"{where}: unknown key {key!r}; allowed: {', '.join(sorted(allowed))}"
            )
