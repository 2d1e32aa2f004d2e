"""An entry of the registry: a claim, its arms, the two protocols, and the criteria that judge.

An arm is one thing that is asked, of some models, under two protocols: `reported` is its source's,
`fair` is ours. Criteria on the figures of arms judge the claim.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

from eval.rows import row_key

PROTOCOLS = REPORTED, FAIR = "reported", "fair"
KINDS = {"story": "stories", "inside": "places inside stories", "random": "random prompts"}
LATER = ("skip", "first", "stand_in")
"""Fields added after rows were stored: fingerprints leave them out where they are unset."""


class Operation(NamedTuple):
    """How a criterion compares, and what that is called."""

    holds: Callable[[float, Any], bool]
    words: str
    sign: str


OPERATIONS = {
    "above": Operation(operator.ge, "is at least", "≥"),
    "below": Operation(operator.lt, "is below", "<"),
    "more": Operation(operator.gt, "is more than", ">"),
    "less": Operation(operator.lt, "is less than", "<"),
}
"""`above` and `below` compare with a number, `more` and `less` with another figure."""
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
    """The models of an arm: of a configuration of ours, or a pretrained one."""

    config: dict[str, Any] = field(default_factory=dict)  # fields of a `ModelConfig`
    cpu: dict[str, Any] = field(default_factory=dict)  # fields that replace those on a CPU
    trained: bool = False  # else it is built from its seed
    hub: str = ""  # name of a pretrained model
    size: tuple[int, int] = (0, 0)  # its width and depth, which weights given by hand must have
    family: str = ""  # its transformers `model_type`
    parameters: float = 0
    precision: str = "float32"  # or bfloat16, or 8 bit
    stored: int = 2  # bytes of a parameter in its published files
    files: str = "*.safetensors"  # the pattern of those files
    weights: str = "pretrained"  # or random (drawn by its configuration), or random embedding
    stand_in: str = ""  # name of the pretrained model that is asked instead

    @property
    def own(self) -> bool:
        """Whether it is one of this project's."""
        return not self.hub

    def __str__(self) -> str:
        if not self.own:
            return f"{self.needs}, {self.weights}"
        settings = " ".join(f"{name}={value}" for name, value in self.config.items())
        less = {n: value for n, value in self.cpu.items() if value != self.config.get(n)}
        small = "; on a CPU" + "".join(f" {n}={v}" for n, v in less.items()) if less else ""
        return f"{settings}, {'' if self.trained else 'un'}trained{small}"

    @property
    def needs(self) -> str:
        """The download and the memory that a pretrained model takes, in words."""
        of_weight = {"float32": 4, "bfloat16": 2, "8 bit": 1}[self.precision]
        sizes = (self.parameters * each / 1e9 for each in (self.stored, of_weight))
        download, memory = (f"{size:.2g}" if size < 10 else f"{size:.0f}" for size in sizes)
        return (
            f"{self.hub} ({self.parameters / 1e9:.3g} B parameters: about {download} GB to "
            f"download, {memory} GB of memory in {self.precision})"
        )


@dataclass(frozen=True)
class Protocol:
    """How an arm is asked.

    A fair protocol asks prompts with pads, and controls, of the first model alone, and prompts
    without pads of every model.
    """

    methods: dict[str, dict[str, Any]] = field(default_factory=dict)  # as a suite writes them
    seeds: int = 1  # models of our own
    first: int = 0  # seed of those that are built here
    text: tuple[str, ...] = ()  # the prompts; others when empty
    kind: str = "story"  # of the others: beginnings, `inside` of stories, or `random` tokens
    count: int = 0  # of those, over all models together: each is asked others
    length: int = 0  # tokens of each
    skip: int = 0  # so many are left out before the first
    pad_to: int = 0  # length to which pads fill each prompt
    controls: tuple[str, ...] = ()  # identity, shuffled

    def __str__(self) -> str:
        prompts = " ".join(f"“{text}”" for text in self.text)
        if not self.text:
            tokens = "a token" if self.length == 1 else f"{self.length} tokens"
            after = f" after the first {self.skip}" if self.skip else ""
            prompts = f"{self.count} {KINDS[self.kind]} of {tokens}{after}"
        models = f"{self.seeds} model{'s' if self.seeds > 1 else ''}"
        methods = (
            " ".join([label, *(f"{name}={value}" for name, value in settings.items())])
            for label, settings in self.methods.items()
        )
        parts = (
            prompts,
            models + (f" from seed {self.first} on" if self.first else ""),
            f"padded to {self.pad_to}" if self.pad_to else "",
            ", ".join(methods),
            f"controls {' '.join(self.controls)}" if self.controls else "",
        )
        return "; ".join(filter(None, parts))


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

    def __str__(self) -> str:
        site = f"lens {self.lens}" if self.lens else f"layer {self.layer} {self.part} {self.slice}"
        without = f" without {' '.join(self.without)}" if self.without else ""
        return f"{self.models}; {site}{without}"

    def protocol(self, name: str) -> Protocol | None:
        """`reported` or `fair`; None where this arm is not asked so."""
        return self.reported if name == REPORTED else self.fair

    @property
    def fingerprint(self) -> str:
        """A hash of the question, by which rows that answer another one are left out."""
        return row_key(asdict(self, dict_factory=lambda items: {
            name: value for name, value in items if value or name not in LATER
        }))  # fmt: skip


@dataclass(frozen=True)
class Term:
    """A figure of an arm."""

    figure: str  # of `eval.claims.evidence`, or of the arm's lens
    arm: str = ""  # its name; "" where there is one only
    by: str = "best"  # a method's label or family, or the best of all; of lenses nothing
    where: dict[str, Any] = field(default_factory=dict)  # fields that a lens's figure must have
    pool: str = "mean"  # one of `POOLS`, over a lens's figures that are left

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
        return f"{self.left} {OPERATIONS[self.operation].words} {self.right}"

    @property
    def terms(self) -> list[Term]:
        """Its figures: one or two."""
        return [self.left, self.right] if isinstance(self.right, Term) else [self.left]


@dataclass(frozen=True)
class Source:
    """A document that claims are from."""

    key: str
    author: str  # as the document names them
    title: str
    year: int
    url: str
    note: str = ""  # its kind, and its date where that is in doubt

    def __str__(self) -> str:
        return f"{self.author}, “{self.title}”, {self.year}, {self.url}"


@dataclass(frozen=True)
class StandIn:
    """A pretrained model that is asked in place of those of claims."""

    key: str  # its name, as its meta.json or its directory has it
    title: str  # on pages
    about: str  # its size, its data, the origin of its weights
    claims: dict[int, dict[str, Any]]  # those asked of it, each with the fields that change
    left: str  # which others it was not asked, why, and what they would cost
    every: dict[str, Any] = field(default_factory=dict)  # fields that change in all its arms


@dataclass(frozen=True)
class Claim:
    """A claim: all of `judge` must hold for it to hold."""

    number: int
    claim: str  # in a line
    expected: str  # what its source reports
    source: Source
    group: str
    arms: tuple[Arm, ...]
    judge: tuple[Criterion, ...]
    control: tuple[Criterion, ...] = ()  # what the source's protocol must do for it to count
    note: str = ""  # where what is asked departs from the source
    changed: str = ""  # how a criterion was changed after the data were seen
    again: str = ""  # how it was asked since, by criteria and of text that no row had seen
    stand_ins: dict[str, tuple[Arm, ...]] = field(default_factory=dict)  # what each is asked

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
