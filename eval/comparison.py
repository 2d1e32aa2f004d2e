"""Checkpoints side by side over everything measured, a line each.

Checkpoints of one model and step (`eval.gather`) are one entry, whose figures are its run's and the
summary's (`eval.summary.cells`). A comparison is entries by columns, in sections by kind of row.
"""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from statistics import fmean, median
from typing import Any, NamedTuple

from eval import RequestError
from eval.cells import COMPARED, LAST, Cell, cells, seeds_mean
from eval.gather import Saved, finite, labelled
from eval.quantities import Estimate
from eval.recovery import SHUFFLED
from eval.rows import finite_or_none
from eval.tables import NONE, Table, duration_text, group, interval_text, text

MODEL = ("mixers", "d_model", "n_layers", "context")
SECTIONS = ("training", "loss", "recovery", "probe", "geometry")
"""In the order of reading; others follow."""
KEPT = ("layer", "slice", "method", "offset")
"""Places that are dropped from columns' names last."""
VARIATIONS = ("without", "noise", "control", "padded")
"""Places of recoveries that are empty for the plain question."""
NO_BREAK = "\u00a0"


class Compared(NamedTuple):
    """A figure of a section, at places by name; `share` and `main` are as in `eval.quantities`."""

    section: str
    name: str
    places: tuple[tuple[str, Hashable], ...] = ()
    share: bool = False
    main: bool = True


TRAIN_LOSS = Compared("loss", "training nats/token")
VALID_BITS = Compared("loss", "validation bits/byte")
TOKENS = Compared("training", "tokens")
FLOPS = Compared("training", "FLOPs")
SECONDS = Compared("training", "seconds")


@dataclass
class Entry:
    """One line of the table: a model at a step, as one checkpoint or one of each seed."""

    label: str
    step: int
    checkpoints: list[Saved]

    @property
    def identity(self) -> dict[str, Any]:
        """The model, its sizes, the step, and the number of seeds."""
        about = self.checkpoints[0].about
        return {
            "model": self.label,
            "step": self.step,
            "mixers": ", ".join(about.get("mixers") or ()),
            **{name: about.get(name) for name in MODEL if name != "mixers"},
            "seeds": len(self.checkpoints),
        }

    @cached_property
    def figures(self) -> dict[Compared, Estimate]:
        """Everything measured."""
        rows = [row for checkpoint in self.checkpoints for row in checkpoint.rows]
        figures = _of_runs(self.checkpoints)
        for cell in cells(rows, pool_lengths=True):
            figures |= _of_cell(cell)
        return figures


class Column(NamedTuple):
    """A quantity, its name, unique in the section, and the lengths of its prompts in words."""

    quantity: Compared
    name: str
    lengths: str = ""

    @property
    def heading(self) -> str:
        """The name with the lengths that it pools and its unit."""
        return ", ".join(filter(None, (self.name, self.lengths, "%" * self.quantity.share)))

    @property
    def words(self) -> str:
        """The name with plain blanks, as a user types it."""
        return self.name.replace(NO_BREAK, " ")

    def fits(self, pattern: str) -> bool:
        """Whether a pattern names its section, or fits its name or a part of it."""
        text = f"{self.quantity.section} {self.heading}".replace(NO_BREAK, " ").lower()
        wanted = pattern.lower()
        if wanted in ("all", self.quantity.section):
            return True
        return fnmatchcase(text, wanted) or wanted in text


@dataclass(frozen=True)
class Comparison:
    """The whole table.

    Attributes:
        entries: the lines.
        columns: of all sections, in the order of reading.
        shared: by section, what all its columns have in common.
        left_out: how many columns are neither shown by default nor asked for.
    """

    entries: list[Entry]
    columns: list[Column]
    shared: dict[str, str]
    left_out: int

    @property
    def sections(self) -> dict[str, list[Column]]:
        """The columns by section."""
        return group(self.columns, lambda column: column.quantity.section)

    def tables(self) -> list[Table]:
        """A table a section, with the entries for which it has a figure.

        The section of training gives the models' sizes, too.
        """
        tables = []
        for section, columns in self.sections.items():
            about = ["model", "step"]
            if section == "training":
                several = any(len(entry.checkpoints) > 1 for entry in self.entries)
                about += [*MODEL, *["seeds"] * several]
            lines = [
                [text(entry.identity[name]) for name in about]
                + [_cell(column.quantity, entry.figures.get(column.quantity)) for column in columns]
                for entry in self.entries
                if any(column.quantity in entry.figures for column in columns)
            ]
            shared = self.shared.get(section)
            title = section.capitalize() + (f" (all: {shared})" if shared else "")
            headings = [*about, *(column.heading for column in columns)]
            tables.append(Table(headings, lines, title))
        return tables

    def records(self) -> list[dict[str, Any]]:
        """One record a checkpoint and quantity, numbers and places in full."""
        return [
            entry.identity
            | {"section": quantity.section, "quantity": quantity.name}
            | estimate._asdict()
            | {"value": finite_or_none(estimate.value), "lengths": _lengths([estimate])}
            | dict(quantity.places)
            for entry in self.entries
            for quantity, *_ in self.columns
            if (estimate := entry.figures.get(quantity))
        ]


