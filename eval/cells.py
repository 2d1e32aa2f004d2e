"""Rows summed up: one cell per model, training step and place, of rows of every kind.

Training seeds of one model (`eval.identity`) are pooled, and so are prompts and solver seeds.
`eval.quantities` declares the figures of each kind and how they are pooled. Shares carry 95 %
intervals clustered on prompts and training seeds.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from eval.identity import labels, model_of
from eval.quantities import Estimate, Place, Quantity, place, quantities, split_rows
from eval.recovery import prompt_of, weights
from eval.schema import Row
from eval.statistics import bits_of_text, clustered, exact_share, over_seeds, share
from eval.tables import Table, group, lay_out

Record = dict[str, Any]

LAST = "last"
"""The layer of a site that is the model's last one."""
COMPARED = ("self", "nonself", "exact", "set_recall", "permuted", "margin_bits", "false_accepts",
            "evaluations", "seconds")  # fmt: skip
"""The figures of recoveries that are compared and tracked."""


@dataclass(frozen=True)
class Cell:
    """Rows of one kind, model, training step and place, and their figures.

    Attributes:
        kind: of the rows.
        about: the model's label, its sizes, the step, and whether it was trained.
        place: where and how it was measured (`eval.quantities`).
        figures: the known ones, by the names of the quantities.
        rows: at least one.
    """

    kind: str
    about: Record
    place: Place
    figures: dict[str, Estimate]
    rows: list[Row]

    @property
    def quantities(self) -> list[Quantity]:
        """The quantities of its rows."""
        return _known(self.rows)

    @property
    def where(self) -> Place:
        """The place; the model's last layer is called `LAST`."""
        last = self.place.get("layer") == self.about["n_layers"]
        return self.place | ({"layer": LAST} if last and "layer" in self.place else {})

    @property
    def record(self) -> Record:
        """All of it in one dictionary; a figure that is not known is None.

        A share stands between its limits, `exact_low` and `exact_high`. `rows`, `prompts` and
        `models` are counts.
        """
        record = self.about | self.place
        for quantity in self.quantities:
            figure = self.figures.get(quantity.name)
            record[quantity.name] = figure and figure.value
            if quantity.pool not in ("median", "least", "sum"):
                record[f"{quantity.name}_low"] = figure and figure.low
                record[f"{quantity.name}_high"] = figure and figure.high
        return record | {
            "rows": len(self.rows),
            "prompts": len({prompt_of(row) for row in self.rows}),
            "models": len({weights(row) for row in self.rows}),
        }


def quantities_of(cells: Iterable["Cell"]) -> list[Quantity]:
    """The quantities of cells, each once."""
    return list({q.name: q for cell in cells for q in cell.quantities}.values())


def figures_table(
    cells: Sequence["Cell"],
    counts: Sequence[str] = (),
    title: str = "",
    main: Iterable[str] | None = None,
) -> Table:
    """The figures of cells of one kind, all or the main ones, and some counts of their records."""
    places = dict.fromkeys(name for cell in cells for name in cell.about | cell.place)
    known = [(q.name, q.words, q.share) for q in quantities_of(cells)]
    known += [(count, count, False) for count in counts]
    shown = [column for column in known if main is None or column[0] in main]
    return lay_out([cell.record for cell in cells], shown, title, places)


def cells(rows: Iterable[Row], every_seed: bool = False, pool_lengths: bool = False) -> list[Cell]:
    """Rows of every kind summed up, model by model in the order of reading.

    Args:
        rows: of any kinds; of equal keys the last counts.
        every_seed: keep checkpoints apart that differ in their training seed only.
        pool_lengths: make one cell of recoveries of prompts of all lengths; `lengths` is then the
            shortest and the longest, `hidden` and `observed` are those of the longest.
    """
    by_key = {row["key"]: row for row in rows}
    rows = [row for row in by_key.values() if "checkpoint" in row]
    names = labels(rows)

    def where(row: Row) -> Place:
        pooled = pool_lengths and row["kind"] == "recovery"
        return place(row) | ({"hidden": None, "observed": None} if pooled else {})

    def key(row: Row) -> Hashable:
        about = row["checkpoint"]
        model = (about["name"], weights(row)) if every_seed else model_of(row)
        return (row["kind"], model, about["step"], about.get("trained"), *where(row).items())

    summed = []
    for several in group(split_rows(rows), key).values():
        longest = max(several, key=lambda row: row.get("length", 0))
        checkpoint, there = longest["checkpoint"], place(longest)
        label = checkpoint["name"] if every_seed else names[model_of(longest)]
        if pool_lengths and longest["kind"] == "recovery":
            there["lengths"] = (min(row["length"] for row in several), longest["length"])
        about = _about(checkpoint, label)
        summed.append(Cell(longest["kind"], about, there, measure(several), several))
    order = list(dict.fromkeys(cell.about["model"] for cell in summed))
    return sorted(
        summed, key=lambda cell: _reading_order(cell.kind, cell.about | cell.place, order)
    )


