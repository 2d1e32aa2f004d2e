"""What is asked: a question is a grid of cells, which are the rows to be."""

from dataclasses import dataclass
from itertools import product
from typing import Any

from eval.circuit import Circuit
from eval.errors import RequestError
from eval.inversion.solvers import Solver
from eval.models import Checkpoint
from eval.slices import Slice
from eval.text import Prompt

ALL = "all"
LAST = "last"


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
    """What is asked of every checkpoint: the product of all fields.

    Attributes:
        layers: numbers from 0 (the embedding), tuples of layers to be joined, `all` (every block's)
            or `last`.
        parts: of `eval.circuit.PARTS`.
        without: sets of ablations.
        slices: what is shown.
        methods: solvers by label.
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
class Cell:
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
