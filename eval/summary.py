"""Rows summed up: one cell per model, training step and place, of rows of every kind.

Training seeds of one model (`eval.identity`) are pooled, and so are prompts and solver seeds; what
each kind of row measures, and how that is pooled, is declared in `eval.quantities`. Shares carry
95 % intervals clustered on prompts and training seeds.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

from eval.errors import RequestError
from eval.identity import identified, labels
from eval.quantities import MEASURED, Estimate, Place, Quantity, place, quantities, split_rows
from eval.recovery import (
    OF_SOLVER,
    VERDICTS,
    Joined,
    accepted,
    clusters,
    is_false_accept,
    join,
    prompt_of,
    shares,
    weights,
)
from eval.schema import Row
from eval.statistics import at_most, bits_of_text, clustered, exact_share, over_seeds, share

Record = dict[str, Any]

LAST = "last"
"""The layer of a site that is the model's last one."""
COMPARED = ("self", "nonself", "exact", "set_recall", "permuted", "margin_bits", "false_accepts",
            "evaluations", "seconds")  # fmt: skip
"""The figures of recoveries that are compared and tracked."""

SHORT = dict(zip(VERDICTS, ("gradient", "search", "ambiguous", "not_found"), strict=True))
"""Names of the verdicts in fields."""


@dataclass(frozen=True)
class Cell:
    """Rows of one kind, model, training step and place, and what they say together.

    Attributes:
        kind: of the rows.
        about: the model's label, its sizes, the step, and whether it was trained.
        place: where and how it was measured (`eval.quantities`).
        figures: what is known, by the names of the quantities.
        rows: at least one.
    """

    kind: str
    about: Record
    place: Place
    figures: dict[str, Estimate]
    rows: list[Row]

    @property
    def quantities(self) -> list[Quantity]:
        """What its rows measure."""
        return _known(self.rows)

    @property
    def where(self) -> Place:
        """The place, with the layer by name where it is the model's last one."""
        last = self.place.get("layer") == self.about["n_layers"]
        return self.place | ({"layer": LAST} if last and "layer" in self.place else {})

    @property
    def record(self) -> Record:
        """All of it in one dictionary; a figure that is not known is None.

        A share stands between its limits, `exact_low` and `exact_high`. `rows`, `prompts` and
        `models` count.
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


def columns(kind: str) -> list[tuple[str, str, bool]]:
    """The figures of a kind as columns of a table: name, heading, whether it is a share."""
    return [(q.name, q.words, q.share) for q in MEASURED[kind].quantities]


VERDICT_COLUMNS = [
    *((f"{kind}_{name}", f"{words}: {name.replace('_', ' ')}", True)
      for kind, words in (("self", "self"), ("nonself", "non-self"))
      for name in SHORT.values()),
    *((name, name, False) for name in ("methods", "prompts", "models")),
]  # fmt: skip
"""The figures of `summarise_verdicts`, as columns of a table."""


def recoveries(rows: Iterable[Row]) -> list[Row]:
    """The rows that recover a prompt, of equal keys the last; each says which model it is about."""
    return identified(
        row for row in {row["key"]: row for row in rows}.values() if row["kind"] == "recovery"
    )


def model_of(row: Row) -> str:
    """Equal for the training steps and seeds of one model (`eval.identity`)."""
    return row["checkpoint"]["model_id"]


def summarise(
    rows: Iterable[Row],
    kind: str = "recovery",
    every_seed: bool = False,
    pool_lengths: bool = False,
) -> list[Record]:
    """The records of the cells of one kind, in the order of reading: see `cells`.

    Raises:
        RequestError: there are no such rows.
    """
    kept = [row for row in rows if row["kind"] == kind]
    if not kept:
        command = "invert" if kind == "recovery" else kind
        raise RequestError(
            f"no rows: there is nothing to sum up; run `python -m eval {command}` first"
        )
    return [cell.record for cell in cells(kept, every_seed, pool_lengths)]


def cells(rows: Iterable[Row], every_seed: bool = False, pool_lengths: bool = False) -> list[Cell]:
    """Rows of every kind summed up, model by model in the order of reading.

    Args:
        rows: of any kinds; of equal keys the last counts.
        every_seed: keep checkpoints apart that differ in their training seed only.
        pool_lengths: make one cell of recoveries of prompts of all lengths; `lengths` is then the
            shortest and the longest, `hidden` and `observed` are those of the longest.
    """
    rows = identified(row for row in {row["key"]: row for row in rows}.values()
                      if "checkpoint" in row)  # fmt: skip
    names = labels(rows)
    groups: dict[Hashable, list[Row]] = {}
    for row in split_rows(rows):
        where = place(row)
        if pool_lengths and row["kind"] == "recovery":
            where |= {"hidden": None, "observed": None}
        about = row["checkpoint"]
        model = (about["name"], weights(row)) if every_seed else model_of(row)
        key = (row["kind"], model, about["step"], about.get("trained"), *where.items())
        groups.setdefault(key, []).append(row)
    summed = []
    for group in groups.values():
        longest = max(group, key=lambda row: row.get("length", 0))
        checkpoint = longest["checkpoint"]
        label = checkpoint["name"] if every_seed else names[model_of(longest)]
        where = place(longest)
        if pool_lengths and longest["kind"] == "recovery":
            where["lengths"] = (min(row["length"] for row in group), longest["length"])
        summed.append(
            Cell(longest["kind"], _about(checkpoint, label), where, measure(group), group)
        )
    order = list(dict.fromkeys(cell.about["model"] for cell in summed))
    return sorted(
        summed, key=lambda cell: _reading_order(cell.kind, cell.about | cell.place, order)
    )


def measure(rows: Sequence[Row], chosen: Iterable[Quantity] | None = None) -> dict[str, Estimate]:
    """What rows of one kind and place say together, by the names of the quantities.

    A figure that a row does not have is left out; one that no row has is missing.

    Args:
        rows: at least one.
        chosen: the quantities; those declared of the kind when not given.
    """
    if chosen is None:
        chosen = _known(rows)
    prompts = len({prompt_of(row) for row in rows})
    lengths = [row["length"] for row in rows if isinstance(row.get("length"), int)]
    ends = (min(lengths), max(lengths)) if rows[0]["kind"] == "recovery" else None
    figures = {}
    for quantity in chosen:
        known = [(row, value) for row in rows if (value := quantity.of(row)) is not None]
        if known and (figure := _POOLS[quantity.pool](*zip(*known, strict=True))):
            count = figure.n if quantity.pool in ("seeds", "text") else prompts
            figures[quantity.name] = figure._replace(n=count, lengths=ends)
    return figures


def _known(rows: Sequence[Row]) -> list[Quantity]:
    return list({quantity.name: quantity for row in rows for quantity in quantities(row)}.values())


def _share(rows: Sequence[Row], hits: Sequence[tuple[float, int]]) -> Estimate:
    above, below = zip(*hits, strict=True)
    return Estimate(*share(above, below, *clusters(rows)))


def _mean(rows: Sequence[Row], values: Sequence[float]) -> Estimate:
    return Estimate(*clustered(values, [1.0] * len(values), *clusters(rows)))


def _over_seeds(rows: Sequence[Row], figures: Sequence[Estimate]) -> Estimate:
    """The mean over training seeds, with Student's interval where there are several."""
    if len(figures) == 1:
        return figures[0]
    models: dict[str, list[float]] = {}
    for row, figure in zip(rows, figures, strict=True):
        models.setdefault(weights(row), []).append(figure.value)
    return seeds_mean([fmean(values) for values in models.values()])


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


