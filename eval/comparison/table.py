"""The comparison as a table: its columns and their names, and its lines in words or in full."""

import csv
import io
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from eval.comparison.entries import Entry, natural
from eval.comparison.figures import LOSS, SECONDS, TRAINING, Figure, Quantity
from eval.errors import RequestError
from eval.inversion.layout import NONE, number_text, share_text

SECTIONS = ("training", "loss", "recovery", "curve", "probe", "geometry", "basin")
"""In the order of reading; others follow."""
KEPT = ("layer", "slice", "method", "offset", "radius")
"""Places that are dropped from columns' names last."""
NO_BREAK = "\u00a0"
IDENTITY = ("model", "mixers", "d_model", "n_layers", "context", "step", "seeds")


@dataclass(frozen=True)
class Column:
    """One quantity.

    Attributes:
        quantity: what it holds.
        name: that no other column of its section has.
        lengths: of the prompts that it pools, in words; "" where the section says it for all.
    """

    quantity: Quantity
    name: str
    lengths: str = ""

    @property
    def heading(self) -> str:
        """The name with what it pools and its unit."""
        return ", ".join(filter(None, (self.name, self.lengths, "%" * self.quantity.share)))


@dataclass(frozen=True)
class Comparison:
    """The whole table.

    Attributes:
        entries: the lines.
        columns: of all sections, in the order of reading.
        shared: by section, what all its columns have in common.
        left_out: how many columns nobody chose and that are not shown unasked.
    """

    entries: list[Entry]
    columns: list[Column]
    shared: dict[str, str]
    left_out: int

    @property
    def sections(self) -> dict[str, list[Column]]:
        """The columns by section."""
        found: dict[str, list[Column]] = {}
        for column in self.columns:
            found.setdefault(column.quantity.section, []).append(column)
        return found


def compare(
    entries: list[Entry], chosen: Sequence[str] | None = None, sort: str | None = None
) -> Comparison:
    """Lays the entries side by side.

    Args:
        entries: the lines.
        chosen: columns, by their names or patterns of them such as `*adam*`; `all` for all; what
            is most often looked at when not given.
        sort: a column's name, `-` before it for the largest first; by model and step otherwise.

    Raises:
        RequestError: a name or pattern that fits no column, or several where it must fit one.
    """
    columns, shared = _columns(entries)
    if chosen is None:
        shown = [column for column in columns if column.quantity.plain]
    else:
        fits = {pattern: [c for c in columns if _fits(c, pattern)] for pattern in chosen}
        for pattern, own in fits.items():
            if not own:
                raise RequestError(
                    f"--columns {pattern}: fits none of {len(columns)} columns; {_known(columns)}"
                )
        shown = [column for column in columns if any(column in own for own in fits.values())]
    if sort is not None:
        entries = _sorted(entries, columns, sort)
    return Comparison(entries, shown, shared, len(columns) - len(shown))


def cell(column: Column, figure: Figure | None) -> str:
    """A figure with its interval, in words."""
    if figure is None:
        return NONE
    if column.quantity == SECONDS:
        return _duration(figure.value)
    show = share_text if column.quantity.share else _number
    text = show(figure.value)
    if figure.low is None and figure.high is None:
        return text
    low, high = (NONE if bound is None else show(bound) for bound in (figure.low, figure.high))
    return f"{text} ({low}–{high})" if "-" not in low + high else f"{text} ({low} to {high})"


def identity(entry: Entry) -> dict[str, Any]:
    """What a line is about."""
    about = entry.about
    return {
        "model": entry.label,
        "mixers": ", ".join(about.get("mixers") or ()),
        **{name: about.get(name) for name in ("d_model", "n_layers", "context")},
        "step": entry.step,
        "seeds": len(entry.checkpoints),
    }


