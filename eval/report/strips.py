"""Prompts as rows of coloured tokens, and the sentences and the example that open the page."""

from collections.abc import Hashable
from typing import NamedTuple

from markupsafe import Markup

from eval.cells import Record
from eval.lenses.markup import visible
from eval.recovery import hidden_positions
from eval.report.evidence import (
    AFTER,
    BEFORE,
    BETWEEN,
    COLUMN_WORDS,
    Placed,
    column_order,
    method,
    prompt_order,
    prompt_set,
    site_label,
)
from eval.schema import Row
from eval.tables import group, percent
from eval.verdicts import AMBIGUOUS, GRADIENT, NOT_FOUND, SEARCH, Joined, question

WIDTH = 128  # characters a line of tokens may take; longer prompts go on below
GAP = 2  # characters of padding around a token
EXAMPLE_LINES = 3  # of tokens that the opening example may take
CELLS = 15_000  # tokens drawn on a page, to keep it under a megabyte
LETTERS = {GRADIENT: ("g", "g"), SEARCH: ("s", "s"), AMBIGUOUS: ("m", "≈"), NOT_FOUND: ("n", "–")}
"""Mark and text of a verdict across methods."""

Verdicts = dict[Hashable, Joined]
"""Verdicts across methods by `recovery.question`."""


class Strip(NamedTuple):
    """The tokens of one method at one checkpoint, or the verdicts of all methods together."""

    phase: str
    name: str
    cells: list[tuple[str, str]]  # mark and text; marks: "" right, w wrong, a ambiguous, `LETTERS`
    correct: int  # positions that are right, of all
    joined: bool = False  # whether this is the verdict across methods


class Sheet(NamedTuple):
    """All strips of one prompt, model, site and slice, aligned by position."""

    model: str
    layer: int
    part: str
    slice: str
    shown: int
    truth: list[str]  # the prompt's tokens
    hidden: list[bool]  # whether each is withheld
    strips: list[Strip]
    spans: list[tuple[int, int]]  # start and stop of the positions that go on one line


class DrawnPrompt(NamedTuple):
    """One prompt: its sheets at the deepest site, and those of the other sites."""

    kind: str
    index: int
    text: str
    sheets: list[Sheet]
    others: list[Sheet]


class Drawn(NamedTuple):
    """The prompts that are drawn, as many as a page of reasonable size can hold."""

    prompts: list[DrawnPrompt]
    left_out: int  # prompts that are not drawn
    turns: bool  # each is drawn for one model only, as all of them would take too much room


def sample(placed: list[Placed], verdicts: Verdicts, cells: int = CELLS) -> Drawn:
    """The prompts to draw, of so many tokens (`cells`); other sites where there is room for them.

    Rows between the first and the last step are not drawn; of several seeds the first is.
    """
    placed = [s for s in placed if s.phase != BETWEEN]
    groups = group(placed, lambda s: (s.row["prompt"], prompt_order(s.prompts), *s.row["truth"]))
    turns = with_others = False
    drawn: list[DrawnPrompt] = []
    for i, key in enumerate(sorted(groups)):
        several = groups[key]
        if not i:
            whole = _prompt(several, verdicts)
            turns = _cost(whole.sheets) > cells / 8
            with_others = _cost(whole.sheets + whole.others) <= cells / 2
        if turns:
            models = list(group(several, lambda s: s.model).values())
            several = models[i % len(models)]
        prompt = _prompt(several, verdicts, with_others)
        cost = _cost(prompt.sheets + prompt.others)
        if drawn and cost > cells:
            break
        cells -= cost
        drawn.append(prompt)
    return Drawn(drawn, len(groups) - len(drawn), turns and len({s.model for s in placed}) > 1)


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
    strips = []
    for phase in (BEFORE, AFTER):
        rows = [min((s.row for s in groups[phase, m]), key=_seed)
                for m in methods if (phase, m) in groups]  # fmt: skip
        strips += [_strip(phase, r["method"], r) for r in rows]
        joined = verdicts.get(question(rows[0])) if rows else None
        if joined and joined.decisive:
            right = sum(v in (GRADIENT, SEARCH) for v in joined.verdicts)
            letters = [LETTERS[v] for v in joined.verdicts]
            strips.append(Strip(phase, "all methods", letters, right, joined=True))
    truth = [visible(token) for token in first.row["truth_text"]]
    length, place = len(truth), (first.model, first.layer, first.part, first.row["slice"])
    withheld = [i in hidden for i in range(length)]
    return Sheet(*place, length - len(hidden), truth, withheld, strips, _spans(truth, strips))


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


def _strip(phase: str, name: str, row: Row) -> Strip:
    verdicts = row["verdict"] or [NOT_FOUND] * row["length"]  # a shuffled target has none
    right = [true == token for true, token in zip(row["truth"], row["found"], strict=True)]
    cells = [
        ("a" if verdict == "ambiguous" else "" if hit else "w", visible(text))
        for hit, text, verdict in zip(right, row["found_text"], verdicts, strict=True)
    ]
    return Strip(phase, name, cells, sum(right))


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
        named = []
        for c in column_order({c for when, c in line["cells"] if when == phase}):
            share = percent(line["cells"][phase, c]["top1"])
            first = not text and not named
            name = method(c).title if first or c in COLUMN_WORDS else c
            words = f" recovers <b>{{}}\u00a0%</b> of {asked}" if first else " <b>{}\u00a0%</b>"
            named.append(Markup("{}" + words).format(name, share))
        if not named:
            continue
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
