"""Questions: each is a grid of cells, and each cell one row to be. Suites are files of questions.

Beside models stand their controls, which `derive` makes: models of a name of their own.

A suite names calls of `eval.invert`, each by its arguments:

    shown: {layers: all, slices: "[:, 0:, :]", methods: [sweep, adam], count: 100}
    hidden: {layers: last, slices: ["[:, 1:, :]", "[:, 3:, :]"], methods: alternating}
"""

import copy
import hashlib
import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from arch import LanguageModel
from eval import RequestError
from eval.circuit import Circuit
from eval.inversion.solvers import Solver
from eval.models import Checkpoint, draw, open_checkpoint
from eval.recovery import Slice
from eval.text import Prompt

ALL, LAST = "all", "last"
SUITES = Path(__file__).parent.parent / "suites"
_SCALE = re.compile(r"scale=(\d*\.?\d+(?:e-?\d+)?)")


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


def read_suite(name: str) -> dict[str, dict[str, Any]]:
    """The entries of a suite: arguments of `eval.invert`, by the entry's name.

    Args:
        name: of a file in `eval/suites`, or a path.

    Raises:
        RequestError: no such suite or file, or not a YAML mapping of names to mappings.
    """
    known = sorted(path.stem for path in SUITES.glob("*.yaml"))
    path = SUITES / f"{name}.yaml" if name in known else Path(name)
    if not path.is_file():
        raise RequestError(
            f"--suite {name}: no such suite or file; use {', '.join(known)} or a YAML file"
        )
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise RequestError(f"--suite {path}: not YAML ({str(error).splitlines()[0]})") from None
    if (
        not entries
        or not isinstance(entries, dict)
        or not all(isinstance(entry, dict) for entry in entries.values())
    ):
        raise RequestError(
            f"--suite {path}: must name calls of `eval invert`, as in "
            "'shown: {layers: all, methods: [sweep, adam]}'"
        )
    return entries


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
