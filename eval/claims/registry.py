"""The registry: every claim by its number, read from `registry/*.yaml` and checked.

A file is a group. `defaults` are fields of every claim in it; a claim's fields replace them, and an
arm's those of its claim. `shapes` are models by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from arch import ModelConfig, ModelError
from eval import RequestError
from eval.circuit import ABLATIONS, PARTS
from eval.claims.entries import (
    KINDS,
    OPERATIONS,
    POOLS,
    PROTOCOLS,
    Arm,
    Claim,
    Criterion,
    Models,
    Protocol,
    Source,
    StandIn,
    Term,
)  # fmt: skip
from eval.inversion.solvers import parse_solvers
from eval.lenses.lens import lenses
from eval.recovery import Slice

Built = TypeVar("Built")

DIRECTORY = Path(__file__).parent / "registry"
GROUPS = ("mixers", "random-init", "gpt2", "large", "lenses")
EVERY = "*"
"""As a criterion's arm: it is asked of every arm."""


@lru_cache(maxsize=1)
def claims() -> dict[int, Claim]:
    """All claims by number, in order; a `RequestError` names an entry that is not well formed."""
    known: dict[int, Claim] = {}
    for group in GROUPS:
        for claim in read_group(group, _file(group)):
            if claim.number in known:
                raise RequestError(f"claim {claim.number} is in the registry twice")
            known[claim.number] = claim
    return dict(sorted(known.items()))


@lru_cache(maxsize=1)
def bibliography() -> dict[str, Source]:
    """The documents that claims are from, by key."""
    return {key: from_plain(Source, entry, f"source {key!r}", key=key)
            for key, entry in _file("bibliography").items()}  # fmt: skip


@lru_cache(maxsize=1)
def stand_ins() -> dict[str, StandIn]:
    """The models that are asked in place of those of claims, by name."""
    return {key: from_plain(StandIn, entry, f"stand-in {key!r}", key=key)
            for key, entry in _file("stand-ins").items()}  # fmt: skip


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


def from_plain(kind: type[Built], data: dict[str, Any], where: str, **given: Any) -> Built:
    """A dataclass of plain data, whose lists become tuples, and of fields that are given as such.

    Raises:
        RequestError: a field that it has not, or one that it needs and is not there.
    """
    known = {each.name: each for each in fields(kind) if each.name not in given}  # pyright: ignore
    for name in data:
        if name not in known:
            allowed = ", ".join(sorted(known))
            raise RequestError(f"{where}: unknown field {name!r}; allowed: {allowed}")
    for name, each in known.items():
        if each.default is each.default_factory is MISSING and data.get(name) in (None, ""):
            raise RequestError(f"{where}: has no {name}; give it")
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return kind(**plain, **given)


def _file(name: str) -> dict[str, Any]:
    return yaml.safe_load((DIRECTORY / f"{name}.yaml").read_text(encoding="utf-8"))


def _claim(
    group: str, entry: dict[str, Any], defaults: dict[str, Any], shapes: dict[str, Any]
) -> Claim:
    where = f"claim {entry.get('number')}"
    names = {each.name for each in fields(Claim)} - {"group", "stand_ins"}
    about = {key: value for key, value in (defaults | entry).items() if key in names}
    shared = _merge(*({k: v for k, v in part.items() if k not in names}
                      for part in (defaults, entry)))  # fmt: skip
    changes = about.pop("arms", None) or {"": {}}
    asked = {str(name): _merge(shared, change or {}) for name, change in changes.items()}
    arms = tuple(_arm(name, data, shapes, f"{where}, arm {name}") for name, data in asked.items())
    reported = [arm.name for arm in arms if arm.reported and not arm.lens]
    for name in about.keys() & {"judge", "control"}:
        every = asked if name == "judge" else reported
        about[name] = tuple(
            _criterion(item | {"arm": arm}, asked, where)
            for item in about[name]
            for arm in (every if item.get("arm") == EVERY else [item.get("arm", "")])
        )
    _among("source", [about["source"]], bibliography(), where)
    about["source"] = bibliography()[about["source"]]
    about["stand_ins"] = {
        key: _stood_in(one, one.claims[entry["number"]], asked, shapes, f"{where}, stand-in {key}")
        for key, one in stand_ins().items()
        if entry["number"] in one.claims
    }
    return from_plain(Claim, about, where, arms=arms, group=group)


