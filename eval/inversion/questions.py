"""What is asked: a question is a grid, its cells are the rows to be, its jobs what runs at once."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from eval.checkpoints import Checkpoint
from eval.circuit import Circuit, uncertified
from eval.errors import RequestError
from eval.inversion.slices import Slice
from eval.inversion.solvers import Solver
from eval.results import row_key
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
                if not 0 <= one <= depth:
                    raise RequestError(
                        f"--layers {one}: {checkpoint.path} has layers 0 (the embedding) to {depth}"
                    )
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


@dataclass(frozen=True)
class Job:
    """Cells that one call of a solver answers: one checkpoint, method and prompt length."""

    checkpoint: Checkpoint
    label: str
    solver: Solver
    cells: list[Cell] = field(default_factory=list)
    allowed: tuple[int, ...] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The `settings` field of its rows."""
        return self.solver.record | ({"allowed": list(self.allowed)} if self.allowed else {})

    def key(self, cell: Cell) -> str:
        """The row's key: what is asked, of which model, by which method, from which chance.

        Not what else a run was given: floors are measured, and shuffled targets taken, among its
        prompts of one length, and lexicons read its corpus. Rows that are there stay as they are
        where these change; another directory asks anew.
        """
        about = self.checkpoint.provenance
        return row_key(
            *(about[name] for name in ("name", "step", "weights_sha256")),
            cell.site.record,
            str(cell.slice),
            self.label,
            self.solver.name,
            self.settings,
            cell.prompt.tokens,
            cell.prompt.pads,
            cell.seed,
            cell.noise,
            cell.control,
        )

    @property
    def cost(self) -> float:
        """How long it is likely to take, in no unit."""
        config, total = self.checkpoint.config, 0.0
        for cell in self.cells:
            length = len(cell.prompt.tokens)
            hidden = cell.slice.positions(length)[0]
            tokens = self.solver.cost(config.vocab_size, length, hidden)
            total += tokens * (1 + max(cell.site.layers))
        return total


def plan(
    checkpoint: Checkpoint,
    question: Question,
    prompts: list[Prompt],
    done: set[str],
    batch: int = 64,
    allowed: tuple[int, ...] | None = None,
) -> list[Job]:
    """The work that a question makes, less the rows that are there already.

    Args:
        checkpoint: one of those asked.
        question: the grid.
        prompts: what is to be recovered.
        done: keys of rows that are there.
        batch: rows that are answered at once. A sweep takes all layers of a prompt in one pass, so
            that its batch is of whole prompts, one at least.
        allowed: the tokens that gradient solvers may answer with; None for all.

    Raises:
        RequestError: a site that does not exist, a slice that shows nothing, a prompt that stands
            alone and cannot be shuffled, or nothing left to do because no method can answer any
            slice.
    """
    jobs, refusals, asked = [], [], 0
    if question.shuffled:
        for length, count in Counter(len(prompt.tokens) for prompt in prompts).items():
            if count < 2:
                raise RequestError(
                    f"--controls shuffled: only one prompt of {length} tokens; ask for two or more"
                )
    sites = question.sites(checkpoint)
    # a model to compare with is compared as it is
    controls = (None, "shuffled") if question.shuffled and not checkpoint.control else (None,)
    for label, method in question.methods.items():
        if method.proves and (reason := uncertified(checkpoint.model)):
            raise RequestError(
                f"method {label}: it proves answers, and {checkpoint.path} has {reason}; open the "
                "model in float32, or ask alternating"
            )
        groups: dict[Any, list[Cell]] = {}
        gradient = method.family == "gradient"
        for site, shown, noise, prompt in product(sites, question.slices, question.noise, prompts):
            shown.channels(site.circuit(checkpoint).width)
            shown.positions(len(prompt.tokens))
            causal = "mask" not in site.without
            refusal = method.refusal(shown, len(prompt.tokens), causal)
            if refusal:
                refusals.append(f"{label} {refusal}")
                continue
            for seed in question.seeds if method.random or noise else question.seeds[:1]:
                for control in controls:
                    cell = Cell(site, shown, prompt, seed, noise, control or checkpoint.control)
                    alike = {
                        "batch": (control,),
                        "layers": (site.part, site.without, *cell.target[1:]),
                        "problem": cell.target,
                    }
                    key = len(prompt.tokens), alike[method.together]
                    groups.setdefault(key, []).append(cell)
        for cells in groups.values():
            job = Job(checkpoint, label, method, allowed=allowed if gradient else None)
            left = [cell for cell in cells if job.key(cell) not in done]
            asked += len(cells)
            shared = method.together == "layers"
            jobs += [replace(job, cells=some) for some in _batches(left, batch, shared)]
    if not asked:
        raise RequestError(
            f"--slices {' '.join(map(str, question.slices))}: no method asked for fits "
            f"({'; '.join(dict.fromkeys(refusals))})"
        )
    return jobs


def _batches(cells: list[Cell], batch: int, shared: bool) -> Iterator[list[Cell]]:
    """Cells in batches; where sites share a pass, each batch has the same sites of its prompts."""
    if not shared:
        yield from (cells[i : i + batch] for i in range(0, len(cells), batch))
        return
    by_prompt: dict[Prompt, list[Cell]] = {}
    for cell in cells:
        by_prompt.setdefault(cell.prompt, []).append(cell)
    by_sites: dict[tuple[Site, ...], list[list[Cell]]] = {}
    for group in by_prompt.values():
        by_sites.setdefault(tuple(cell.site for cell in group), []).append(group)
    for sites, groups in by_sites.items():
        step = max(1, batch // len(sites))
        for i in range(0, len(groups), step):
            yield [cell for group in groups[i : i + step] for cell in group]
