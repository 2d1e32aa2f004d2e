"""Measurements pooled into figures: `summarise` is the only place where lines become one.

Training seeds of one model (`eval.models.identity`) are pooled, and so are prompts and solver
seeds; any other coordinate only where the caller says so. Shares carry 95 % intervals clustered on
prompts and training seeds.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from eval.analysis.frame import KINDS, LINE, MODEL, Frame, Quantity, frame, quantities
from eval.analysis.statistics import Interval, clustered, prompt_fraction, token_fraction
from eval.drawing.tables import Column
from eval.messages import RequestError
from eval.rows.schema import Row

Record = dict[str, Any]
Estimate = tuple[float, float | None, float | None, int]
"""A value, its limits if it has any, and how many prompts or models it is of."""

SAMPLED = ("key", "name", "model_id", "weights", "prompt", "seed", "length", "drawn_from",
           "cluster", "pool", *LINE)  # fmt: skip
"""Columns of a frame that are pooled always: prompts, seeds, and what was measured."""
COUNTS = ("rows", "prompts", "models")
ALIKE = 1e-12
"""Limits nearer to each other are one: draws of equal values differ by rounding."""


def tell_prompts_apart(lines: Frame) -> Frame:
    """Lines whose drawn prompts have several lengths or corpora name them in their set of prompts.

    Longer prompts are another question, and so are those of another corpus. Texts that were given
    have each a length of its own.
    """
    drawn = lines[lines["prompt_kind"].notna() & (lines["prompt_kind"] != "text")]
    sets, names = drawn.groupby(["prompt_kind", "padded"]), drawn["prompt_kind"].tolist()
    for column, words in (("length", " of {} tokens"), ("drawn_from", " from {}")):
        differs = sets[column].transform("nunique") > 1
        told = zip(names, drawn[column].fillna("another corpus"), differs, strict=True)
        names = [name + words.format(value) * apart for name, value, apart in told]
    lines = lines.copy()
    lines.loc[drawn.index, "prompt_kind"] = names
    return lines


def summarise(lines: Frame, by: Sequence[str], pool: Sequence[str] = ()) -> Frame:
    """Pools measurements: a line for each quantity and each combination of values of `by`.

    Columns: those of `by`, quantity, value, low, high (NaN without an interval), n (prompts, or
    models where each has one figure) and models.

    Args:
        lines: of `eval.analysis.frame.frame`.
        by: the coordinates that tell figures apart.
        pool: coordinates that are pooled, whatever their values.

    Raises:
        RequestError: there are no lines, or another coordinate varies within a combination.
    """
    import pandas

    if lines.empty:
        raise RequestError("no rows: there is nothing to sum up; run `python -m eval invert` first")
    by = [name for name in by if name in lines]
    _refuse_to_pool(lines, by, pool)
    groups = lines.groupby([*by, "quantity"], dropna=False, sort=False)
    order = np.argsort(groups.ngroup().to_numpy(), kind="stable")
    ends = np.cumsum(groups.size().to_numpy())
    columns = {name: lines[name].to_numpy()[order] for name in ("cluster", "weights", *LINE[2:])}
    rules, firsts, figures = lines["pool"].to_numpy()[order], [], []
    for start, end in zip([0, *ends], ends, strict=False):
        group = {name: column[start:end] for name, column in columns.items()}
        firsts.append(order[start])
        figures.append((*POOLS[rules[start]](group), len(set(group["weights"]))))
    figures = pandas.DataFrame(figures, columns=["value", "low", "high", "n", "models"])
    figures = figures.astype({"low": float, "high": float})
    named = lines[[*by, "quantity"]].iloc[firsts].reset_index(drop=True)
    return pandas.concat([named, figures], axis=1)


def _refuse_to_pool(lines: Frame, by: list[str], pool: Sequence[str]) -> None:
    others = [name for name in lines if name not in (*by, *pool, *SAMPLED)]
    different = lines[[*by, "quantity", *others]].drop_duplicates()
    mixed = different[different.duplicated([*by, "quantity"], keep=False)]
    for name in others if len(mixed) else ():
        values = mixed.groupby([*by, "quantity"], dropna=False)[name]
        if (values.nunique(dropna=False) > 1).any():
            examples = ", ".join(map(str, mixed[name].unique()[:4]))
            raise RequestError(
                f"a figure would pool {name} {examples}; name it in `by`, or in `pool` if that is "
                "meant"
            )


def _clustered(
    estimate: Callable[..., Interval], *counts: str
) -> Callable[[dict[str, np.ndarray]], Estimate]:
    """How lines are pooled by an estimate over prompts and models."""

    def pooled(lines: dict[str, np.ndarray]) -> Estimate:
        prompts, models = lines["cluster"].tolist(), lines["weights"].tolist()
        found = estimate(*(lines[name].tolist() for name in counts), prompts, models)
        return _limited(found, len(set(prompts)))

    return pooled


def _limited(found: Interval, n: int) -> Estimate:
    """A figure of n; without an interval where nothing varies, as of two prompts alike."""
    alike = math.isclose(found.low, found.high, abs_tol=ALIKE)
    low, high = (None, None) if alike else (found.low, found.high)
    return found.estimate, low, high, n


def _mean(values: Sequence[float], prompts: Sequence[Any], models: Sequence[Any]) -> Interval:
    if not np.isfinite(values).all():
        return Interval(*[float(np.mean(values))] * 3)
    return clustered(values, [1.0] * len(values), prompts, models)


def _over_seeds(lines: dict[str, np.ndarray]) -> Estimate:
    """The mean over training seeds, with Student's interval where there are several."""
    values, weights = lines["value"], lines["weights"]
    if len(values) == 1:
        low, high = (None if np.isnan(lines[end][0]) else lines[end][0] for end in ("low", "high"))
        return values[0], low, high, int(lines["n"][0])
    return seeds_mean([values[weights == model].mean() for model in dict.fromkeys(weights)])