def _criterion(item: dict[str, Any], arms: Iterable[str], where: str) -> Criterion:
    words = [word for word in OPERATIONS if word in item]
    if len(words) != 1:
        raise RequestError(f"{where}: a criterion needs one of {', '.join(OPERATIONS)}")
    (word,) = words
    left = {key: value for key, value in item.items() if key != word}
    several = [left, _merge(left, item[word])] if word in ("more", "less") else [left]
    terms = [from_plain(Term, data, where) for data in several]
    for term in terms:
        _among("arm", [term.arm], arms, where)
        _among("pool", [term.pool], POOLS, where)
    return Criterion(terms[0], word, terms[1] if terms[1:] else float(item[word]))


def _stood_in(
    stand_in: StandIn,
    changes: dict[str, Any],
    asked: dict[str, dict[str, Any]],
    shapes: dict[str, Any],
    where: str,
) -> tuple[Arm, ...]:
    """The arms about a trained pretrained model, as its stand-in is asked them."""
    by_arm = {str(name): change for name, change in changes.get("arms", {}).items()}
    everywhere = _merge(stand_in.every, {k: v for k, v in changes.items() if k != "arms"})
    _among("arm", by_arm, asked, where)
    arms = []
    for name, data in asked.items():
        change = _merge(everywhere, by_arm.get(name, {}))
        kept = {k: v for k, v in change.items() if k not in PROTOCOLS or data.get(k)}
        arm = _arm(name, _merge(data, kept), shapes, f"{where}, arm {name}")
        if arm.models.hub and arm.models.weights == "pretrained":
            arms.append(replace(arm, models=replace(arm.models, stand_in=stand_in.key)))
    return tuple(arms)


def _arm(name: str, data: dict[str, Any], shapes: dict[str, Any], where: str) -> Arm:
    built: dict[str, Any] = {
        key: _protocol(data[key], where) if key in data else None for key in PROTOCOLS
    }
    built["models"] = _models(data["models"], shapes, where)
    plain = {key: value for key, value in data.items() if key not in built}
    arm = from_plain(Arm, plain, where, name=name, **built)
    Slice.parse(arm.slice)
    _among("part", [arm.part], PARTS, where)
    _among("without", arm.without, ABLATIONS, where)
    _among("lens", filter(None, [arm.lens]), lenses(), where)
    return arm


def _models(data: Any, shapes: dict[str, Any], where: str) -> Models:
    data = {"shape": data} if isinstance(data, str) else dict(data)
    while "shape" in data:
        name = data.pop("shape")
        _among("shape", [name], shapes, where)
        data = _merge(shapes[name], data)
    names = {each.name for each in fields(ModelConfig)}
    config = {key: data.pop(key) for key in [*data] if key in names}
    try:
        for cpu in ({}, data.get("cpu", {})) if config else ():
            ModelConfig(**(config | cpu))
    except ModelError as error:
        raise RequestError(f"{where}: {error}") from None
    if bool(config) == bool(data.get("hub")):
        raise RequestError(f"{where}: models need fields of a configuration, or hub")
    return from_plain(Models, data, where, config=config)


def _protocol(data: dict[str, Any], where: str) -> Protocol:
    several = {key: [data[key]] for key in ("text", "controls")
               if isinstance(data.get(key), str)}  # fmt: skip
    protocol = from_plain(Protocol, data | several, where)
    parse_solvers(protocol.methods)
    _among("kind", [protocol.kind], KINDS, where)
    return protocol


def _merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The second's fields over the first's, mappings within mappings too; None takes one out.

    A mapping of methods is taken whole.
    """
    merged = dict(first)
    for key, value in second.items():
        old = merged.get(key)
        if key == "models":  # a shape's name alone
            old, value = (
                {"shape": each} if isinstance(each, str) else each for each in (old, value)
            )
        if isinstance(old, dict) and isinstance(value, dict) and key != "methods":
            value = _merge(old, value)
        merged[key] = value
    return {key: value for key, value in merged.items() if value is not None}


def _among(name: str, values: Iterable[str], allowed: Iterable[str], where: str) -> None:
    for value in values:
        if value not in allowed:
            raise RequestError(f"{where}: {name} {value!r}; there are {', '.join(allowed)}")