def measure(rows: Sequence[Row], chosen: Iterable[Quantity] | None = None) -> dict[str, Estimate]:
    """The figures of rows of one kind and place, by the names of the quantities.

    Of each figure the rows that have it count; one that no row has is missing. `chosen` are the
    quantities, those of the kind when not given.
    """
    if chosen is None:
        chosen = _known(rows)
    figures = {}
    for quantity in chosen:
        known = [(row, value) for row in rows if (value := quantity.of(row)) is not None]
        if not known:
            continue
        having, values = zip(*known, strict=True)
        figure = _POOLS[quantity.pool](having, values)
        if quantity.pool not in ("seeds", "text"):
            figure = figure._replace(n=len({prompt_of(row) for row in having}))
        if having[0]["kind"] == "recovery":
            lengths = [row["length"] for row in having]
            figure = figure._replace(lengths=(min(lengths), max(lengths)))
        figures[quantity.name] = figure
    return figures


def _known(rows: Sequence[Row]) -> list[Quantity]:
    return list({quantity.name: quantity for row in rows for quantity in quantities(row)}.values())


def clusters(rows: Sequence[Row]) -> tuple[list[Hashable], list[Hashable]]:
    """The prompts and the models of rows, which intervals are clustered on."""
    return [prompt_of(row) for row in rows], [weights(row) for row in rows]


def _share(rows: Sequence[Row], hits: Sequence[tuple[float, int]]) -> Estimate:
    above, below = zip(*hits, strict=True)
    return Estimate(*share(above, below, *clusters(rows)))


def _mean(rows: Sequence[Row], values: Sequence[float]) -> Estimate:
    return Estimate(*clustered(values, [1.0] * len(values), *clusters(rows)))


def _over_seeds(rows: Sequence[Row], figures: Sequence[Estimate]) -> Estimate:
    """The mean over training seeds, with Student's interval where there are several."""
    if len(figures) == 1:
        return figures[0]
    models = group(zip(rows, figures, strict=True), lambda pair: weights(pair[0]))
    return seeds_mean([fmean(figure.value for _, figure in each) for each in models.values()])


def seeds_mean(values: Sequence[float]) -> Estimate:
    """The mean of one figure of each of some models; without an interval where they are alike."""
    interval = over_seeds(values)
    if interval is None or interval.low == interval.high:
        return Estimate(fmean(values), n=len(values))
    return Estimate(*interval, n=len(values))


def _text(rows: Sequence[Row], parts: Sequence[dict[str, list[Any]]]) -> Estimate:
    """Bits per byte of models on the same text."""
    interval = bits_of_text(parts, [weights(row) for row in rows])
    n = rows[0]["stories"]
    return Estimate(*interval, n=n) if interval else Estimate(rows[0]["bits_per_byte"], n=n)


_POOLS: dict[str, Callable[..., Estimate]] = {
    "share": _share,
    "mean": _mean,
    "whole": lambda rows, exact: Estimate(*exact_share(exact, *clusters(rows))),
    "text": _text,
    "seeds": _over_seeds,
    "median": lambda _, values: Estimate(median(values)),
    "least": lambda _, values: Estimate(min(values)),
    "sum": lambda _, values: Estimate(sum(values)),
}


def _about(checkpoint: Record, label: str) -> Record:
    return {
        "model": label,
        "mixers": ", ".join(checkpoint.get("mixers") or ()),
        **{name: checkpoint.get(name) for name in ("d_model", "n_layers", "context")},
        "step": checkpoint["step"],
        "trained": checkpoint.get("trained"),
    }


def _reading_order(kind: str, record: Record, models: list[str]) -> tuple[Any, ...]:
    """Plain recoveries before the others, model by model; other kinds as they come."""
    model = models.index(record["model"])
    if kind != "recovery":
        return (kind, model, record["step"])
    plain = not (record["control"] or record["noise"] or record["without"] or record["padded"])
    where = ("prompt_kind", "without", "control", "noise", "padded", "step", "part", "layer")
    what = ("hidden", "slice", "observed", "method", "family", "settings")
    return (kind, not plain, model, *(record[name] for name in (*where, *what)))