def seeds_mean(values: Sequence[float]) -> Estimate:
    """The mean of one figure of each of some models; without an interval where they are alike."""
    n = len(values)
    return _limited(_mean(values, [0] * n, range(n)), n)


def _plain(reduce: Callable[[np.ndarray], Any]) -> Callable[[dict[str, np.ndarray]], Estimate]:
    def pooled(lines: dict[str, np.ndarray]) -> Estimate:
        return float(reduce(lines["value"])), None, None, len(set(lines["cluster"]))

    return pooled


POOLS: dict[str, Callable[[dict[str, np.ndarray]], Estimate]] = {
    "share": _clustered(token_fraction, "hits", "n"),
    "ratio": _clustered(clustered, "hits", "n"),
    "whole": _clustered(prompt_fraction, "hits"),
    "mean": _clustered(_mean, "value"),
    "seeds": _over_seeds,
    "median": _plain(np.median),
    "least": _plain(np.min),
    "sum": _plain(np.sum),
}
"""How lines become one figure, by the rule of their quantity."""


def columns(kind: str) -> list[Column]:
    """The figures of a kind as columns of a table."""
    return [(q.name, q.words, q.percent) for q in KINDS[kind].quantities]


def summarise_rows(
    rows: Iterable[Row], kind: str = "recovery", every_seed: bool = False
) -> list[Record]:
    """The figures of rows of one kind, a record for each model, step and set of coordinates.

    It holds the columns of `MODEL`, the coordinates, each figure with `_low` and `_high` if its
    quantity has intervals and `_n` if it is of a lens (None where it is not known), and the counts
    `rows`, `prompts` (as rows of lenses say it) and `models`. They come in the order of reading.

    Args:
        every_seed: keep checkpoints apart that differ in their training seed only.

    Raises:
        RequestError: there are no such rows.
    """
    rows = [row for row in rows if row["kind"] == kind]
    if not rows:
        command = "invert" if kind == "recovery" else kind
        raise RequestError(
            f"no rows: there is nothing to sum up; run `python -m eval {command}` first"
        )
    return summary_records(frame(rows, every_seed), every_seed=every_seed)


def summary_records(
    lines: Frame, known: Sequence[Quantity] = (), every_seed: bool = False
) -> list[Record]:
    """The figures of lines of one kind side by side: see `summarise_rows`.

    `known` are the quantities, those of the kind when not given.
    """
    kind, models = lines["kind"].iloc[0], list(dict.fromkeys(lines["model"]))
    coordinates = [name for name in lines.columns[lines.notna().any()]
                   if name not in (*SAMPLED, "kind")]  # fmt: skip
    by = [*coordinates, "weights"] if every_seed else coordinates
    counts = lines.groupby(by, dropna=False, sort=False)[["key", "cluster", "weights"]].nunique()
    groups = counts.index.to_frame(index=False).astype(object)
    ends = ["", "_low", "_high", *["_n"] * (kind == "lens")]
    empty = dict.fromkeys(MODEL), _empty_figures(known or quantities(lines), ends)
    records: dict[Any, Record] = {}
    for group, numbers in zip(groups.itertuples(index=False), counts.to_numpy(), strict=True):
        values = dict(zip(by, _without_nan(group), strict=True))
        given = {name: values[name] for name in coordinates if values[name] is not None}
        numbered = dict(zip(COUNTS, map(int, numbers), strict=True))
        if "prompts" in given:  # rows of lenses say it
            numbered["prompts"] = given["prompts"]
        records[tuple(values.values())] = empty[0] | given | empty[1] | numbered
    figures = summarise(lines, by, pool=["kind"])
    for *group, quantity, value, low, high, n, _ in figures.itertuples(index=False):
        record, found = records[_without_nan(group)], (value, *_without_nan((low, high)), n)
        for end, number in zip(ends, found, strict=False):
            if not end or f"{quantity}{end}" in record:
                record[f"{quantity}{end}"] = number
    return sorted(records.values(), key=lambda record: _reading_order(kind, record, models))


def _empty_figures(known: Iterable[Quantity], ends: Sequence[str]) -> Record:
    """The fields of quantities, all None: of each its value, and its limits if it has any."""
    names = []
    for quantity in known:
        limited = quantity.pool not in ("median", "least", "sum")
        names += [f"{quantity.name}{end}" for end in (ends if limited else ends[:1])]
    return dict.fromkeys(names)


def _without_nan(values: Iterable[Any]) -> tuple[Any, ...]:
    """Values with None for NaN, which is unequal to itself."""
    return tuple(value if value == value else None for value in values)


def _reading_order(kind: str, record: Record, models: list[str]) -> tuple[Any, ...]:
    """Plain recoveries before the others, model by model; other kinds as they come."""
    model = models.index(record["model"])
    if kind != "recovery":
        return (kind, model, record["step"])
    plain = not (record["control"] or record["noise"] or record["without"] or record["padded"])
    where = ("prompt_kind", "without", "control", "noise", "padded", "step", "part", "layer")
    what = ("hidden", "slice", "observed", *(n for n in ("solver", "family", "settings")
            if n in record))  # fmt: skip
    return (kind, not plain, model, *(record[name] for name in (*where, *what)))
