"""An entry of the registry: a claim, its arms, the two protocols, and the criteria that judge."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from eval.rows import row_key

REPORTED = "reported"
FAIR = "fair"
PROTOCOLS = (REPORTED, FAIR)

LATER = ("skip", "first", "stand_in")
"""Fields added after rows were stored: fingerprints leave them out where they are unset."""
KINDS = {"story": "stories", "inside": "places inside stories", "random": "random prompts"}
OPERATORS = {"above": operator.ge, "below": operator.lt, "more": operator.gt, "less": operator.lt}
"""`above` and `below` compare with a number, `more` and `less` with another term."""
WORDS = {
    "above": "is at least",
    "below": "is below",
    "more": "is more than",
    "less": "is less than",
}

POOLS: dict[str, Callable[[list[float]], float]] = {
    "mean": fmean,
    "least": min,
    "most": max,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}
"""Of a lens's figures, in the order of their layers."""


@dataclass(frozen=True)
class Models:
    """Which models are asked.

    Attributes:
        config: fields of a `ModelConfig`, for a model of our own.
        cpu: fields that replace those of `config` on a CPU.
        trained: whether it must have been trained; else it is built from its seed.
        hub: name of a pretrained model, in place of a model of our own.
        size: its width and depth, which weights given by hand must have.
        family: its transformers `model_type`.
        parameters: their number.
        precision: in which it is loaded: float32, bfloat16 or 8 bit.
        stored: bytes of a parameter in its published files.
        files: the pattern of those files.
        weights: `pretrained`, `random` (built anew from its configuration) or `random embedding`.
        stand_in: name of another pretrained model, which is asked instead.
    """

    config: dict[str, Any] = field(default_factory=dict)
    cpu: dict[str, Any] = field(default_factory=dict)
    trained: bool = False
    hub: str = ""
    size: tuple[int, int] = (0, 0)
    family: str = ""
    parameters: float = 0
    precision: str = "float32"
    stored: int = 2
    files: str = "*.safetensors"
    weights: str = "pretrained"
    stand_in: str = ""

    @property
    def own(self) -> bool:
        """Whether it is one of this project's."""
        return not self.hub

    @property
    def gigabytes(self) -> float:
        """Memory for its weights."""
        each = {"float32": 4, "bfloat16": 2, "8 bit": 1}[self.precision]
        return self.parameters * each / 1e9

    @property
    def download(self) -> float:
        """Gigabytes of its published files."""
        return self.parameters * self.stored / 1e9


@dataclass(frozen=True)
class Protocol:
    """How an arm is asked.

    Attributes:
        methods: of the inversion bench, as a suite writes them; none of a lens.
        seeds: models of our own.
        first: seed of those that are built here.
        text: the prompts; others when empty.
        kind: of the others: story (beginnings), inside (of stories) or random (tokens).
        count: of those, over all models together: each is asked others.
        length: tokens of each.
        skip: so many of those are left out before the first.
        pad_to: length to which pads fill each prompt; a fair protocol asks prompts without pads
            too, and those with pads of the first model alone.
        controls: identity, shuffled: asked of the first model alone.
    """

    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: int = 1
    first: int = 0
    text: tuple[str, ...] = ()
    kind: str = "story"
    count: int = 0
    length: int = 0
    skip: int = 0
    pad_to: int = 0
    controls: tuple[str, ...] = ()

    def __str__(self) -> str:
        models = f"{self.seeds} model{'s' if self.seeds > 1 else ''}"
        kind = KINDS[self.kind]
        parts = [" ".join(f"“{text}”" for text in self.text)] if self.text else []
        tokens = "a token" if self.length == 1 else f"{self.length} tokens"
        after = f" after the first {self.skip}" if self.skip else ""
        parts += [f"{self.count} {kind} of {tokens}{after}"] if not self.text else []
        models += f" from seed {self.first} on" if self.first else ""
        parts += [models, f"padded to {self.pad_to}" if self.pad_to else ""]
        parts += [", ".join(_method(*each) for each in self.methods.items())]
        parts += [f"controls {' '.join(self.controls)}" if self.controls else ""]
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True)
class Arm:
    """One thing that is asked: models, a site and slice or a lens, both protocols."""

    name: str
    models: Models
    layer: Any = 1
    part: str = "block"
    without: tuple[str, ...] = ()
    slice: str = "[:, :, :]"
    allowed: str = ""
    lens: str = ""
    words: tuple[str, ...] = ()
    reported: Protocol | None = None
    fair: Protocol | None = None

    def protocol(self, name: str) -> Protocol | None:
        """`reported` or `fair`; None where this arm is not asked so."""
        return self.reported if name == REPORTED else self.fair

    @property
    def fingerprint(self) -> str:
        """A hash of the question, by which rows that answer another one are left out."""
        return row_key(asdict(self, dict_factory=_set))


