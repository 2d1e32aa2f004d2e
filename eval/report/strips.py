"""Prompts as rows of coloured tokens: the truth above, what each method found below it."""

from dataclasses import dataclass

from eval.report.evidence import AFTER, BEFORE, Row, group, hidden_positions
from eval.report.wording import column_order, method, prompt_order, visible

WIDTH = 128  # characters a line of tokens may take; longer prompts go on below
GAP = 2  # characters of padding around a token
CELLS = 15_000  # tokens drawn on a page, to keep it under a megabyte


@dataclass(frozen=True)
class Strip:
    """What one method found at one checkpoint.

    Attributes:
        cells: `(mark, text)` per position; the mark is "" right, "w" wrong, "a" ambiguous.
        correct: how many positions are right, of all.
    """

    phase: str
    name: str
    cells: list[tuple[str, str]]
    correct: int


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


def prompts(placed: list[tuple[str, str, Row]], cells: int = CELLS) -> tuple[list[Prompt], int]:
    """The prompts to draw, and how many are left out because the page would grow too large.

    Args:
        placed: `(model, phase, row)` of every row to draw; rows between the first and the last
            step are not drawn, and of several seeds the first is.
        cells: how many tokens may be drawn.
    """
    placed = [item for item in placed if item[1] in (BEFORE, AFTER)]
    groups = group(placed, lambda p: (p[2]["prompts"], p[2]["prompt"], tuple(p[2]["truth"])))
    drawn: list[Prompt] = []
    keys = sorted(groups, key=lambda key: (key[1], prompt_order(key[0]), key[2]))
    for key in keys:
        prompt = _prompt(key[0], key[1], groups[key])
        cost = sum(len(s.strips) * len(s.truth) for s in prompt.sheets + prompt.others)
        if drawn and cost > cells:
            break
        cells -= cost
        drawn.append(prompt)
    return drawn, len(keys) - len(drawn)


def sheet(model: str, placed: list[tuple[str, str, Row]]) -> Sheet:
    """The strips of rows with the same prompt, model, site and slice."""
    row = placed[0][2]
    hidden = hidden_positions(row)
    methods = column_order({row["method"] for _, _, row in placed})
    groups = group(placed, lambda p: (p[1], p[2]["method"]))
    names = {m: method(m).short for m in methods}
    if len(set(names.values())) < len(names):
        names = {m: method(m).name for m in methods}
    strips = [
        _strip(
            phase, names[name], min((r for _, _, r in groups[phase, name]), key=lambda r: r["seed"])
        )
        for phase in (BEFORE, AFTER)
        for name in methods
        if (phase, name) in groups
    ]
    truth = [visible(token) for token in row["truth_text"]]
    return Sheet(
        model=model,
        layer=row["site"]["layer"],
        part=row["site"]["part"],
        slice=row["slice"],
        shown=len(truth) - len(hidden),
        truth=truth,
        hidden=[i in hidden for i in range(len(truth))],
        strips=strips,
        spans=_spans(truth, strips),
    )


def _prompt(kind: str, index: int, placed: list[tuple[str, str, Row]]) -> Prompt:
    models = list(group(placed, lambda p: p[0]))
    groups = group(placed, lambda p: (p[0], p[2]["slice"], *p[2]["site"].values()))
    sheets = [sheet(key[0], items) for key, items in groups.items()]
    sheets.sort(key=lambda s: (models.index(s.model), -s.shown, s.slice, s.part, -s.layer))
    top = {}
    for s in sheets:
        best = top.get((s.model, s.slice))
        if best is None or (s.part == "block", s.layer) > (best.part == "block", best.layer):
            top[s.model, s.slice] = s
    first = list(top.values())
    others = [s for s in sheets if s not in first]
    return Prompt(kind, index, placed[0][2]["text"], first, others)


def _strip(phase: str, name: str, row: Row) -> Strip:
    cells = []
    for true, found, text, verdict in zip(
        row["truth"], row["found"], row["found_text"], row["verdict"], strict=True
    ):
        mark = "a" if verdict == "ambiguous" else "" if found == true else "w"
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