def lines(table: Comparison, section: str) -> tuple[list[str], list[list[str]]]:
    """A section in words: its headings and cells; lines about which it says nothing are left out.

    The section of training says what the models are, too.
    """
    columns = table.sections[section]
    about = ["model", "step"]
    if section == TRAINING:
        several = any(len(entry.checkpoints) > 1 for entry in table.entries)
        about = [name for name in IDENTITY if several or name != "seeds"]
    found = []
    for entry in table.entries:
        figures = [entry.figures.get(column.quantity) for column in columns]
        if any(figures):
            known = identity(entry)
            cells = [_identified(known[name]) for name in about]
            found.append(cells + [cell(*pair) for pair in zip(columns, figures, strict=True)])
    return [*about, *(column.heading for column in columns)], found


def to_markdown(table: Comparison) -> str:
    """One Markdown table a section."""
    parts = []
    for section in table.sections:
        headings, rows = lines(table, section)
        rule = ["---" if name in ("model", "mixers") else "---:" for name in headings]
        parts.append(f"### {section.capitalize()}\n")
        if table.shared.get(section):
            parts.append(f"All: {table.shared[section]}.\n")
        parts += [_markdown(cells) for cells in (headings, rule, *rows)]
        parts.append("")
    return "\n".join(parts)


def to_rows(table: Comparison) -> list[dict[str, Any]]:
    """One row a checkpoint and quantity, numbers and places in full."""
    rows = []
    for entry in table.entries:
        for column in table.columns:
            figure = entry.figures.get(column.quantity)
            if figure is not None:
                about = {"section": column.quantity.section, "quantity": column.quantity.name}
                values = figure._asdict() | {"lengths": _lengths([figure])}
                rows.append(identity(entry) | about | values | dict(column.quantity.places))
    return rows


def to_csv(table: Comparison) -> str:
    """The rows, a line each."""
    places = list(dict.fromkeys(name for c in table.columns for name, _ in c.quantity.places))
    fields = [*IDENTITY, "section", "quantity", "value", "low", "high", "n", "lengths"]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*fields, *places], lineterminator="\n")
    writer.writeheader()
    writer.writerows(to_rows(table))
    return text.getvalue()


def find_column(columns: Iterable[Column], wanted: str, flag: str) -> Column:
    """The one column of that name, or the one that it fits.

    Raises:
        RequestError: none, or several.
    """
    columns = list(columns)
    exact = [c for c in columns if wanted == c.name.replace(NO_BREAK, " ")]
    fits = exact or [c for c in columns if _fits(c, wanted)]
    if len(fits) == 1:
        return fits[0]
    if not fits:
        raise RequestError(f"{flag} {wanted}: there is no such column; {_known(columns)}")
    raise RequestError(f"{flag} {wanted}: fits {len(fits)} columns; {_known(fits)}")


def _columns(entries: list[Entry]) -> tuple[list[Column], dict[str, str]]:
    quantities = list(dict.fromkeys(q for entry in entries for q in entry.figures))
    sections: dict[str, list[Quantity]] = {}
    for quantity in quantities:
        sections.setdefault(quantity.section, []).append(quantity)
    order = [*(s for s in SECTIONS if s in sections), *(s for s in sections if s not in SECTIONS)]
    columns, shared = [], {}
    for section in order:
        own = sections[section]
        dropped = _unneeded(own)
        values = {name: _values(own, name) for name in sorted(dropped)}
        only = {name: next(iter(known)) for name, known in values.items() if len(known) == 1}
        common = [f"{name} {value}" for name, value in only.items() if value]
        lengths = {q: _lengths(e.figures[q] for e in entries if q in e.figures) for q in own}
        if len(set(lengths.values())) == 1:
            common += filter(None, [lengths[own[0]]])
            lengths = {}
        shared[section] = ", ".join(common)
        settings = _settings(own, dropped)
        if section not in (TRAINING, LOSS):
            names = list(dict.fromkeys(quantity.name for quantity in own))
            own.sort(key=lambda q: (names.index(q.name), natural(str(_kept(q, dropped)))))
        for quantity in own:
            words = [
                settings[quantity] if name == "settings" else _word(name, value)
                for name, value in quantity.places
                if name not in dropped
            ]
            name = " ".join([quantity.name, *filter(None, words)])
            columns.append(Column(quantity, name, lengths.get(quantity, "")))
    return columns, shared


