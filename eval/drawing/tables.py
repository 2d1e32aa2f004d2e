"""Tables of figures: the one place where numbers become words, and words become tables.

A `Table` is headings and cells. It prints to a terminal, in few lines, and as Markdown, in full;
records of figures also go into CSV. A number reads the same in all.
"""

import math
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from arch.errors import printable
from eval.messages import legible

NONE = "–"
PIPE = 160
"""Characters of a line where no terminal says how wide it is."""
LINES = 23
"""Lines of the tables that a command prints; with its notes they are 25."""
LEAST = 10
"""Lines that are left of each of several tables: its title, its headings, and some lines."""

Record = dict[str, Any]
Column = tuple[str, str, bool]
"""A figure in a table: its name in records, its heading, whether it is shown in per cent."""


@dataclass(frozen=True)
class Table:
    """A table in words: headings, the cells of each line, a title above and a note below."""

    headings: list[str]
    lines: list[list[str]]
    title: str = ""
    note: str = ""

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which are aligned to the right."""
        cells = {line[column] for line in self.lines} - {"", NONE}
        return all(cell.lstrip("<>-(")[:1].isdigit() for cell in cells)


def percent_text(fraction: float, digits: int = 1) -> str:
    """A fraction in per cent, rounded; it reads 0 or 100 only where it is exactly that."""
    if fraction in (0, 1):
        return f"{100 * fraction:.0f}"
    text, least = f"{100 * fraction:.{digits}f}", 10.0**-digits
    if float(text) == 0:
        return f"<{least:g}"
    return f">{100 - least:g}" if float(text) == 100 else text


def whole_percent(fraction: float) -> str:
    """A fraction in whole per cent, by the rule of `percent_text`."""
    return percent_text(fraction, 0)


def chance_text(chance: float, digits: int, limit: float = 1.0) -> str:
    """A probability in some digits; it reads as the limit only where it is not below it."""
    text = f"{chance:.{digits}g}"
    return f">{limit - 10.0**-digits:g}" if chance < limit <= float(text) else text


def number_text(value: float) -> str:
    """Four digits below 100, as losses need them, three up to 1,000, whole numbers above."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    if abs(value) >= 999.5 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) < 100 else f"{value:.3g}"


def text(value: Any, percent: bool = False) -> str:
    """A figure or a field in a cell; a dash where there is none, `·` for blanks at its ends."""
    if value is None or value != value:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int | float):
        return percent_text(value) if percent else number_text(value)
    return re.sub("^ +| +$", lambda blanks: "·" * len(blanks[0]), str(value))


def interval_text(value: Any, low: Any, high: Any, percent: bool = False) -> str:
    """A figure between its limits, where it has any."""
    if NONE in (text(value), text(low), text(high)):
        return text(value, percent)
    ends = text(low, percent), text(high, percent)
    return f"{text(value, percent)} ({(' to ' if '-' in ''.join(ends) else NONE).join(ends)})"


