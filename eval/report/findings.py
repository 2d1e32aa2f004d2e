"""What the page says in words: its opening sentences and its opening example."""

from markupsafe import Markup

from eval.report.evidence import AFTER, BEFORE, BEST, Score
from eval.report.strips import Prompt, Sheet
from eval.report.wording import column_order, method, percent, prompt_set, site_label
from eval.summary import Record

LINES = 3  # of tokens that the opening example may take


def sentences(lines: list[Record], placed: list[Score]) -> list[Markup]:
    """One per model and prompt set on its hardest question, and one on the self tokens.

    Args:
        lines: of the summary.
        placed: the scores that they were made of.
    """
    several = len({line["prompts"] for line in lines}) > 1
    hardest: dict[tuple, Record] = {}
    for line in lines:
        key = (line["model"], line["prompts"])
        if key not in hardest or hardest[key]["task"] < line["task"]:
            hardest[key] = line
    return [_sentence(line, several) for line in hardest.values()] + _on_self_tokens(placed)


def example(prompts: list[Prompt]) -> Sheet | None:
    """The sheet that opens the page: a solved one, with hidden tokens, on which methods differ."""
    sheets = [s for p in prompts for s in p.sheets if len(s.spans) <= LINES and any(s.hidden)]

    def merit(sheet: Sheet) -> tuple[bool, int, int]:
        right = [s.correct for s in sheet.strips if s.phase == AFTER and not s.joined] or [0]
        return (max(right) == len(sheet.truth), sum(sheet.hidden), max(right) - min(right))

    return max(sheets, key=merit, default=None)


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
        cells = {column: r for (when, column), r in line["cells"].items() if when == phase}
        shares = [
            (c, Markup("<b>{}\u00a0%</b>").format(percent(cells[c]["top1"])))
            for c in column_order(set(cells))
        ]
        if not shares:
            continue
        if text:
            named = [Markup("{} {}").format(_called(c), share) for c, share in shares]
            text += Markup(" Before training: {}.").format(_enumerate(named))
            continue
        first, *rest = shares
        named = [Markup("{} recovers {} of {}").format(method(first[0]).title, first[1], asked)]
        named += [Markup("{} {}").format(_called(c), share) for c, share in rest]
        start = Markup("At layer {} of the {} {}, {}.")
        text += start.format(
            site_label(line["layer"], line["part"]), state, model, _enumerate(named)
        )
    return text


def _called(column: str) -> str:
    return method(column).title if column == BEST else method(column).short


def _on_self_tokens(placed: list[Score]) -> list[Markup]:
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


def _enumerate(parts: list[Markup]) -> Markup:
    """`a, b and c`."""
    *most, last = parts
    return Markup(", ").join(most) + (Markup(" and ") if most else Markup()) + last
