"""The fields of each kind of row.

A row answers one question: a dictionary whose `kind` says which of the types below it is.
"""

from typing import Any, TypedDict

SCHEMA = 3
SHUFFLED = "shuffled"
"""The control whose target belongs to another prompt, so that its truth explains nothing."""

Row = dict[str, Any]
"""A row of any kind, as JSON gives it: one of the types of `KINDS`, by its `kind`."""


class OfDirectory(TypedDict, total=False):
    """Where a model lay, its size and training; rows put together from tables lack them."""

    path: str
    parameters: int
    tokens_seen: int | None
    settings_sha256: str
    seed: int | None
    max_steps: int | None
    code: str


class About(OfDirectory):
    """Which model a row is about, at which step."""

    name: str
    model_id: str
    step: int
    trained: bool
    mixers: list[str]
    d_model: int
    n_layers: int
    context: int
    weights_sha256: str


class OfSite(TypedDict, total=False):
    """What of a layer is taken, where it is no whole block."""

    part: str
    without: list[str]


class Site(OfSite):
    """Layers whose outputs were taken; several are joined."""

    layer: int | list[int]


class Tally(TypedDict):
    """Ranks of some tokens of a prompt, summed up."""

    count: int
    top1: float
    top5: float
    median_rank: float


class Collision(TypedDict):
    """Another token that fits as well."""

    position: int


class OfModel(TypedDict):
    """Fields of every row about a model; `checkpoint` has more of its sizes."""

    schema: int
    key: str
    kind: str
    checkpoint: About


class OfPrompt(OfModel, total=False):
    """The corpus that a prompt was drawn from, if it was; older rows lack it."""

    corpus: str | None


class OfTruth(OfPrompt, total=False):
    """Whether the true prompt is at the floor too; rows measured before it was asked lack it."""

    truth_at_floor: bool


class RecoveryRow(OfTruth):
    """One prompt recovered by one solver from one slice of one site.

    `site` is layer, part and what is left out; `shown` are the positions of the prompt that are
    shown, `hidden` and `observed` count positions, the latter pads among them; `truth`,
    `found`, `rank` and `verdict` go by position, up to the last one shown; `self` and `nonself`
    tally tokens. `truth_at_floor` is whether the true prompt explains the target, as `at_floor` is
    of the answer.
    """

    site: Site
    slice: str
    length: int
    shown: list[int]
    observed: int
    hidden: int
    padded: bool
    noise: float
    control: str | None
    solver: str
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
    self: Tally | None
    nonself: Tally | None
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
    collisions: list[Collision]
    steps_to_solve: int | None
    evaluations: int
    seconds: float
    notes: dict[str, Any]


class Read(TypedDict):
    """How well tokens are read."""

    top1: float
    information: float


class ProbeRow(OfModel):
    """The figures of a linear probe of a layer, which reads the token at an `offset`.

    top1, nats, information and gain stand beside those of the `unigram`.
    """

    site: Site
    method: str
    settings: dict[str, Any]
    offset: int
    top1: float
    information: float
    gain: float
    unigram: Read
    seconds: float


class OfInputs(OfPrompt, total=False):
    """Features of the hidden tokens, and how many of them the norms remove."""

    inputs: int
    removed: int


class GeometryRow(OfInputs):
    """The Jacobian of one prompt's visible outputs by its hidden tokens, in a layer."""

    site: Site
    length: int
    hidden: int
    prompts: str
    prompt: int
    truth: list[int]
    sigma_max: float | None
    sigma_min: float | None
    condition: float | None
    effective_rank: float | None
    seconds: float


class Parts(TypedDict):
    """Sums of parts of a text."""

    nats: list[float]
    bytes: list[int]


class OfWindows(OfModel, total=False):
    """How the text was cut (with `--length`), and a hash of texts given in a corpus's place.

    Earlier rows lack both, and are of joined stories.
    """

    windows: str
    texts: str


class LossRow(OfWindows):
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
    parts: Parts


class OfFigure(OfModel, total=False):
    """The interval of a figure, and of how many it is; a hash of the lens's texts and settings.

    Older rows lack the hash.
    """

    low: float | None
    high: float | None
    n: int | None
    texts: str


class LensRow(OfFigure):
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

    site: Site
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
    bits: dict[str, dict[str, dict[str, list[float | None]]]]


class Tried(TypedDict):
    """A site at which so many of the first tokens fit."""

    hits: int
    tried: int


class OfTensor(OfModel, total=False):
    """Rows of a tensor that its mask leaves out, and where it fits better; older rows lack them.

    `refused` has the lines of other prompts of the tensor that were refused, if some were, and
    `wrong` the positions at which a truth that was given differs.
    """

    padding: list[int]
    elsewhere: str
    refused: dict[str, str]
    wrong: list[int]


class CapturedRow(OfTensor):
    """The prompt behind a captured tensor; lists go by position, and `alike` by its text.

    `site` is the part and the layer, as `block.3`; `left_out` are positions at the end that no
    token fits.
    """

    tensor: str
    prompt: int
    site: str
    sites_tried: list[Tried]
    format: str
    computed: str
    solver: str
    text: str
    tokens: list[int]
    pieces: list[str]
    certificates: list[str | None]
    grades: list[str]
    probabilities: list[float | None]
    left_out: list[int]
    residual_over_floor: dict[str, float | None]
    alike: dict[str, list[int]]
    alike_pieces: dict[str, list[str]]
    evaluations: int


class NumbersOfLens(TypedDict):
    """A tensor of a lens, its values in order."""

    name: str
    values: list[float | str | None]
    axes: dict[str, list[Any]]
    rows: bool
    share: bool


class Words(TypedDict):
    """A table of words."""

    title: str
    columns: list[str]
    lines: list[list[Any]]


class LensDocument(TypedDict):
    """All that a lens found in one checkpoint, with what it was asked."""

    schema: int
    lens: str
    about: str
    key: str
    checkpoint: About
    prompts: list[Any]
    request: dict[str, Any]
    numbers: list[NumbersOfLens]
    pieces: dict[str, list[str]]
    texts: list[Words]
    notes: dict[str, Any]


KINDS: dict[str, type] = {
    "recovery": RecoveryRow,
    "probe": ProbeRow,
    "geometry": GeometryRow,
    "loss": LossRow,
    "bits": BitsRow,
    "lens": LensRow,
    "captured": CapturedRow,
}
"""What a row of each kind holds, at least; records are rows summed up, where those are gone."""