def summarise_verdicts(rows: list[Row]) -> list[Record]:
    """Verdicts across methods, one line per question, where both families of methods were tried.

    A record's fields are those of a cell's place without its method, and for `self` and `nonself`
    tokens the share of each verdict with its interval: `nonself_gradient`, `_search`, `_ambiguous`,
    `_not_found`, each with `_low` and `_high`.
    """
    rows = recoveries(rows)
    names = labels(rows)
    groups: dict[Hashable, list[Joined]] = {}
    for joined in join(rows):
        if joined.decisive:
            row = joined.rows[0]
            where = {n: value for n, value in place(row).items() if n not in OF_SOLVER}
            key = (model_of(row), row["checkpoint"]["step"], row["checkpoint"]["trained"])
            groups.setdefault((*key, *where.items()), []).append(joined)
    records = []
    for group in groups.values():
        asked = [joined.rows[0] for joined in group]
        record = _about(asked[0]["checkpoint"], names[model_of(asked[0])]) | place(asked[0])
        record = {name: value for name, value in record.items() if name not in OF_SOLVER}
        for kind in ("self", "nonself"):
            known = shares(group, hidden=kind == "nonself") or {}
            for verdict, name in SHORT.items():
                values = known.get(verdict, (None,) * 3)
                fields = (f"{kind}_{name}{end}" for end in ("", "_low", "_high"))
                record |= dict(zip(fields, values, strict=True))
        records.append(record | {
            "methods": len({row["method"] for joined in group for row in joined.rows}),
            "prompts": len({prompt_of(row) for row in asked}),
            "models": len({weights(row) for row in asked}),
        })  # fmt: skip
    order = list(names.values())
    return sorted(records, key=lambda record: _reading_order("recovery", record, order))


class Accepts(NamedTuple):
    """Answers at the floor, and the wrong ones among them; what they are of.

    Attributes:
        wrong: answers at the floor that are false accepts.
        answers: answers at the floor.
        tokens: of those answers.
        wrong_pairs: pairs of prompt and model with a false accept.
        pairs: pairs of prompt and model with an answer at the floor.
    """

    wrong: int
    answers: int
    tokens: int
    wrong_pairs: int
    pairs: int

    @property
    def bound(self) -> float:
        """The share of pairs with a false accept, at most, with 95 % confidence; pairs >= 1.

        Tokens, layers, methods and seeds of one pair stand or fall together: they are one trial.
        """
        return at_most(self.wrong_pairs, self.pairs)


def accepts(rows: Iterable[Row]) -> Accepts:
    """What was accepted, and how much of it wrongly; controls and noisy targets left out."""
    answers = [r for r in recoveries(rows) if accepted(r) and not (r["control"] or r["noise"])]
    wrong = [row for row in answers if is_false_accept(row)]
    return Accepts(
        wrong=len(wrong),
        answers=len(answers),
        tokens=sum(row["length"] for row in answers),
        wrong_pairs=len({(prompt_of(row), weights(row)) for row in wrong}),
        pairs=len({(prompt_of(row), weights(row)) for row in answers}),
    )


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
    what = ("hidden", "slice", "observed", *(name for name in OF_SOLVER if name in record))
    return (kind, not plain, model, *(record[name] for name in (*where, *what)))
