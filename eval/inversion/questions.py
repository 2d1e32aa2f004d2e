"""Questions: each is a grid of cells, and each cell one row to be. Suites are files of questions.

Beside models stand their controls, which `derive` makes: models of a name of their own.

Suites are `quick`, `standard`, `full`, or a YAML file of one's own:

    prompts: {set: [story], count: 100, length: 24}
    questions:
      - layers: all                        # or last, or a list such as [1, 4, [1, 4]]
        slices: ["[:, 0:, :]"]
        methods: {sweep: {}, adam-l1: {method: adam, objective: l1}}

A question may also have parts, without, seeds, noise and shuffled.
"""

import copy
import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from arch import LanguageModel
from eval import RequestError
from eval.circuit import Circuit
from eval.inversion.solvers import Solver, parse_solvers
from eval.models import Checkpoint, draw, open_checkpoint
from eval.recovery import Slice
from eval.text import SETS, Prompt

ALL, LAST = "all", "last"
SUITES = Path(__file__).parent.parent / "suites"
_SCALE = re.compile(r"scale=(\d*\.?\d+(?:e-?\d+)?)")
PROMPTS = {"set": ["story"], "count": 8, "length": 16}


@dataclass(frozen=True)
class Site:
    """Where evidence is taken: layers (several are joined), a part of the block, ablations."""

    layers: tuple[int, ...]
    part: str = "block"
    without: frozenset[str] = frozenset()

    def circuit(self, checkpoint: Checkpoint) -> Circuit:
        """The site of a checkpoint.

        Raises:
            RequestError: the model has no such site.
        """
        try:
            return Circuit(checkpoint.model, self.layers, self.part, self.without)
        except RequestError as error:
            raise RequestError(f"{checkpoint.path}: {error}") from None

    @property
    def record(self) -> dict[str, Any]:
        """The `site` field of a row."""
        layer = self.layers[0] if len(self.layers) == 1 else list(self.layers)
        return {"layer": layer, "part": self.part, "without": sorted(self.without)}


@dataclass(frozen=True)
class Question:
    """A grid that is asked of every checkpoint: the product of all fields.

    Attributes:
        methods: solvers by label.
        slices: the positions and channels shown.
        layers: numbers from 0 (the embedding), tuples of layers to be joined, `all` (every block's)
            or `last`.
        parts: of `eval.circuit.PARTS`.
        without: sets of ablations.
        seeds: one answer per seed for solvers that draw at random.
        noise: of the target, in units of its root mean square.
        shuffled: whether to ask, beside, with every target belonging to another prompt.
    """

    methods: dict[str, Solver]
    slices: tuple[Slice, ...] = (Slice(),)
    layers: tuple[int | tuple[int, ...], ...] | str = ALL
    parts: tuple[str, ...] = ("block",)
    without: tuple[frozenset[str], ...] = (frozenset(),)
    seeds: tuple[int, ...] = (0,)
    noise: tuple[float, ...] = (0.0,)
    shuffled: bool = False

    def sites(self, checkpoint: Checkpoint) -> list[Site]:
        """The sites of one checkpoint.

        Raises:
            RequestError: a layer out of range.
        """
        depth = checkpoint.config.n_layers
        named = {ALL: tuple(range(1, depth + 1)), LAST: (depth,)}
        layers = named[self.layers] if isinstance(self.layers, str) else self.layers
        sites = []
        for layer, part, without in product(layers, self.parts, self.without):
            several = tuple(sorted(layer)) if isinstance(layer, tuple) else (layer,)
            for one in several:
                checkpoint.check_layer(one)
            sites.append(Site(several, part, without))
        return sites


@dataclass(frozen=True)
class GridCell:
    """One row to be."""

    site: Site
    slice: Slice
    prompt: Prompt
    seed: int
    noise: float
    control: str | None

    @property
    def target(self) -> tuple[Site, Slice, float, str | None, int]:
        """Cells of equal targets are prompts of one problem."""
        return (self.site, self.slice, self.noise, self.control, self.seed)

    @property
    def length(self) -> int:
        """Tokens of the prompt up to the last position shown: no output shown tells of later ones.

        All of them without the causal mask.
        """
        length = len(self.prompt.tokens)
        return length if "mask" in self.site.without else self.slice.positions(length)[-1] + 1