@dataclass(frozen=True)
class Term:
    """A figure of an arm.

    Attributes:
        figure: of `eval.summary.measure`, or of the arm's lens.
        arm: its name; "" where there is one only.
        by: a method's label or family, or `best` of all that is asked; of lenses nothing.
        where: fields that a lens's figure must have.
        pool: over a lens's figures that are left: mean, least, most, first or last (by layer).
    """

    figure: str
    arm: str = ""
    by: str = "best"
    where: dict[str, Any] = field(default_factory=dict)
    pool: str = "mean"

    def __str__(self) -> str:
        parts = [self.figure, *(f"{name} {value}" for name, value in self.where.items())]
        parts += [self.pool] if self.pool != "mean" else []
        parts += [f"by {self.by}"] if self.by != "best" else []
        return (f"{self.arm}: " if self.arm else "") + ", ".join(parts)


@dataclass(frozen=True)
class Criterion:
    """That a figure is above or below a number, or more or less than another figure."""

    left: Term
    operation: str
    right: float | Term

    def __str__(self) -> str:
        return f"{self.left} {WORDS[self.operation]} {self.right}"

    @property
    def terms(self) -> list[Term]:
        """Its figures: one or two."""
        return [self.left, self.right] if isinstance(self.right, Term) else [self.left]

    @property
    def upward(self) -> bool:
        """Whether it holds for large figures, and not for small ones."""
        return self.operation in ("above", "more")

    def holds(self, left: float, right: float) -> bool:
        """Whether it holds for these values."""
        return OPERATORS[self.operation](left, right)


@dataclass(frozen=True)
class Source:
    """A document that claims are from.

    Attributes:
        key: its name in the registry.
        author: as the document names them.
        title: of the document.
        year: of publication.
        url: where it was read.
        note: its kind, and its date where that is in doubt.
    """

    key: str
    author: str
    title: str
    year: int
    url: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.author}, “{self.title}”, {self.year}, {self.url}"


@dataclass(frozen=True)
class StandIn:
    """A pretrained model that is asked in place of those of claims.

    Attributes:
        key: its name, as its meta.json or its directory has it.
        title: on pages.
        about: what it is: its size, its data, the origin of its weights.
        every: fields that change in all arms it is asked.
        claims: those that it can speak to, each with the fields that change; `arms`, by name.
        left: which others it was not asked, why, and what they would cost.
    """

    key: str
    title: str
    about: str
    claims: dict[int, dict[str, Any]]
    left: str
    every: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A claim.

    Attributes:
        number: 1 to 101.
        claim: in a line.
        expected: what its source reports.
        source: the document it is from.
        group: mixers, random-init, gpt2, large or lenses.
        arms: what is asked, by name.
        judge: all of these must hold for the claim to.
        control: what the source's protocol must do for its answer to count.
        note: where what is asked departs from the source.
        changed: how a criterion was changed after the data were seen; empty where none was.
        again: how it was asked since, by criteria and of text and seeds that no row had seen.
        stand_ins: arms that are asked of another pretrained model than the claim's, by its name.
    """

    number: int
    claim: str
    expected: str
    source: Source
    group: str
    arms: tuple[Arm, ...]
    judge: tuple[Criterion, ...]
    control: tuple[Criterion, ...] = ()
    note: str = ""
    changed: str = ""
    again: str = ""
    stand_ins: dict[str, tuple[Arm, ...]] = field(default_factory=dict)

    def asked_of(self, stand_in: str) -> Claim:
        """The claim with the arms that a stand-in is asked; its answers are not the claim's."""
        return replace(self, arms=self.stand_ins[stand_in])

    @property
    def frozen(self) -> str:
        """The criteria, as a hash; rows hold the one by which they are to be judged."""
        return row_key([str(c) for c in self.judge], [str(c) for c in self.control])

    @property
    def command(self) -> str:
        """What runs it."""
        return f"python -m eval claims run {self.number}"


def _set(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in items if value or name not in LATER}


def _method(label: str, settings: dict[str, Any]) -> str:
    return " ".join([label, *(f"{name}={value}" for name, value in settings.items())])
