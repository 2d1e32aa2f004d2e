"""The summary as a table to be read, and as CSV: headings and cells of its records."""

import csv
import io
import math
from collections.abc import Callable
from typing import NamedTuple

from eval.inversion.summary import SHORT, Record

NONE = "–"
BRIEF = (
    "self %", "non-self %", "whole prompt %", "set %", "margin bits", "at floor", "false accepts",
    "evaluations", "seconds", "prompts", "models",
)  # fmt: skip


class Layout(NamedTuple):
    """A table in words.

    Attributes:
        constant: what is said once: what all lines share, and the settings of each method.
        headings: of the columns.
        numeric: whether each column holds numbers.
        lines: the cells of each record.
    """

    constant: dict[str, str]
    headings: list[str]
    numeric: list[bool]
    lines: list[list[str]]


def lay_out(records: list[Record], brief: bool = False) -> Layout:
    """Records as cells; a column that says the same everywhere, or nothing, is not drawn.

    Args:
        records: of `summarise`, or of `summarise_verdicts`.
        brief: only the figures that a line of a terminal has room for.
    """
    of_methods = "method" in records[0]
    places = {
        heading: [text(record) for record in records]
        for heading, text in (_PLACES | (_METHODS if of_methods else {})).items()
    }
    constant = {h: cells[0] for h, cells in places.items() if len(set(cells)) == 1}
    if of_methods:
        settings = set(zip(places["method"], places["settings"], strict=True))
        if len(settings) == len(set(places["method"])):
            constant.pop("settings", None)
            constant |= {f"settings of {method}": text for method, text in sorted(settings)}
            del places["settings"]
    drawn = {h: cells for h, cells in places.items() if h not in constant}
    figures = _FIGURES if of_methods else _VERDICTS
    chosen = [h for h in figures if h in BRIEF or not (brief and of_methods)]
    numbers = {h: [figures[h](record) for record in records] for h in chosen}
    numbers = {h: cells for h, cells in numbers.items() if set(cells) != {NONE}}
    columns = [*drawn.values(), *numbers.values()]
    return Layout(
        {h: value for h, value in constant.items() if value},
        [*drawn, *numbers],
        [h in ("step", "layer", "observed", "noise") for h in drawn] + [True] * len(numbers),
        [list(line) for line in zip(*columns, strict=True)],
    )


def to_markdown(records: list[Record]) -> str:
    """A Markdown table, what all lines share said above it."""
    layout = lay_out(records)
    lines = [_shared(layout), ""] if layout.constant else []
    lines += [
        _line(layout.headings),
        _line(["---:" if number else "---" for number in layout.numeric]),
        *(_line(cells) for cells in layout.lines),
    ]
    return "\n".join(lines) + "\n"


def to_csv(records: list[Record]) -> str:
    """All fields, numbers in full."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def share_text(share: float) -> str:
    """A share in percent, to a tenth; reads 0 or 100 only where it is so."""
    text = f"{100 * share:.1f}"
    if text == "0.0" and share > 0:
        return "<0.1"
    if text == "100.0":
        return "100" if share == 1 else ">99.9"
    return "0" if share == 0 else text


def number_text(value: float) -> str:
    """At most three digits, or a whole number."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.3g}"


def _shared(layout: Layout) -> str:
    return "; ".join(f"{h}: {v}" for h, v in layout.constant.items()) + "."


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _plain(field: str) -> Callable[[Record], str]:
    return lambda record: str(record[field])


def _flag(field: str) -> Callable[[Record], str]:
    return lambda record: "yes" if record[field] else ""


def _number(field: str) -> Callable[[Record], str]:
    return lambda record: NONE if record[field] is None else number_text(record[field])


def _count(count: int) -> str:
    return number_text(count) if count else NONE


def _share(field: str) -> Callable[[Record], str]:
    return lambda record: NONE if record[field] is None else share_text(record[field])


def _with_interval(field: str) -> Callable[[Record], str]:
    def text(record: Record) -> str:
        if record[field] is None:
            return NONE
        low, high = share_text(record[f"{field}_low"]), share_text(record[f"{field}_high"])
        return f"{share_text(record[field])} ({low}–{high})"

    return text


def _confusion(record: Record) -> str:
    """Passed and right, passed and wrong; failed and right, failed and wrong."""
    if record["criterion"] is None:
        return NONE
    passed = f"{record['criterion_exact']}/{record['criterion_wrong']}"
    return f"{passed}, {record['failed_exact']}/{record['failed_wrong']}"


_PLACES: dict[str, Callable[[Record], str]] = {
    "model": _plain("model"),
    "step": lambda record: f"{record['step']:,}",
    "trained": lambda record: "" if record["trained"] == (record["step"] > 0) else "no",
    "layer": _plain("layer"),
    "part": _plain("part"),
    "slice": _plain("slice"),
    "observed": _plain("observed"),
    "prompts of": _plain("prompt_kind"),
    "without": _plain("without"),
    "noise": lambda record: number_text(record["noise"]) if record["noise"] else "",
    "control": _plain("control"),
    "padded": _flag("padded"),
}
_METHODS: dict[str, Callable[[Record], str]] = {
    "method": _plain("method"),
    "settings": _plain("settings"),
}
_FIGURES: dict[str, Callable[[Record], str]] = {
    "self %": _with_interval("self"),
    "non-self %": _with_interval("nonself"),
    "whole prompt %": _with_interval("exact"),
    "self top-5 %": _share("self_top5"),
    "non-self top-5 %": _share("nonself_top5"),
    "self rank": _number("self_rank"),
    "non-self rank": _number("nonself_rank"),
    "set %": _share("set_recall"),
    "permuted %": _share("permuted"),
    "criterion passed right/wrong, failed right/wrong": _confusion,
    "residual/floor": _number("residual_floors"),
    "margin bits": _number("margin_bits"),
    "at floor": _number("at_floor"),
    "enumerated": _number("enumerated"),
    "false accepts": _number("false_accepts"),
    "evaluations": _number("evaluations"),
    "seconds": _number("seconds"),
    "steps to solve": _number("steps_to_solve"),
    "solved": lambda record: _count(record["solved"]),
    "diverged": lambda record: _count(record["diverged"]),
    "rows": _number("rows"),
    "prompts": _number("prompts"),
    "models": _number("models"),
}
_VERDICTS: dict[str, Callable[[Record], str]] = {
    **{
        f"{words}: {name.replace('_', ' ')} %": _with_interval(f"{kind}_{name}")
        for kind, words in (("self", "self"), ("nonself", "non-self"))
        for name in SHORT.values()
    },
    "methods": _number("methods"),
    "prompts": _number("prompts"),
    "models": _number("models"),
}