@dataclass(frozen=True)
class Suite:
    """Questions, and the prompts that they are asked of: their sets, count and length."""

    questions: list[Question]
    prompts: dict[str, Any]


def read_suite(name: str, override: Mapping[str, Any] | None = None) -> Suite:
    """A suite by its name or file, checked and completed.

    Args:
        name: a file of `eval/suites`, or a path.
        override: fields that replace those of every question.

    Raises:
        RequestError: no such suite or file, not YAML, or a key or value that is not allowed.
    """
    data, flag = _read_yaml(name)
    if not isinstance(data, dict) or not isinstance(data.get("questions"), list):
        raise RequestError(f"{flag}: needs a list under the key questions")
    _only(data, ("prompts", "questions"), flag)
    prompts = data.get("prompts") or {}
    _check_prompts(prompts, f"{flag}, prompts")
    if not data["questions"]:
        raise RequestError(f"{flag}: no questions; give at least one")
    questions = []
    for number, entry in enumerate(data["questions"], start=1):
        where = f"question {number}"
        if not isinstance(entry, dict):
            raise RequestError(f"{where}: {entry!r} is not a mapping of fields to values")
        _only(entry, [field.name for field in fields(Question)], where)
        questions.append(build_question({**entry, **(override or {})}, where))
    return Suite(questions, PROMPTS | prompts)


def read_calls(name: str) -> dict[str, dict[str, Any]] | None:
    """The entries of a suite of calls, arguments of `eval.invert` each by its name.

    Args:
        name: as for `read_suite`. None is returned where it is a suite of questions.

    Raises:
        RequestError: no such suite or file, or not YAML.
    """
    data, _ = _read_yaml(name)
    if not isinstance(data, dict) or "questions" in data or not data:
        return None
    calls = all(isinstance(entry, dict) and "set" not in entry for entry in data.values())
    return data if calls else None


def _read_yaml(name: str) -> tuple[Any, str]:
    """What a suite's file holds, and the flag that named it."""
    known = sorted(path.stem for path in SUITES.glob("*.yaml"))
    path = SUITES / f"{name}.yaml" if name in known else Path(name)
    flag = f"--suite {path}"
    if not path.is_file():
        raise RequestError(
            f"--suite {name}: no such suite or file; use {', '.join(known)} or a YAML file"
        )
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")), flag
    except yaml.YAMLError as error:
        raise RequestError(f"{flag}: not YAML ({str(error).splitlines()[0]})") from None


def build_question(entry: Mapping[str, Any], where: str) -> Question:
    """Checks and completes a question that a suite has written down.

    Args:
        entry: fields of `Question`, as YAML has them.
        where: it stands, for errors.

    Raises:
        RequestError: a value that is not allowed, named.
    """
    if not entry.get("methods"):
        raise RequestError(f"{where}: no methods; give some, as in methods: {{sweep: {{}}}}")
    built: dict[str, Any] = {"methods": parse_solvers(entry["methods"])}
    if "layers" in entry:
        built["layers"] = _layers(entry["layers"], where)
    if "shuffled" in entry:
        if not isinstance(entry["shuffled"], bool):
            raise RequestError(f"{where}, shuffled: {entry['shuffled']!r} must be true or false")
        built["shuffled"] = entry["shuffled"]
    for name in ("slices", "parts", "without", "seeds", "noise"):
        if name in entry:
            value = entry[name]
            values = value if isinstance(value, list | tuple) else [value]
            if not values:
                raise RequestError(f"{where}, {name}: empty; give some, or leave it out")
            if name in ("seeds", "noise"):
                _check_numbers(values, name, where)
            built[name] = tuple(map(READ[name], values))
    return Question(**built)


