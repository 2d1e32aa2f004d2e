"""The registry: every claim by its number, read from `registry/*.yaml` and checked.

A file is a group. `defaults` are fields of every claim in it; a claim's fields replace them, and an
arm's those of its claim. `shapes` are models by name.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from arch import ModelConfig, ModelError
from eval.circuit import ABLATIONS, PARTS
from eval.claims.entries import (
    FAIR,
    KINDS,
    OPERATORS,
    POOLS,
    REPORTED,
    Arm,
    Claim,
    Criterion,
    Models,
    Protocol,
    Source,
    Term,
)
from eval.errors import RequestError
from eval.inversion.slices import Slice
from eval.inversion.solvers import parse_solvers
from eval.lenses.lens import lenses

DIRECTORY = Path(__file__).parent / "registry"
GROUPS = ("mixers", "random-init", "gpt2", "large", "lenses")
OF_CLAIM = {"number", "claim", "expected", "source", "arms", "judge", "note", "changed"}
OF_ARM = {"models", "layer", "part", "without", "slice", "allowed", "lens", "words"}
EVERY = "*"
"""As a criterion's arm: it is asked of every arm."""


@lru_cache(maxsize=1)
def claims() -> dict[int, Claim]:
    """All claims by number, in order.

    Raises:
        RequestError: an entry that is not well formed, named.
    """
    found: dict[int, Claim] = {}
    for group in GROUPS:
        text = (DIRECTORY / f"{group}.yaml").read_text(encoding="utf-8")
        for claim in read_group(group, yaml.safe_load(text)):
            if claim.number in found:
                raise RequestError(f"claim {claim.number} is in the registry twice")
            found[claim.number] = claim
    return dict(sorted(found.items()))


@lru_cache(maxsize=1)
def bibliography() -> dict[str, Source]:
    """The documents that claims are from, by key.

    Raises:
        RequestError: an entry that is not well formed, named.
    """
    text = (DIRECTORY / "bibliography.yaml").read_text(encoding="utf-8")
    return {key: _source(key, entry) for key, entry in yaml.safe_load(text).items()}


def choose(numbers: list[int], group: str | None = None) -> list[Claim]:
    """Claims by number and group; all when nothing is said.

    Raises:
        RequestError: a number that is not there, or not in the group.
    """
    known = {n: claim for n, claim in claims().items() if group in (None, claim.group)}
    for number in numbers:
        if number not in known:
            where = f" in group {group}" if group else ""
            have = list(known)
            raise RequestError(
                f"claim {number}: there is none of that number{where}; they are numbered "
                f"{have[0]} to {have[-1]} (python -m eval claims list)"
            )
    return [known[number] for number in dict.fromkeys(numbers)] or list(known.values())


def read_group(group: str, data: dict[str, Any]) -> list[Claim]:
    """The claims of one file.

    Raises:
        RequestError: a field or a value that is not allowed.
    """
    defaults, shapes = data.get("defaults", {}), data.get("shapes", {})
    return [_claim(group, entry, defaults, shapes) for entry in data["claims"]]


def _source(key: str, entry: dict[str, Any]) -> Source:
    names = {field.name for field in fields(Source)} - {"key"}
    _only(entry, names, f"source {key!r}")
    for name in sorted(names - {"note"}):
        if not entry.get(name):
            raise RequestError(f"source {key!r}: needs author, title, year and url; has no {name}")
    return Source(key, **entry)


def _claim(
    group: str, entry: dict[str, Any], defaults: dict[str, Any], shapes: dict[str, Any]
) -> Claim:
    number = entry.get("number")
    where = f"claim {number}"
    _only(entry, OF_CLAIM | OF_ARM | {REPORTED, FAIR}, where)
    shared, own = (
        {key: value for key, value in part.items() if key not in OF_CLAIM}
        for part in (defaults, entry)
    )
    shared = _merge(shared, own)
    arms = tuple(
        _arm(str(name), _merge(shared, own or {}), shapes, f"{where}, arm {name}")
        for name, own in (entry.get("arms") or defaults.get("arms") or {"": {}}).items()
    )
    judge = tuple(
        _criterion(item | {"arm": arm}, arms, where)
        for item in entry["judge"]
        for arm in ([a.name for a in arms] if item.get("arm") == EVERY else [item.get("arm", "")])
    )
    text = {key: str(entry.get(key, defaults.get(key, ""))) for key in ("claim", "expected")}
    source = entry.get("source", defaults.get("source", ""))
    note = str(entry.get("note", defaults.get("note", "")))
    if type(number) is not int or not text["claim"] or not text["expected"] or not source:
        raise RequestError(f"{where}: needs number, claim, expected and source")
    if source not in bibliography():
        raise RequestError(
            f"{where}: no source {source!r} in bibliography.yaml; it has "
            f"{', '.join(bibliography())}"
        )
    return Claim(
        number,
        text["claim"],
        text["expected"],
        bibliography()[source],
        group,
        arms,
        judge,
        note,
        str(entry.get("changed", "")),
    )


