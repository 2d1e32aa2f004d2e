"""Tables of figures: the one place where numbers become words, and words become tables.

A `Table` is headings and cells. It prints to a terminal, where a wide one is cut into several that
begin alike, and as Markdown; records of figures also go into CSV. A number reads the same in all.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import Any, TypeVar

NONE = "–"
PIPE = 160
"""Characters of a line where no terminal says how wide it is."""
LEAST = 60
"""Characters of a line, at least."""
MODEL = ("mixers", "d_model", "n_layers", "context")
"""Fields of a record that say how its model is built."""
UNSHOWN = (*MODEL, "hidden", "family", "lengths", "rows", "prompts", "models")
"""Fields of a record that tables do not show unasked: files have them."""
WORDS = {"prompt_kind": "prompts of"}

Record = dict[str, Any]
Item = TypeVar("Item")
Column = tuple[str, str, bool]
"""A figure in a table: its name in records, its heading, whether it is shown in per cent."""


@dataclass(frozen=True)
class Table:
    """A table in words.

    Attributes:
        headings: of the columns.
        lines: the cells of each line.
        keep: the first columns, which name a line; each part of a wide table repeats them.
        title: stands above it.
        constant: values that all lines share, said once.
        most: lines that a terminal shows, at most.
    """

    headings: list[str]
    lines: list[list[str]]
    keep: int = 1
    title: str = ""
    constant: dict[str, str] = field(default_factory=dict)
    most: int | None = None

    @property
    def shared(self) -> str:
        """The shared values, in a line."""
        return "; ".join(f"{heading}: {value}" for heading, value in self.constant.items())

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which are aligned to the right."""
        cells = {line[column] for line in self.lines} - {"", NONE}
        return all(cell.lstrip("<>-(")[:1].isdigit() for cell in cells)


