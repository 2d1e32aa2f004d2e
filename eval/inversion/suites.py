"""Suites: what to ask, written down. `quick`, `standard`, `full`, or a YAML file of one's own.

    prompts: {set: [story], count: 100, length: 24}
    questions:
      - layers: all                        # or last, or a list such as [1, 4, [1, 4]]
        slices: ["[:, 0:, :]"]
        methods: {sweep: {}, adam-l1: {method: adam, objective: l1}}

A question may also have parts, without, seeds, noise and shuffled.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from eval.errors import RequestError
from eval.inversion.methods import parse_methods
from eval.inversion.questions import Question
from eval.inversion.slices import Slice

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
    _only(data.get("prompts") or {}, set(PROMPTS), f"--suite {path}, prompts")
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
        questions.append(_question(entry | override, where))
    return Suite(questions, PROMPTS | (data.get("prompts") or {}))


def _question(entry: dict[str, Any], where: str) -> Question:
    if not entry.get("methods"):
        raise RequestError(f"{where}: no methods; give some, as in methods: {{sweep: {{}}}}")
    found: dict[str, Any] = {"methods": parse_methods(entry["methods"])}
    if "slices" in entry:
        found["slices"] = tuple(Slice.parse(str(text)) for text in _list(entry, "slices"))
    if "layers" in entry:
        found["layers"] = _layers(entry["layers"], where)
    if "parts" in entry:
        found["parts"] = tuple(_list(entry, "parts"))
    if "without" in entry:
        found["without"] = tuple(
            frozenset([each] if isinstance(each, str) else each) for each in _list(entry, "without")
        )
    for name, kind in (("seeds", int), ("noise", (int, float))):
        if name in entry:
            values = _list(entry, name)
            if not all(isinstance(v, kind) and v >= 0 for v in values):
                raise RequestError(f"{where}, {name}: {values} must be numbers of at least 0")
            found[name] = tuple(values)
    if "shuffled" in entry:
        found["shuffled"] = bool(entry["shuffled"])
    return Question(**found)


def _layers(value: Any, where: str) -> Any:
    if value in ("all", "last"):
        return value
    layers = value if isinstance(value, list) else [value]
    joined = tuple(tuple(layer) if isinstance(layer, list) else layer for layer in layers)
    flat = [one for layer in joined for one in (layer if isinstance(layer, tuple) else (layer,))]
    if not flat or not all(type(one) is int for one in flat):
        raise RequestError(f"{where}, layers: {value!r} must be all, last, or a list of numbers")
    return joined


def _list(entry: dict[str, Any], name: str) -> list[Any]:
    value = entry[name]
    return value if isinstance(value, (list, tuple)) else [value]  # pyright: ignore


def _only(data: dict[str, Any], allowed: set[str], where: str) -> None:
    for key in data:
        if key not in allowed:
            raise RequestError(
                f"{where}: unknown key {key!r}; allowed: {', '.join(sorted(allowed))}"
            )
