"""Registered hypotheses against their rows, as the registration says they are judged.

Most are comparisons of means (`eval.information.contrasts`). Those about bits speak of changes: a
change is a figure at the last step minus the same passage's figure at the first step of the same
training seed. Intervals and p are of the pigeonhole bootstrap over passages and seeds (Owen 2007);
p is corrected by Holm (1979) over the architectures of a hypothesis.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.bit_figures import figure_lines
from eval.information.contrasts import (
    CONFIRMED,
    DRAWS,
    LEVEL,
    OPEN,
    REFUTED,
    Contrast,
    Record,
    answer_of,
    contrasts,
    correlations,
    holm,
    pigeonhole,
)
from eval.recovery import attempt
from eval.schema import Row
from eval.statistics import CONFIDENCE, Interval, clustered

RANK_DRAWS = 200  # of a rank correlation, which takes sorting anew
UP, DOWN, SAME, OTHER = "up", "down", "same", "other"

Figure = dict[str, Any]
"""Which figure of a row: quantity, distance, precision; and its scale, where that is log2."""


@dataclass(frozen=True)
class Change:
    """How a figure changes with training in one architecture.

    Attributes:
        before: its mean at the first step.
        mean: of the change, with its 95 % limits.
        p: two-sided, corrected; None where nothing was corrected for.
        seeds: the mean change of each training seed.
        pairs: of passage and seed.
        direction: up, down, same or other (not the same); open where that is not settled.
    """

    architecture: str
    before: float
    mean: Interval
    p: float | None
    seeds: tuple[float, ...]
    pairs: int
    direction: str


@dataclass(frozen=True)
class Finding:
    """A hypothesis, and what became of it.

    `prediction` is of one that a figure predicts another: the rank correlation and the mean error.
    """

    hypothesis: dict[str, Any]
    answer: str
    changes: tuple[Change, ...] = ()
    prediction: tuple[Interval, Interval] | None = None
    contrasts: tuple[Contrast, ...] = ()


def judge(registration: dict[str, Any], rows: Sequence[Row]) -> list[Finding]:
    """What became of each hypothesis; open where rows are lacking."""
    flat = records(rows)
    return [
        _compared(each, flat)
        if {"contrasts", "correlations"} & each.keys()
        else _finding(each, registration["design"], rows)
        for each in registration["hypotheses"]
    ]


def records(rows: Iterable[Row]) -> list[Record]:
    """Rows of an experiment as flat records: the row's fields, and what it says of the experiment.

    Of recoveries there is one record for each prompt and method, whatever its starts
    (`eval.recovery.attempt`).
    """
    starts: dict[tuple[Any, ...], list[Row]] = {}
    flat = []
    for row in rows:
        about = {**row["experiment"], "step": row["checkpoint"]["step"]}
        if row.get("kind") == "recovery":
            place = row["method"], row["hidden"], row["observed"], row["prompt"]
            starts.setdefault((*sorted(about.items()), *place), []).append(row)
        elif row.get("kind") == "bits":
            flat += [{**line, **about} for line in _by_distance(row)]
        else:
            windows = row.get("windows", [{}])
            flat += [{"prompt": i, **row, **each, **about} for i, each in enumerate(windows)]
    return flat + [
        attempt(group) | group[0]["experiment"] | {"step": group[0]["checkpoint"]["step"]}
        for group in starts.values()
    ]


def values(rows: Iterable[Row], figure: Figure) -> dict[tuple[str, int, int, int], float]:
    """A figure by architecture, seed, step and passage: of single outputs, a uniform prior."""
    wanted = {
        name: figure[name] for name in ("quantity", "distance", "precision") if name in figure
    }
    if figure["quantity"] == "bits":
        wanted |= {"shown": "alone", "prior": "uniform"}
    several = {}
    for row in rows:
        about = row["experiment"]
        for line in figure_lines(row, **wanted):
            if "channels" not in line:
                value = line["value"]
                if value is not None and figure.get("scale") == "log2":
                    value = math.log2(value) if value > 0 else None
                if value is not None:
                    place = about["architecture"], about["seed"], row["checkpoint"]["step"]
                    several[(*place, row["prompt"])] = value
    return several


def _compared(hypothesis: dict[str, Any], flat: Sequence[Record]) -> Finding:
    judged = contrasts if "contrasts" in hypothesis else correlations
    asked = hypothesis.get("contrasts") or hypothesis["correlations"]
    made = judged(asked, flat)
    return Finding(hypothesis, answer_of(asked, made), contrasts=tuple(made))


def _by_distance(row: Row) -> Iterator[dict[str, Any]]:
    """A row of bits as a record for each distance: of single outputs, a uniform prior."""
    plain = {name: value for name, value in row.items() if not isinstance(value, dict | list)}
    for distance, effect in zip(row["distances"], row["effect"], strict=True):
        wanted = {"quantity": "bits", "distance": distance, "shown": "alone", "prior": "uniform"}
        bits = {
            f"bits {line['precision']}": line["value"]
            for line in figure_lines(row, **wanted)
            if "channels" not in line
        }
        yield {**plain, "distance": distance, "effect": effect, **bits}


def _finding(hypothesis: dict[str, Any], design: dict[str, Any], rows: Sequence[Row]) -> Finding:
    if "predictor" in hypothesis:
        return _predicted(hypothesis, rows)
    expected = hypothesis["expected"]
    known = values(rows, hypothesis["figure"])
    changes = _changes(known, list(expected), design["steps"], hypothesis.get("within"))
    directions = [change.direction for change in changes]
    wanted = [expected[change.architecture] for change in changes]
    if len(changes) == len(expected) and directions == wanted:
        answer = CONFIRMED
    elif any(d not in (OPEN, w) for d, w in zip(directions, wanted, strict=True)):
        answer = REFUTED
    else:
        answer = OPEN
    return Finding(hypothesis, answer, tuple(changes))


def _changes(
    known: dict[tuple[str, int, int, int], float],
    architectures: Sequence[str],
    steps: Sequence[int],
    within: float | None,
) -> list[Change]:
    tables = []
    for architecture in architectures:
        pairs = {
            (passage, seed): (known[architecture, seed, steps[0], passage], last)
            for (name, seed, step, passage), last in known.items()
            if (name, step) == (architecture, steps[-1])
            and (architecture, seed, steps[0], passage) in known
        }
        if pairs:
            passages, seeds = (sorted({pair[i] for pair in pairs}) for i in (0, 1))
            table = np.full((len(passages), len(seeds)), np.nan)
            for (passage, seed), (before, after) in pairs.items():
                table[passages.index(passage), seeds.index(seed)] = after - before
            tables.append((architecture, table, float(np.mean([b for b, _ in pairs.values()]))))
    drawn = [pigeonhole(table) for _, table, _ in tables]
    tail = [2 * min((d <= 0).mean(), (d >= 0).mean()) for d in drawn]
    corrected = holm([max(p, 2 / DRAWS) for p in tail])
    changes = []
    for (name, table, before), draws, p in zip(tables, drawn, corrected, strict=True):
        ends = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        mean = Interval(float(np.nanmean(table)), *(float(end) for end in ends))
        seeds = tuple(float(x) for x in np.nanmean(table, axis=0))
        shown = None if within else p
        direction = _within(mean, within) if within else _direction(seeds, p)
        pairs = int((~np.isnan(table)).sum())
        changes.append(Change(name, before, mean, shown, seeds, pairs, direction))
    return changes


def _direction(seeds: Sequence[float], p: float) -> str:
    signs = {np.sign(seed) for seed in seeds}
    if p >= LEVEL or len(signs) > 1:
        return OPEN
    return UP if signs == {1} else DOWN


def _within(mean: Interval, bound: float) -> str:
    if -bound < mean.low and mean.high < bound:
        return SAME
    return OTHER if mean.low > bound or mean.high < -bound else OPEN


def _predicted(hypothesis: dict[str, Any], rows: Sequence[Row]) -> Finding:
    """Whether a figure stands for another, over all models, steps, passages and distances."""
    distances = rows[0]["distances"] if rows else []
    x, y, passages, seeds = [], [], [], []
    for distance in distances:
        place = {"distance": distance}
        predictors = values(rows, {"quantity": hypothesis["predictor"]} | place)
        asked = values(rows, hypothesis["figure"] | place)
        for key in predictors.keys() & asked.keys():
            x.append(predictors[key])
            y.append(asked[key])
            passages.append(key[3])
            seeds.append(key[1])
    if len(set(seeds)) < 2:
        return Finding(hypothesis, OPEN)
    order = np.lexsort((y, x, seeds, passages))  # dictionaries' keys have no order of their own
    X, Y, P, S = (np.array(each)[order] for each in (x, y, passages, seeds))
    correlation = _correlation(X, Y, P, S)
    errors = np.zeros(len(Y))
    for seed in sorted(set(seeds)):
        errors[seed == S] = np.abs(
            _increasing(X[seed != S], Y[seed != S], X[seed == S]) - Y[seed == S]
        )
    error = clustered(errors.tolist(), [1.0] * len(errors), P.tolist(), S.tolist())
    least, most = hypothesis["correlation"], hypothesis["error"]
    if correlation.low >= least and error.high < most:
        answer = CONFIRMED
    else:
        answer = REFUTED if correlation.high < least or error.low > most else OPEN
    return Finding(hypothesis, answer, prediction=(correlation, error))


def _increasing(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The increasing curve nearest to some points (isotonic regression), at other places."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(x, kind="stable")
    return np.interp(at, x[order], isotonic_regression(y[order]).x)


def _correlation(x: np.ndarray, y: np.ndarray, passages: np.ndarray, seeds: np.ndarray) -> Interval:
    """Spearman's rank correlation, redrawn over passages and seeds at once."""
    from scipy.stats import rankdata

    def ranked(rows: np.ndarray) -> float:
        return float(np.corrcoef(rankdata(x[rows]), rankdata(y[rows]))[0, 1])

    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(RANK_DRAWS):
        counts = np.ones(len(x), dtype=int)
        for names in (passages, seeds):
            kinds, index = np.unique(names, return_inverse=True)
            counts *= generator.multinomial(len(kinds), np.full(len(kinds), 1 / len(kinds)))[index]
        several = np.repeat(np.arange(len(x)), counts)
        if len(several) > 2:
            drawn.append(ranked(several))
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(ranked(np.arange(len(x))), float(low), float(high))