def _arm(name: str, data: dict[str, Any], shapes: dict[str, Any], where: str) -> Arm:
    _only(data, OF_ARM | {REPORTED, FAIR}, where)
    shown = data.get("slice", "[:, :, :]")
    Slice.parse(shown)
    part, without = data.get("part", "block"), tuple(_list(data.get("without", [])))
    lens = data.get("lens", "")
    if part not in PARTS or not set(without) <= set(ABLATIONS) or (lens and lens not in lenses()):
        raise RequestError(f"{where}: part {part!r}, without {without}, lens {lens!r}: not known")
    return Arm(
        name,
        _models(data["models"], shapes, where),
        data.get("layer", 1),
        part,
        without,
        shown,
        data.get("allowed", ""),
        lens,
        tuple(data.get("words", ())),
        _protocol(data.get(REPORTED), where),
        _protocol(data.get(FAIR), where),
    )


def _models(data: Any, shapes: dict[str, Any], where: str) -> Models:
    data = {"shape": data} if isinstance(data, str) else dict(data)
    while "shape" in data:
        name = data.pop("shape")
        if name not in shapes:
            raise RequestError(f"{where}: no shape {name!r}; the file has {', '.join(shapes)}")
        data = _merge(shapes[name], data)
    own = {field.name for field in fields(ModelConfig)}
    known = {field.name for field in fields(Models)} - {"config"}
    _only(data, own | known, where)
    config = {key: value for key, value in data.items() if key in own}
    rest = {key: value for key, value in data.items() if key in known}
    if "size" in rest:
        rest["size"] = tuple(rest["size"])
    try:
        if config:
            for cpu in ({}, rest.get("cpu", {})):
                ModelConfig(**(config | cpu))
    except ModelError as error:
        raise RequestError(f"{where}: {error}") from None
    if bool(config) == bool(rest.get("hub")):
        raise RequestError(f"{where}: models need fields of a configuration, or hub")
    return Models(config, **rest)


def _protocol(data: dict[str, Any] | None, where: str) -> Protocol | None:
    if data is None:
        return None
    _only(data, {field.name for field in fields(Protocol)}, where)
    methods = data.get("methods") or {}
    if methods:
        parse_solvers(methods)
    rest = {key: value for key, value in data.items() if key != "methods"}
    if (kind := rest.get("kind", Protocol.kind)) not in KINDS:
        raise RequestError(f"{where}: kind {kind!r}; there are {', '.join(KINDS)}")
    for key in ("text", "controls"):
        rest[key] = tuple(_list(rest.get(key, [])))
    return Protocol(methods, **rest)


def _criterion(item: dict[str, Any], arms: tuple[Arm, ...], where: str) -> Criterion:
    words = [word for word in OPERATORS if word in item]
    if len(words) != 1:
        raise RequestError(f"{where}: a criterion needs one of {', '.join(OPERATORS)}")
    (word,) = words
    own = {key: value for key, value in item.items() if key != word}
    left, right = _term(own, arms, where), item[word]
    if word in ("more", "less"):
        return Criterion(left, word, _term(_merge(own, right), arms, where))
    return Criterion(left, word, float(right))


def _term(data: dict[str, Any], arms: tuple[Arm, ...], where: str) -> Term:
    _only(data, {field.name for field in fields(Term)}, where)
    term = Term(**data)
    if term.arm not in [arm.name for arm in arms] or term.pool not in POOLS:
        raise RequestError(f"{where}: no arm {term.arm!r}, or no pool {term.pool!r}")
    return term


def _merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The second's fields over the first's, mappings within mappings too; None takes one out.

    A mapping of methods is taken whole.
    """
    found = dict(first)
    for key, value in second.items():
        old = found.get(key)
        if key == "models":  # a shape's name alone
            old, value = (
                {"shape": each} if isinstance(each, str) else each for each in (old, value)
            )
        if isinstance(old, dict) and isinstance(value, dict) and key != "methods":
            value = _merge(old, value)
        found[key] = value
    return {key: value for key, value in found.items() if value is not None}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]  # pyright: ignore


def _only(data: dict[str, Any], allowed: set[str], where: str) -> None:
    for key in data:
        if key not in allowed:
            raise RequestError(
                f"{where}: unknown field {key!r}; allowed: {', '.join(sorted(allowed))}"
            )