def group(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """Items by key, in the order of first appearance."""
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def share_text(share: float, digits: int = 1) -> str:
    """A share in per cent, rounded; it reads 0 or 100 only where it is exactly that."""
    if share in (0, 1):
        return f"{100 * share:.0f}"
    text, least = f"{100 * share:.{digits}f}", 10.0**-digits
    if float(text) == 0:
        return f"<{least:g}"
    return f">{100 - least:g}" if float(text) == 100 else text


def percent(share: float) -> str:
    """A share in whole per cent, by the rule of `share_text`."""
    return share_text(share, 0)


def number_text(value: float) -> str:
    """Four digits below 100, as losses need them, three up to 1,000, whole numbers above."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    if abs(value) >= 1000 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) < 100 else f"{value:.3g}"


def text(value: Any, share: bool = False) -> str:
    """A figure or a field in a cell; a dash where there is none."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int | float):
        return share_text(value) if share else number_text(value)
    return str(value)


def interval_text(value: Any, low: Any, high: Any, share: bool = False) -> str:
    """A figure between its limits, where it has any."""
    if value is None or (low is None and high is None):
        return text(value, share)
    ends = text(low, share), text(high, share)
    return f"{text(value, share)} ({(' to ' if '-' in ''.join(ends) else NONE).join(ends)})"


def duration_text(seconds: float) -> str:
    """A duration in words: `1.25 s`, `1 min 12 s`, `1 h 2 min`."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def lay_out(
    records: Sequence[Record],
    columns: Iterable[Column],
    title: str = "",
    places: Iterable[str] | None = None,
) -> Table:
    """Records as lines; a field that is the same in all is said once, an empty figure not at all.

    Args:
        records: of `eval.summary`: at least one.
        columns: the figures, in order.
        title: stands above.
        places: the fields that name a line; all that are no figure when not given.
    """
    figures = {heading + " %" * share: [cell(record, name, share) for record in records]
               for name, heading, share in columns}  # fmt: skip
    named = {name + end for name, _, _ in columns for end in ("", "_low", "_high")}
    fields = [n for n in places or records[0] if n not in {*named, *UNSHOWN}]
    cells = {WORDS.get(n, n): [_place(record, n) for record in records] for n in fields}
    constant = {heading: column[0] for heading, column in cells.items() if len(set(column)) == 1}
    if "settings" in cells and len(records) > 1:
        pairs = set(zip(cells["method"], cells["settings"], strict=True))
        if len(pairs) == len(set(cells["method"])):
            constant.pop("settings", None)
            constant |= {f"settings of {method}": text for method, text in sorted(pairs)}
            del cells["settings"]
    drawn = {heading: column for heading, column in cells.items() if heading not in constant}
    figures = {heading: column for heading, column in figures.items() if set(column) != {NONE}}
    return Table(
        [*drawn, *figures],
        [list(line) for line in zip(*drawn.values(), *figures.values(), strict=True)],
        len(drawn),
        title,
        {heading: value for heading, value in constant.items() if value},
    )


def across(
    records: Iterable[Record],
    places: Sequence[str],
    over: str,
    columns: Sequence[Column],
    title: str = "",
) -> Table:
    """Records as a table with a column for each value of one field: a layer, an offset.

    Args:
        records: each has its place, and some figures.
        places: fields that tell the lines apart.
        over: the field that tells the columns apart: numbers by size, then words as they come.
        columns: the figures of a cell, side by side; a single one stands between its limits.
        title: stands above.
    """
    lines: dict[tuple[Any, ...], dict[Any, str]] = {}
    values: dict[Any, None] = {}
    for record in records:
        values[record[over]] = None
        shown = [text(record.get(name), share) for name, _, share in columns]
        if len(columns) == 1:
            shown = [cell(record, columns[0][0], columns[0][2])]
        lines.setdefault(tuple(record.get(n) for n in places), {})[record[over]] = " ".join(shown)
    named = [value for value in values if isinstance(value, str)]
    order = [*sorted(values.keys() - named), *named]
    body = [[*(text(v) if v is not None else "" for v in place), *(line.get(v, "") for v in order)]
            for place, line in lines.items()]  # fmt: skip
    headings = [*places, *(text(value) for value in order)]
    return Table(headings, body, len(places), title)


def cell(record: Record, name: str, share: bool = False) -> str:
    """A record's figure, between its limits where it has any."""
    low, high = record.get(f"{name}_low"), record.get(f"{name}_high")
    return interval_text(record.get(name), low, high, share)


def terminal(*parts: Table | str, width: int | None = None) -> str:
    """Tables and lines as a terminal of some width shows them; its own width when not given."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, width=width)
    if width is None and not console.is_terminal:
        console.width = PIPE
    console.width = max(console.width, LEAST)
    with console.capture() as capture:
        for part in parts:
            for drawn in _rich(part, console.width) if isinstance(part, Table) else [part]:
                if drawn != "":
                    console.print(drawn, soft_wrap=isinstance(drawn, str))
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def markdown(table: Table) -> str:
    """A Markdown table below its title and the values that all lines share."""
    rule = ["---:" if table.numeric(i) else "---" for i in range(len(table.headings))]
    lines = [f"### {table.title}", ""] if table.title else []
    lines += [f"{table.shared}.", ""] if table.constant else []
    lines += [_line(cells) for cells in (table.headings, rule, *table.lines)]
    return "\n".join(lines) + "\n"


def to_csv(records: Sequence[Record]) -> str:
    """All fields of all records, numbers in full."""
    names = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def _place(record: Record, name: str) -> str:
    value = record.get(name)
    if name == "trained":
        return "" if value == (record["step"] > 0) else "no"
    return "" if value is None or (name == "noise" and not value) else text(value)


def _rich(table: Table, width: int) -> list[Any]:
    """The table in parts that fit the width, each with the columns that name a line."""
    from rich import box
    from rich import table as rich

    shown = table.lines[: table.most]
    headings = [
        "\n".join(fill(part, 14, break_long_words=False) for part in heading.split("\n"))
        for heading in table.headings
    ]
    wide = [
        max(max(map(len, heading.split("\n"))), *(len(line[i]) for line in shown)) + 3
        for i, heading in enumerate(headings)
    ]
    first = list(range(table.keep))
    parts, used = [[*first]], sum(wide[: table.keep])
    for i in range(table.keep, len(headings)):
        if used + wide[i] > width and len(parts[-1]) > table.keep:
            parts.append([*first])
            used = sum(wide[: table.keep])
        parts[-1].append(i)
        used += wide[i]
    drawn: list[Any] = [table.title, table.shared]
    for part in parts:
        one = rich.Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for i in part:
            justify = "right" if table.numeric(i) else "left"
            one.add_column(headings[i], justify=justify, no_wrap=used <= width or i >= table.keep)
        for line in shown:
            one.add_row(*(line[i] for i in part))
        drawn.append(one)
    more = len(table.lines) - len(shown)
    return [*drawn, f"... and {more} more lines in the rows" if more else ""]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