def duration_text(seconds: float) -> str:
    """A duration in words: `1.25 s`, `1 min 12 s`, `1 h 2 min`."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def cell(record: Record, name: str, percent: bool = False) -> str:
    """A record's figure, between its limits where it has any.

    Those of one prompt say nothing, unless they are over training seeds.
    """
    low, high = record.get(f"{name}_low"), record.get(f"{name}_high")
    seeds = record.get("models", record.get("seeds", 1))
    if record.get(f"{name}_n", record.get("prompts")) == seeds == 1:
        low = high = None
    return interval_text(record.get(name), low, high, percent)


def lay_out(
    records: Iterable[Record], fields: Sequence[str], columns: Sequence[Column], title: str = ""
) -> Table:
    """Records as lines: `fields` that name a line, then figures between their limits."""
    headings = [*fields, *(heading + " %" * percent for _, heading, percent in columns)]
    lines = [
        [
            *("" if record.get(name) is None else text(record[name]) for name in fields),
            *(cell(record, name, percent) for name, _, percent in columns),
        ]
        for record in records
    ]
    return Table(headings, lines, title)


def across(
    records: Iterable[Record],
    fields: Sequence[str],
    over: str,
    columns: Sequence[Column],
    title: str = "",
    order: Sequence[Any] = (),
) -> Table:
    """Records as a table with a column for each value of one field: a layer, an offset.

    Args:
        fields: they tell the lines apart.
        over: the field that tells the columns apart.
        columns: the figures of a cell, side by side; a single one stands between its limits.
        order: of the columns; default: numbers by size, then words as they come.
    """
    lines: dict[tuple[Any, ...], dict[Any, str]] = {}
    values: dict[Any, None] = {}
    for record in records:
        values[record[over]] = None
        shown = [text(record.get(name), percent) for name, _, percent in columns]
        if len(columns) == 1:
            shown = [cell(record, columns[0][0], columns[0][2])]
        lines.setdefault(tuple(record.get(n) for n in fields), {})[record[over]] = " ".join(shown)
    words = [value for value in values if isinstance(value, str)]
    order = order or [*sorted(values.keys() - words), *words]
    body = [["" if value is None else text(value) for value in named]
            + [line.get(value, "") for value in order]
            for named, line in lines.items()]  # fmt: skip
    return Table([*fields, *map(text, order)], body, title)


def terminal(*parts: Table | str, most: int = LINES) -> str:
    """Tables and lines as the terminal shows them, in its width.

    Some `most` lines: the longest part is cut first, to `LEAST` lines at least, and says how long
    it is and what prints the rest.
    """
    from rich.console import Console

    console = Console(
        markup=False, emoji=False, highlight=False, color_system=None, force_jupyter=False,
        width=None if _is_terminal() else PIPE,
    )  # fmt: skip
    texts = []
    for part in parts:
        with console.capture() as capture:
            drawings = _rich(part, most) if isinstance(part, Table) else [legible(part)]
            for drawn in drawings:
                console.print(drawn, soft_wrap=isinstance(drawn, str))
        texts.append([line.rstrip() for line in capture.get().rstrip().splitlines()] + [""])
    room = [len(text) for text in texts]
    while sum(room) > most + 1 and max(room) > LEAST:
        room[room.index(max(room))] -= 1
    lines: list[str] = []
    for part, text, left in zip(parts, texts, room, strict=True):
        count = len(part.lines if isinstance(part, Table) else text)
        cut = [*text[: left - 2], f"... of {count} lines; --format json has all", ""]
        lines += text if left == len(text) else cut
    return "\n".join(lines).rstrip()


def _is_terminal() -> bool:
    """Whether standard output has a width; rich takes FORCE_COLOR for a terminal."""
    with suppress(AttributeError, ValueError):  # there is none, or it is closed
        return sys.stdout.isatty()
    return False


def _legible(table: Table) -> Table:
    """A table whose every text is of one line that steers no terminal."""

    def line(cells: Sequence[str]) -> list[str]:
        return [printable(cell, len(cell)) for cell in cells]

    (title, note), lines = line([table.title, table.note]), list(map(line, table.lines))
    return Table(line(table.headings), lines, title, note)


def _rich(table: Table, most: int) -> list[Any]:
    from rich import box
    from rich import table as rich

    table = _legible(table)
    drawn = rich.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(table.headings):
        justify = "right" if table.numeric(i) else "left"
        drawn.add_column(heading, justify=justify, overflow="fold")
    for line in table.lines[:most]:
        drawn.add_row(*line)
    return [part for part in (table.title, drawn, table.note) if part != ""]


def markdown(table: Table) -> str:
    """A Markdown table below its title, and its note."""
    table = _legible(table)
    rule = ["---:" if table.numeric(i) else "---" for i in range(len(table.headings))]
    lines = [f"### {table.title}", ""] if table.title else []
    lines += ["| " + " | ".join(_MARKDOWN.sub(r"\\\g<0>", word) for word in line) + " |"
              for line in (table.headings, rule, *table.lines)]  # fmt: skip
    return "\n".join([*lines, *(["", f"{table.note}."] if table.note else [])]) + "\n"


_MARKDOWN = re.compile(r"[`|]|\*(?=\S)|<(?=[A-Za-z/!?])|\\(?=[!-/:-@[-`{-~])")
"""What Markdown would not show in a cell as it is."""


def to_csv(records: Sequence[Record]) -> str:
    """All fields of all records, numbers in full."""
    import pandas

    frame = pandas.DataFrame(list(records), dtype=object)
    return frame.to_csv(index=False, lineterminator="\n")