READ: dict[str, Callable[[Any], Any]] = {
    "slices": lambda text: Slice.parse(str(text)),
    "parts": str,
    "without": lambda each: frozenset(map(str, each if isinstance(each, list) else [each])),
    "seeds": int,
    "noise": lambda number: number,
}
"""A value of each field that is a list."""


def _check_numbers(values: Collection[Any], name: str, where: str) -> None:
    kinds, words = ((int,), "whole numbers") if name == "seeds" else ((int, float), "numbers")
    if not all(type(v) in kinds and 0 <= v < float("inf") for v in values):
        raise RequestError(f"{where}, {name}: {values} must be {words} of at least 0")


def _layers(value: Any, where: str) -> Any:
    if value in (ALL, LAST):
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
    _only(data, PROMPTS, where)
    wanted = data.get("set", PROMPTS["set"])
    if not isinstance(wanted, list) or not wanted or not all(name in SETS for name in wanted):
        raise RequestError(f"{where}, set: {wanted!r} must be a list of {', '.join(SETS)}")
    for name in ("count", "length"):
        value = data.get(name, 1)
        if type(value) is not int or value < 1:
            raise RequestError(f"{where}, {name}: {value!r} must be a whole number of at least 1")


def _only(data: dict[str, Any], allowed: Collection[str], where: str) -> None:
    for key in data:
        if key not in allowed:
            raise RequestError(
                f"{where}: unknown key {key!r}; allowed: {', '.join(sorted(allowed))}"
            )


def derive(checkpoint: Checkpoint, control: str) -> Checkpoint:
    """A checkpoint's control.

    Args:
        checkpoint: of a model of our own.
        control: `identity` (token mixers that pass their input on, freshly initialised),
            `scale=S` (the model freshly initialised, its embedding with standard deviation S),
            `embedding=DIR` (the model with the embedding of another model directory) or
            `embedding=untrained` (with a freshly drawn one).

    Raises:
        RequestError: another word, or a model that cannot be built anew.
    """
    scale, step, source = _SCALE.fullmatch(control), 0, ""
    if control.startswith("embedding="):
        model, source = _with_embedding(checkpoint, control)
        step = int(checkpoint.meta.get("step", 0))
    elif control != "identity" and not scale:
        raise RequestError(
            f"--controls {control}: allowed are shuffled, identity, scale=NUMBER, embedding=DIR"
        )
    elif type(checkpoint.model) is not LanguageModel:
        raise RequestError(
            f"--controls {control}: {checkpoint.path} was not built here and cannot be built anew; "
            "leave it out"
        )
    else:
        changed = {"embedding_std": float(scale[1])} if scale else {"mixers": ("identity",)}
        model = draw(lambda: LanguageModel(replace(checkpoint.config, **changed)), seed=0)
        model = model.to(checkpoint.model.embedding.weight.device)
    name = f"{checkpoint.meta['name']} [{control}]"
    meta = checkpoint.meta | {"step": step, "val_loss": None, "name": name}
    digest = hashlib.sha256(f"{checkpoint.weights_sha256} {control}{source}".encode()).hexdigest()
    return replace(
        checkpoint, model=model, config=model.config, meta=meta, control=control, weights=digest
    )


def _with_embedding(checkpoint: Checkpoint, control: str) -> tuple[LanguageModel, str]:
    """The model with another one's embedding, and the hash of that one's weights."""
    weight, source = checkpoint.model.embedding.weight, control.removeprefix("embedding=")
    if source == "untrained" and type(checkpoint.model) is LanguageModel:
        drawn = draw(lambda: LanguageModel(checkpoint.config), seed=0)
        other, digest = drawn.embedding.weight.to(weight.device), ""
    else:
        opened = open_checkpoint(source, weight.device)
        other, digest = opened.model.embedding.weight, opened.weights_sha256
    if weight.shape != other.shape:
        raise RequestError(
            f"--controls {control}: its embedding is {tuple(other.shape)}, that of "
            f"{checkpoint.path} is {tuple(weight.shape)}; give a model of the same sizes"
        )
    model = copy.deepcopy(checkpoint.model)
    model.embedding.weight = nn.Parameter(other.clone(), requires_grad=False)
    return model, digest