def lay_side_by_side(
    entries: list[Entry], chosen: Sequence[str] | None = None, sort: str | None = None
) -> Comparison:
    """Lays the entries side by side.

    Args:
        entries: the lines.
        chosen: columns, by their names or patterns of them such as `*adam*`; `all` for all; the
            main quantities when not given.
        sort: a column's name, `-` before it for the largest first; by model and step otherwise.

    Raises:
        RequestError: a name or pattern that fits no column, or several where it must fit one.
    """
    columns, shared = _columns(entries)
    for pattern in chosen or ():
        if not any(column.fits(pattern) for column in columns):
            raise RequestError(
                f"--columns {pattern}: fits none of {len(columns)} columns; {_known(columns)}"
            )
    shown = [
        column
        for column in columns
        if (column.quantity.main if chosen is None else any(map(column.fits, chosen)))
    ]
    if sort is not None:
        entries = _sorted(entries, columns, sort)
    return Comparison(entries, shown, shared, len(columns) - len(shown))


def find_column(columns: Sequence[Column], wanted: str) -> Column:
    """The one column of that name, or the one that it fits; for `--sort`.

    Raises:
        RequestError: none, or several.
    """
    exact = [column for column in columns if column.words == wanted]
    fits = exact or [column for column in columns if column.fits(wanted)]
    if len(fits) == 1:
        return fits[0]
    if not fits:
        raise RequestError(f"--sort {wanted}: there is no such column; {_known(columns)}")
    raise RequestError(f"--sort {wanted}: fits {len(fits)} columns; {_known(fits)}")


def enter(checkpoints: Iterable[Saved], every_seed: bool = False) -> list[Entry]:
    """The lines, model by model in the order of their names, then by step.

    Args:
        checkpoints: of any models.
        every_seed: keep training seeds apart.
    """
    entries = [
        Entry(label, step, alike)
        for label, several in labelled(checkpoints, every_seed).items()
        for step, alike in group(several, lambda checkpoint: checkpoint.step).items()
    ]
    return sorted(entries, key=lambda entry: (_natural(entry.label), entry.step))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sorts numbers in names by their size."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part)
            for part in re.split(r"(\d+)", name)]  # fmt: skip


def _of_runs(checkpoints: Sequence[Saved]) -> dict[Compared, Estimate]:
    """The figures of training: sizes and costs, and losses with an interval over the seeds."""
    costs: dict[Compared, list[float | None]] = {
        Compared("training", "parameters"): [c.about.get("parameters") for c in checkpoints],
        TOKENS: [c.tokens_seen for c in checkpoints],
        FLOPS: [c.flops(c.tokens_seen) for c in checkpoints],
        SECONDS: [c.seconds(c.step) for c in checkpoints],
        Compared("training", "tokens/s"): [_speed(c) for c in checkpoints],
    }
    losses: dict[Compared, list[float | None]] = {
        TRAIN_LOSS: [c.run.at(c.step, "loss") if c.run else None for c in checkpoints],
        Compared("loss", "validation nats/token"): [
            c.meta.get("val_loss", c.about.get("val_loss")) for c in checkpoints
        ],
        VALID_BITS: [c.meta.get("val_bits_per_byte") for c in checkpoints],
    }
    figures = {}
    for quantity, values in (costs | losses).items():
        if known := [value for value in values if value is not None and finite(value)]:
            alone = Estimate(fmean(known), n=len(known))
            figures[quantity] = seeds_mean(known) if quantity in losses else alone
    return figures


def _speed(checkpoint: Saved) -> float | None:
    rows = checkpoint.run.metrics if checkpoint.run else []
    speeds = [r["tokens_per_second"] for r in rows if finite(r.get("tokens_per_second"))]
    return median(speeds) if speeds else None


def _of_cell(cell: Cell) -> dict[Compared, Estimate]:
    """The figures of a cell of the summary; the model's last layer is called so."""
    places = cell.where
    main = places.get("layer", LAST) == LAST
    known = {quantity.name: quantity for quantity in cell.quantities}
    if cell.kind == "recovery":
        places |= {
            "prompts": places["prompt_kind"],
            "control": SHUFFLED if places["control"] == SHUFFLED else "",
        }
        names = ("layer", "part", "slice", "prompts", *VARIATIONS, "method", "settings")
        places = {name: places[name] for name in names}
        main = main and places["part"] == "block" and not any(places[n] for n in VARIATIONS)
        asked = {"nonself"} if cell.place["hidden"] else {"self", "nonself"}
        known = {name: replace(known[name], main=name in asked) for name in COMPARED}
    return {
        Compared(cell.kind, q.words, tuple(places.items()), q.share, main and q.main):
            cell.figures[name]
        for name, q in known.items()
        if name in cell.figures
    }  # fmt: skip


