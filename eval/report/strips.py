"""Prompts as rows of coloured tokens: the truth above, what each method found below it."""

from collections.abc import Hashable
from dataclasses import dataclass

from eval.recovery import (
    AMBIGUOUS,
    GRADIENT,
    NOT_FOUND,
    SEARCH,
    Joined,
    hidden_positions,
    question,
)
from eval.report.evidence import AFTER, BEFORE, BETWEEN, Score, group
from eval.report.wording import column_order, method, prompt_order, visible
from eval.schema import Row

WIDTH = 128  # characters a line of tokens may take; longer prompts go on below
GAP = 2  # characters of padding around a token
CELLS = 15_000  # tokens drawn on a page, to keep it under a megabyte
LETTERS = {GRADIENT: ("g", "g"), SEARCH: ("s", "s"), AMBIGUOUS: ("m", "≈"), NOT_FOUND: ("n", "–")}
"""Mark and text of a verdict across methods."""

Verdicts = dict[Hashable, Joined]
"""Verdicts across methods by `recovery.question`."""


@dataclass(frozen=True)
class Strip:
    """What one method found at one checkpoint, or what all of them together did.

    Attributes:
        cells: `(mark, text)` per position; the mark is "" right, "w" wrong, "a" ambiguous, or one
            of `LETTERS`.
        correct: how many positions are right, of all.
        joined: whether this is the verdict across methods.
    """

    phase: str
    name: str
    cells: list[tuple[str, str]]
    correct: int
    joined: bool = False


@dataclass(frozen=True)
class Sheet:
    """All strips of one prompt, model, site and slice, aligned by position.

    Attributes:
        truth: the prompt's tokens; `hidden[i]` says whether position i is withheld.
        spans: `(start, stop)` of the positions that go on one line.
    """

    model: str
    layer: int
    part: str
    slice: str
    shown: int
    truth: list[str]
    hidden: list[bool]
    strips: list[Strip]
    spans: list[tuple[int, int]]


@dataclass(frozen=True)
class Prompt:
    """One prompt: its sheets at the deepest site, and those of the other sites."""

    kind: str
    index: int
    text: str
    sheets: list[Sheet]
    others: list[Sheet]


@dataclass(frozen=True)
class Sample:
    """The prompts that are drawn, as many as a page of reasonable size can hold.

    Attributes:
        left_out: how many prompts are not.
        turns: whether each is drawn for one model only, as all of them would take too much room.
    """

    prompts: list[Prompt]
    left_out: int
    turns: bool


def sample(placed: list[Score], verdicts: Verdicts, cells: int = CELLS) -> Sample:
    """The prompts to draw; their other sites only where there is room for them.

    Args:
        placed: every row to draw, once; rows between the first and the last step are not drawn, and
            of several seeds the first is.
        verdicts: of the rows' questions.
        cells: how many tokens may be drawn.
    """
    placed = [s for s in placed if s.phase != BETWEEN]
    groups = group(placed, lambda s: (s.row["prompt"], prompt_order(s.prompts), *s.row["truth"]))
    keys = sorted(groups)
    whole = [_prompt(groups[key], verdicts) for key in keys[:1]]
    turns = bool(whole) and _cost(whole[0].sheets) > cells / 8
    with_others = bool(whole) and _cost(whole[0].sheets + whole[0].others) <= cells / 2
    drawn: list[Prompt] = []
    for i, key in enumerate(keys):
        several = groups[key]
        if turns:
            models = list(group(several, lambda s: s.model).values())
            several = models[i % len(models)]
        prompt = _prompt(several, verdicts, with_others)
        cost = _cost(prompt.sheets + prompt.others)
        if drawn and cost > cells:
            break
        cells -= cost
        drawn.append(prompt)
    return Sample(drawn, len(keys) - len(drawn), turns and len({s.model for s in placed}) > 1)


def _sheet(placed: list[Score], verdicts: Verdicts) -> Sheet:
    """The strips of rows with the same prompt, model, site and slice."""
    first, hidden = placed[0], hidden_positions(placed[0].row)
    families = {s.method: s.family for s in placed}
    methods = sorted(column_order(set(families)), key=lambda name: families[name] == "search")
    groups = group(placed, lambda s: (s.phase, s.method))
    names = {m: method(m).short for m in methods}
    if len(set(names.values())) < len(names):
        names = {m: method(m).title for m in methods}
    strips = []
    for phase in (BEFORE, AFTER):
        rows = [
            min((s.row for s in groups[phase, name]), key=_seed)
            for name in methods
            if (phase, name) in groups
        ]
        strips += [_strip(phase, names[r["method"]], r) for r in rows]
        joined = verdicts.get(question(rows[0])) if rows else None
        if joined and joined.decisive:
            strips.append(_verdict_strip(phase, joined))
    truth = [visible(token) for token in first.row["truth_text"]]
    return Sheet(
        model=first.model,
        layer=first.layer,
        part=first.part,
        slice=first.row["slice"],
        shown=len(truth) - len(hidden),
        truth=truth,
        hidden=[i in hidden for i in range(len(truth))],
        strips=strips,
        spans=_spans(truth, strips),
    )


def _cost(sheets: list[Sheet]) -> int:
    return sum(len(s.strips) * len(s.truth) for s in sheets)


def _seed(row: Row) -> tuple[str, str, int]:
    """Of a model and of a solver."""
    return row["checkpoint"]["name"], row["checkpoint"]["weights_sha256"], row["seed"]


def _prompt(placed: list[Score], verdicts: Verdicts, others: bool = True) -> Prompt:
    """Of each model and slice the sheet of the deepest site, blocks before other parts."""
    models = list(group(placed, lambda s: s.model))
    first, rest = [], []
    for shown in group(placed, lambda s: (s.model, s.row["slice"])).values():
        sites = group(shown, lambda s: (s.part == "block", s.layer, s.part))
        top = max(sites, key=lambda site: site[:2])
        first.append(_sheet(sites.pop(top), verdicts))
        rest += [_sheet(several, verdicts) for several in sites.values() if others]

    def place(sheet: Sheet) -> tuple[int, int, str, str, int]:
        return (models.index(sheet.model), -sheet.shown, sheet.slice, sheet.part, -sheet.layer)

    row = placed[0].row
    text, index = row["text"], row["prompt"]
    return Prompt(row["prompts"], index, text, sorted(first, key=place), sorted(rest, key=place))


def _verdict_strip(phase: str, joined: Joined) -> Strip:
    correct = sum(v in (GRADIENT, SEARCH) for v in joined.verdicts)
    return Strip(phase, "all methods", [LETTERS[v] for v in joined.verdicts], correct, joined=True)


def _strip(phase: str, name: str, row: Row) -> Strip:
    cells = []
    verdicts = row["verdict"] or [NOT_FOUND] * row["length"]  # a shuffled target has none
    for true, token, text, verdict in zip(
        row["truth"], row["found"], row["found_text"], verdicts, strict=True
    ):
        mark = "a" if verdict == "ambiguous" else "" if token == true else "w"
        cells.append((mark, visible(text)))
    correct = sum(t == f for t, f in zip(row["truth"], row["found"], strict=True))
    return Strip(phase, name, cells, correct)


def _spans(truth: list[str], strips: list[Strip]) -> list[tuple[int, int]]:
    """Breaks the positions into lines that fit the page."""
    spans, start, used = [], 0, 0
    for i, token in enumerate(truth):
        width = GAP + max(len(token), *(len(s.cells[i][1]) for s in strips))
        if used + width > WIDTH and i > start:
            spans.append((start, i))
            start, used = i, 0
        used += width
    return [*spans, (start, len(truth))]
