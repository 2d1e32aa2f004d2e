"""The fields of each kind of row.

A row answers one question: a dictionary whose `kind` says which of the types below it is.
"""

from typing import Any, TypedDict

SCHEMA = 2
SHUFFLED = "shuffled"
"""The control whose target belongs to another prompt, so that its truth explains nothing."""

Row = dict[str, Any]
"""A row of any kind, as JSON gives it: one of the types of `KINDS`, by its `kind`."""


class OfModel(TypedDict):
    """Fields of every row about a model; `checkpoint` has its model_id, step, weights and sizes."""

    schema: int
    key: str
    kind: str
    checkpoint: dict[str, Any]


class OfTruth(OfModel, total=False):
    """Whether the true prompt is at the floor too; rows measured before it was asked lack it."""

    truth_at_floor: bool


class RecoveryRow(OfTruth):
    """One prompt recovered by one solver from one slice of one site.

    `site` is layer, part and what is left out; `hidden` and `observed` count positions; `truth`,
    `found`, `rank` and `verdict` go by position, up to the last one shown; `self` and `nonself`
    tally tokens. `truth_at_floor` is whether the true prompt explains the target, as `at_floor` is
    of the answer.
    """

    site: dict[str, Any]
    slice: str
    length: int
    observed: int
    hidden: int
    padded: bool
    noise: float
    control: str | None
    method: str
    family: str
    settings: dict[str, Any]
    batch: int
    candidates_at_once: int | None
    prompts: str
    prompt: int
    seed: int
    text: str
    truth: list[int]
    found: list[int]
    truth_text: list[str]
    found_text: list[str]
    rank: list[float]
    self: dict[str, Any] | None
    nonself: dict[str, Any] | None
    exact: bool
    set_recall: float | None
    permuted: bool | None
    residual: float
    floor: float
    margin: float | None
    margin_floor: float | None
    margin_bits: float | None
    at_floor: bool
    diverged: bool
    criterion: bool | None
    certificate: str | None
    uncertified: str | None
    verdict: list[str]
    collisions: list[dict[str, Any]]
    steps_to_solve: int | None
    evaluations: int
    seconds: float
    notes: dict[str, Any]


class ProbeRow(OfModel):
    """The figures of a linear probe of a layer, which reads the token at an `offset`.

    top1, nats, information and gain stand beside those of the `unigram`.
    """

    site: dict[str, Any]
    method: str
    settings: dict[str, Any]
    offset: int
    seconds: float


class GeometryRow(OfModel):
    """The Jacobian of one prompt's visible outputs by its hidden tokens, in a layer."""

    site: dict[str, Any]
    length: int
    hidden: int
    prompts: str
    prompt: int
    truth: list[int]
    seconds: float


class LossRow(OfModel):
    """How well a model predicts text; `parts` are the sums of each story, or of several."""

    corpus: str | None
    stories: int
    tokens: int
    bytes: int
    nats_per_token: float
    bits_per_byte: float
    perplexity: float
    tokens_per_second: float
    batch: int
    parts: dict[str, list[Any]]


class LensRow(OfModel):
    """One figure of one lens; further fields say of what it is: a layer, a head, a word."""

    lens: str
    figure: str
    value: float | None
    prompts: int
    prompt_kind: str
    length: int
    look: str


class BitsRow(OfModel):
    """The bits of outputs about one token at given precisions; `figure_lines` takes them apart.

    `truth` is the token asked about, alone; figures go by `distances`.
    """

    site: dict[str, Any]
    corpus: str
    prompts: str
    prompt: int
    truth: list[int]
    tokens: list[int]
    place: int
    candidates: int
    draws: int
    seed: int
    distances: list[int]
    rms: list[float | None]
    effect: list[float | None]
    effect_sampled: list[float | None]
    prior_bits: dict[str, float | None]
    margin_bits: dict[str, list[float | None]]
    bits: dict[str, Any]


KINDS: dict[str, type] = {
    "recovery": RecoveryRow,
    "probe": ProbeRow,
    "geometry": GeometryRow,
    "loss": LossRow,
    "bits": BitsRow,
    "lens": LensRow,
}
"""What a row of each kind holds, at least; records are rows summed up, where those are gone."""