def _cell(quantity: Compared, estimate: Estimate | None) -> str:
    if estimate is None:
        return NONE
    if quantity == SECONDS:
        return duration_text(estimate.value)
    return interval_text(*estimate[:3], quantity.share)


def _columns(entries: list[Entry]) -> tuple[list[Column], dict[str, str]]:
    """All columns, and by section what its columns have in common."""
    quantities = dict.fromkeys(q for entry in entries for q in entry.figures)
    sections = group(quantities, lambda quantity: quantity.section)
    order = [*(s for s in SECTIONS if s in sections), *(s for s in sections if s not in SECTIONS)]
    columns, shared = [], {}
    for section in order:
        in_section = sections[section]
        dropped = _unneeded(in_section)
        values = {name: _values(in_section, name) for name in sorted(dropped)}
        common = [f"{name} {value}" for name, (value, *others) in values.items()
                  if value and not others]  # fmt: skip
        lengths = {q: _lengths(e.figures[q] for e in entries if q in e.figures) for q in in_section}
        if len(set(lengths.values())) == 1:
            common += filter(None, [lengths[in_section[0]]])
            lengths = {}
        shared[section] = ", ".join(common)
        settings = _settings(in_section, dropped)
        if section not in ("training", "loss"):
            names = list(dict.fromkeys(quantity.name for quantity in in_section))
            in_section.sort(key=lambda q: (names.index(q.name), _natural(str(_kept(q, dropped)))))
        for quantity in in_section:
            words = [
                settings[quantity] if name == "settings" else _word(name, value)
                for name, value in quantity.places
                if name not in dropped
            ]
            name = " ".join([quantity.name, *filter(None, words)])
            columns.append(Column(quantity, name, lengths.get(quantity, "")))
    return columns, shared


def _lengths(figures: Iterable[Estimate]) -> str:
    """The lengths of all prompts of some figures, in words: `8 to 19 tokens`."""
    ends = [end for figure in figures for end in figure.lengths or ()]
    if not ends:
        return ""
    low, high = min(ends), max(ends)
    return f"{low} tokens" if low == high else f"{low} to {high} tokens"


def _values(quantities: list[Compared], place: str) -> list[Hashable]:
    """The values that a place takes."""
    return list({value for q in quantities for name, value in q.places if name == place})


def _unneeded(quantities: list[Compared]) -> set[str]:
    """Places without which the quantities of a section can still be told apart."""
    names = list(dict.fromkeys(name for q in quantities for name, _ in q.places))
    names.sort(key=lambda name: KEPT.index(name) if name in KEPT else -1)
    dropped: set[str] = set()
    for name in names:
        without = dropped | {name}
        kept = {(q.name, tuple(p for p in q.places if p[0] not in without)) for q in quantities}
        constant = len(_values(quantities, name)) == 1
        if len(kept) == len(quantities) and (name not in KEPT or constant):
            dropped = without
    return dropped


def _kept(quantity: Compared, dropped: set[str]) -> list[tuple[str, Hashable]]:
    return [p for p in quantity.places if p[0] not in dropped and p[0] != "settings"]


def _settings(quantities: list[Compared], dropped: set[str]) -> dict[Compared, str]:
    """Settings that tell apart quantities which differ in the settings of their method only."""
    settings = {}
    for several in group(quantities, lambda q: f"{q.name} {_kept(q, dropped)}").values():
        words = {q: str(dict(q.places).get("settings", "")).split() for q in several}
        common = set.intersection(*map(set, words.values()))
        settings |= {q: " ".join(word for word in words[q] if word not in common) for q in several}
    return settings


def _word(name: str, value: Hashable) -> str:
    """A place within a column's name."""
    if value in ("", False, 0.0) and name != "offset":
        return ""
    if name == "slice":
        return str(value).replace(" ", NO_BREAK)
    if name in ("method", "without", "control", "prompts", "part", "corpus"):
        return str(value)
    if name == "layer":
        return "" if value == LAST else f"layer {value}"
    if name == "offset" and isinstance(value, int):
        return f"t{value:+d}" if value else "t"
    return f"{name} {value}"


def _known(columns: Sequence[Column]) -> str:
    more = f" and {len(columns) - 8} more" if len(columns) > 8 else ""
    return f"there are: {'; '.join(column.words for column in columns[:8])}{more}"


def _sorted(entries: list[Entry], columns: list[Column], sort: str) -> list[Entry]:
    falls, name = sort.startswith("-"), sort.removeprefix("-")
    if name in ("model", "step"):
        return sorted(entries, key=lambda entry: entry.identity[name], reverse=falls)
    quantity = find_column(columns, name).quantity

    def place(entry: Entry) -> tuple[bool, float]:
        figure = entry.figures.get(quantity)
        return (figure is None, (-figure.value if falls else figure.value) if figure else 0.0)

    return sorted(entries, key=place)