def _lengths(figures: Iterable[Figure]) -> str:
    """The lengths of all prompts of some figures, in words: `8 to 19 tokens`."""
    ends = [end for figure in figures for end in figure.lengths or ()]
    if not ends:
        return ""
    low, high = min(ends), max(ends)
    return f"{low} tokens" if low == high else f"{low} to {high} tokens"


def _unneeded(quantities: list[Quantity]) -> set[str]:
    """Places without which the quantities of a section can still be told apart."""
    names = list(dict.fromkeys(name for q in quantities for name, _ in q.places))
    names.sort(key=lambda name: KEPT.index(name) if name in KEPT else -1)
    dropped: set[str] = set()
    for name in names:
        without = dropped | {name}
        left = {(q.name, tuple(p for p in q.places if p[0] not in without)) for q in quantities}
        constant = len(_values(quantities, name)) == 1
        if len(left) == len(quantities) and (name not in KEPT or constant):
            dropped = without
    return dropped


def _values(quantities: list[Quantity], name: str) -> set[Hashable]:
    return {value for q in quantities for place, value in q.places if place == name}


def _kept(quantity: Quantity, dropped: set[str]) -> list[tuple[str, Hashable]]:
    return [p for p in quantity.places if p[0] not in dropped and p[0] != "settings"]


def _settings(quantities: list[Quantity], dropped: set[str]) -> dict[Quantity, str]:
    """What tells apart those quantities that differ in the settings of their method only."""
    alike: dict[str, list[Quantity]] = {}
    for quantity in quantities:
        alike.setdefault(f"{quantity.name} {_kept(quantity, dropped)}", []).append(quantity)
    found = {}
    for own in alike.values():
        words = {q: str(dict(q.places).get("settings", "")).split() for q in own}
        common = set.intersection(*map(set, words.values()))
        found |= {q: " ".join(word for word in words[q] if word not in common) for q in own}
    return found


def _word(name: str, value: Hashable) -> str:
    """A place within a column's name."""
    if value in ("", False, 0.0) and name != "offset":
        return ""
    if name == "slice":
        return str(value).replace(" ", NO_BREAK)
    if name in ("method", "without", "control", "prompts", "part", "corpus"):
        return str(value)
    if name == "layer":
        return "" if value == "last" else f"layer {value}"
    if name == "offset" and isinstance(value, int):
        return f"t{value:+d}" if value else "t"
    return f"{name} {value}"


def _fits(column: Column, pattern: str) -> bool:
    """Whether a column is meant: by its section, a pattern, or a part of its name."""
    text = f"{column.quantity.section} {column.heading}".replace(NO_BREAK, " ").lower()
    wanted = pattern.lower()
    if wanted in ("all", column.quantity.section):
        return True
    return fnmatchcase(text, wanted) or wanted in text


def _known(columns: list[Column]) -> str:
    names = [column.name.replace(NO_BREAK, " ") for column in columns]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"there are: {'; '.join(names[:8])}{more}"


def _sorted(entries: list[Entry], columns: list[Column], sort: str) -> list[Entry]:
    if sort.lstrip("-") in ("model", "step"):
        falls, name = sort.startswith("-"), sort.lstrip("-")
        return sorted(entries, key=lambda entry: identity(entry)[name], reverse=falls)
    quantity = find_column(columns, sort.removeprefix("-"), "--sort").quantity
    sign = -1 if sort.startswith("-") else 1

    def place(entry: Entry) -> tuple[bool, float]:
        figure = entry.figures.get(quantity)
        return (figure is None, sign * figure.value if figure else 0.0)

    return sorted(entries, key=place)


def _identified(value: Any) -> str:
    if value is None:
        return NONE
    return f"{value:,}" if isinstance(value, int) else str(value)


def _number(value: float) -> str:
    """Four digits below 100, as losses need them; large numbers by powers of ten."""
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    if 0 < abs(value) < 100 and value != round(value):
        return f"{value:.4g}"
    return number_text(value)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _markdown(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
