"""Prompts as rows of coloured tokens, and the sentences and the example that open the page."""

from collections.abc import Hashable
from dataclasses import dataclass

from markupsafe import Markup

from eval.lenses.markup import visible
from eval.recovery import (
    AMBIGUOUS,
    GRADIENT,
    NOT_FOUND,
    SEARCH,
    Joined,
    hidden_positions,
    question,
)
from eval.report.evidence import (
    AFTER,
    BEFORE,
    BEST,
    BETWEEN,
    Placed,
    column_order,
    method,
    prompt_order,
    prompt_set,
    site_label,
)
from eval.schema import Row
from eval.summary import Record
from eval.tables import group, percent

WIDTH = 128  # characters a line of tokens may take; longer prompts go on below
GAP = 2  # characters of padding around a token
EXAMPLE_LINES = 3  # of tokens that the opening example may take
CELLS = 15_000  # tokens drawn on a page, to keep it under a megabyte
LETTERS = {GRADIENT: ("g", "g"), SEARCH: ("s", "s"), AMBIGUOUS: ("m", "≈"), NOT_FOUND: ("n", "–")}
"""Mark and text of a verdict across methods."""

Verdicts = dict[Hashable, Joined]
"""Verdicts across methods by `recovery.question`."""


@dataclass(frozen=True)
class Strip:
    """The tokens of one method at one checkpoint, or the verdicts of all methods together.

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
class DrawnPrompt:
    """One prompt: its sheets at the deepest site, and those of the other sites."""

    kind: str
    index: int
    text: str
    sheets: list[Sheet]
    others: list[Sheet]


@dataclass(frozen=True)
class Drawn:
    """The prompts that are drawn, as many as a page of reasonable size can hold.

    Attributes:
        left_out: how many prompts are not.
        turns: whether each is drawn for one model only, as all of them would take too much room.
    """

    prompts: list[DrawnPrompt]
    left_out: int
    turns: bool


def sample(placed: list[Placed], verdicts: Verdicts, cells: int = CELLS) -> Drawn:
    """The prompts to draw, of so many tokens (`cells`); other sites where there is room for them.

    Rows between the first and the last step are not drawn; of several seeds the first is.
    """
    placed = [s for s in placed if s.phase != BETWEEN]
    groups = group(placed, lambda s: (s.row["prompt"], prompt_order(s.prompts), *s.row["truth"]))
    keys = sorted(groups)
    whole = [_prompt(groups[key], verdicts) for key in keys[:1]]
    turns = bool(whole) and _cost(whole[0].sheets) > cells / 8
    with_others = bool(whole) and _cost(whole[0].sheets + whole[0].others) <= cells / 2
    drawn: list[DrawnPrompt] = []
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
    return Drawn(drawn, len(keys) - len(drawn), turns and len({s.model for s in placed}) > 1)


def sentences(lines: list[Record], placed: list[Placed]) -> list[Markup]:
    """One per model and prompt set on its hardest question, and one on the self tokens.

    They are of the lines of the summary, and of the rows that these were made of.
    """
    several = len({line["prompts"] for line in lines}) > 1
    hardest: dict[tuple, Record] = {}
    for line in lines:
        key = (line["model"], line["prompts"])
        if key not in hardest or hardest[key]["task"] < line["task"]:
            hardest[key] = line
    return [_sentence(line, several) for line in hardest.values()] + _on_self_tokens(placed)


def example(prompts: list[DrawnPrompt]) -> Sheet | None:
    """The sheet that opens the page: a solved one, with hidden tokens, on which methods differ."""
    short = [s for p in prompts for s in p.sheets if len(s.spans) <= EXAMPLE_LINES]

    def merit(sheet: Sheet) -> tuple[bool, int, int]:
        right = [s.correct for s in sheet.strips if s.phase == AFTER and not s.joined] or [0]
        return (max(right) == len(sheet.truth), sum(sheet.hidden), max(right) - min(right))

    return max((sheet for sheet in short if any(sheet.hidden)), key=merit, default=None)


def _sheet(placed: list[Placed], verdicts: Verdicts) -> Sheet:
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
    """Orders rows by the seed of the model, then of the solver."""
    return row["checkpoint"]["name"], row["checkpoint"]["weights_sha256"], row["seed"]


def _prompt(placed: list[Placed], verdicts: Verdicts, others: bool = True) -> DrawnPrompt:
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
    return DrawnPrompt(
        row["prompts"], index, text, sorted(first, key=place), sorted(rest, key=place)
    )


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


def _sentence(line: Record, several: bool) -> Markup:
    k = line["task"].hidden
    asked = "the hidden token" if k == 1 else f"the {k} hidden tokens"
    if not line["task"].nonself:
        asked = "the shown tokens"
    model = line["model"] + " model"
    if several:
        model += f" (prompts: {prompt_set(line['prompts'])})"
    text = Markup()
    for phase, state in ((AFTER, "trained"), (BEFORE, "untrained")):
        shares = {
            column: Markup("<b>{}\u00a0%</b>").format(percent(line["cells"][phase, column]["top1"]))
            for column in column_order({c for when, c in line["cells"] if when == phase})
        }
        if not shares:
            continue
        named = [
            Markup("{} {}").format(method(c).title if c == BEST else method(c).short, share)
            for c, share in shares.items()
        ]
        if not text:
            first, share = next(iter(shares.items()))
            named[0] = Markup("{} recovers {} of {}").format(method(first).title, share, asked)
        *most, last = named
        listed = Markup(", ").join(most) + (Markup(" and ") if most else Markup()) + last
        if text:
            text += Markup(" Before training: {}.").format(listed)
        else:
            site = site_label(line["layer"], line["part"])
            text = Markup("At layer {} of the {} {}, {}.").format(site, state, model, listed)
    return text


def _on_self_tokens(placed: list[Placed]) -> list[Markup]:
    """Whether exact search found every self token where the most is shown, everywhere asked."""
    asked = [s for s in placed if not s.task.nonself and s.column == "exact"]
    if not asked:
        return []
    task = min(s.task for s in asked)
    hits, counts = zip(*(s.counted for s in asked if s.task == task), strict=True)
    tokens, missed = sum(counts), sum(counts) - sum(hits)
    share = Markup("misses <b>{:,}</b>").format(missed) if missed else Markup("<b>every one</b>")
    shown = f"the first {task.hidden} hidden" if task.hidden else "every position shown"
    text = "With {}, exact search {}{} of {:,} tokens, counted at every layer and checkpoint."
    return [Markup(text).format(shown, "" if missed else "recovers ", share, tokens)]
