"""Registered hypotheses against the rows of their experiment, judged as the registration says.

A hypothesis compares means:

    contrasts:
      value: whole                                   # the field whose mean is taken
      of: {method: alternating, hidden: 3, shown: 4} # which records
      each: {architecture: [flat, llama]}            # a comparison for each choice of these
      minus: {method: [soda, pez]}                   # the partner's fields, where they differ
      over: [step]                                   # fields whose values are averaged in a pair
      against: {architecture: flat}                  # subtracts the same difference of these
      above: 0                                       # or `below`, or `within` (of 0)

A mean is over pairs of prompt and training seed; with `minus` it is of the differences of the same
pairs. Intervals and p are of the pigeonhole bootstrap over prompts and seeds (Owen 2007); where all
pairs are alike, of the exact binomial. p is corrected by Holm (1979) over the comparisons of a
hypothesis. Hypotheses about bits have a `figure` and its `expected` change in each architecture:
the last step minus the first step of the same passage and seed. Up or down also needs the same sign
in every seed; `same` means within a bound. Or a hypothesis says how well a measure orders cells:

    correlations:
      with: recall                                  # the field that is to be predicted
      cells: [architecture, pairs]                  # records that agree in these are one cell
      above: {probe: 0.6}                           # measures, and the bounds of their correlations
      below: {searched: 0.3}

A cell's value is the mean over its records, training seeds included; intervals are of resampled
cells. A measure that is the same in all cells has rank correlation 0. Or one figure predicts
another (`predictor`): judged by their rank correlation and the error of an increasing curve.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from eval import RequestError
from eval.recovery import attempt
from eval.schema import Row
from eval.statistics import CONFIDENCE, Interval, at_most, clustered

DRAWS = 10_000
RANK_DRAWS = 200  # of a rank correlation over passages and seeds, which sorts anew each time
LEVEL = 0.05
CONFIRMED, REFUTED, OPEN = "confirmed", "refuted", "open"
YES, NO = "yes", "no"
WAYS = ("above", "below", "within")

Record = Mapping[str, Any]
"""One measurement, flat: `prompt`, `seed`, where it was made, and its figures."""
Values = dict[tuple[Any, ...], float]
"""A field by prompt, seed, and what else it is averaged over."""


@dataclass(frozen=True)
class Contrast:
    """A comparison of a hypothesis, and its outcome.

    Attributes:
        words: what is compared.
        mean: or mean difference, or correlation, with its 95 % limits.
        pairs: of prompt and seed; or cells.
        seeds: the mean of each training seed.
        before: of a change, the mean at the first step.
        p: two-sided, against the bound, corrected; None where nothing was corrected for.
        answer: yes, no or open: whether it is as the hypothesis says.
    """

    words: str
    mean: Interval
    pairs: int
    seeds: tuple[float, ...] = ()
    before: float | None = None
    p: float | None = None
    answer: str = OPEN


@dataclass(frozen=True)
class Judged:
    """A hypothesis and its outcome.

    `prediction`, of a hypothesis with a predictor, is the rank correlation and the mean error.
    """

    hypothesis: dict[str, Any]
    answer: str
    comparisons: tuple[Contrast, ...] = ()
    prediction: tuple[Interval, Interval] | None = None


_Measured = tuple[Contrast, np.ndarray, str, float]
"""A comparison that is not judged yet, its mean redrawn, how it is to be compared, its bound."""


def findings_of(registration: dict[str, Any], rows: Sequence[Row]) -> list[Judged]:
    """The outcome of each hypothesis; open where rows are lacking."""
    flat = records(rows)
    findings = []
    for each in registration["hypotheses"]:
        if "predictor" in each:
            findings.append(_predicted(each, flat))
            continue
        if "correlations" in each:
            asked = each["correlations"]
            measured = list(_correlated(asked, flat))
            wanted = sum(len(asked.get(way, ())) for way in WAYS)
        else:
            asked = each.get("contrasts") or _change(each, registration["design"]["steps"])
            measured = list(_contrasted(asked, flat))
            wanted = len(list(_places(asked)))
        made = _judged(measured)
        answers = {one.answer for one in made}
        whole = len(made) == wanted and answers == {YES}
        answer = REFUTED if NO in answers else CONFIRMED if whole else OPEN
        findings.append(Judged(each, answer, tuple(made)))
    return findings


def records(rows: Iterable[Row]) -> list[Record]:
    """Rows of an experiment as flat records: the row's fields, and its place in the experiment.

    Of recoveries there is one record for each prompt and method, whatever its starts
    (`eval.recovery.attempt`); of bits, one for each distance.
    """
    starts: dict[tuple[Any, ...], tuple[Record, list[Row]]] = {}
    flat = []
    for row in rows:
        about = {**row["experiment"], "step": row["checkpoint"]["step"]}
        if row.get("kind") == "recovery":
            place = row["method"], row["hidden"], row["observed"], row["prompt"]
            starts.setdefault((*sorted(about.items()), *place), (about, []))[1].append(row)
        elif row.get("kind") == "bits":
            flat += [{**line, **about} for line in _by_distance(row)]
        else:
            windows = row.get("windows", [{}])
            flat += [{"prompt": i, **row, **each, **about} for i, each in enumerate(windows)]
    return flat + [{**attempt(group), **about} for about, group in starts.values()]


def means(
    records: Sequence[Record], field: str, cells: Sequence[str]
) -> dict[tuple[Any, ...], float]:
    """The mean of a field in each cell that has it."""
    several: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for record in records:
        if record.get(field) is not None and all(name in record for name in cells):
            several[tuple(record[name] for name in cells)].append(float(record[field]))
    return {cell: float(np.mean(values)) for cell, values in several.items()}


def mean_of(records: Sequence[Record], value: str, **where: Any) -> Interval | None:
    """The mean of a field over pairs of prompt and seed, with its limits; None without records."""
    if not (known := _values(records, {"value": value}, where)):
        return None
    table = _table(known)
    return _interval(float(np.nanmean(table)), _resampled(table))


def field_of(figure: Mapping[str, Any]) -> str:
    """The field of records that holds a figure of bits: `bits int4`, `log2 effect`."""
    bits = figure["quantity"] == "bits"
    name = f"bits {figure['precision']}" if bits else figure["quantity"]
    return f"log2 {name}" if figure.get("scale") == "log2" else name


def holm(p: Sequence[float]) -> list[float]:
    """p corrected for their number (Holm 1979), in the order given."""
    order, corrected, least = np.argsort(p), [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(p) - rank) * p[i]))
        corrected[i] = least
    return corrected


def pigeonhole(differences: np.ndarray, draws: int = DRAWS) -> np.ndarray:
    """Means of differences `(passages, seeds)`, nan where there is none, each redrawn."""
    generator = np.random.default_rng(0)
    P, S = differences.shape
    rows, columns = (generator.multinomial(n, np.full(n, 1 / n), draws) for n in (P, S))
    there = ~np.isnan(differences)
    above = ((rows @ np.where(there, differences, 0.0)) * columns).sum(axis=1)
    below = ((rows @ there.astype(float)) * columns).sum(axis=1)
    return above[below > 0] / below[below > 0]


def _by_distance(row: Row) -> Iterator[dict[str, Any]]:
    """A row of bits as a record for each distance: of single outputs, a uniform prior."""
    plain = {name: value for name, value in row.items() if not isinstance(value, dict | list)}
    for i, distance in enumerate(row["distances"]):
        effect = row["effect"][i]
        yield {
            **plain,
            "distance": distance,
            "effect": effect,
            "log2 effect": math.log2(effect) if effect else None,
            "effect_sampled": row["effect_sampled"][i],
            **{f"bits {name}": kinds["alone"][i] for name, kinds in row["bits"]["uniform"].items()},
        }


def _change(hypothesis: dict[str, Any], steps: Sequence[int]) -> dict[str, Any]:
    """A hypothesis about changes with training, as contrasts of the last step with the first."""
    figure, expected = hypothesis["figure"], hypothesis["expected"]
    return {
        "value": field_of(figure),
        "of": {"step": steps[-1], "distance": figure["distance"]},
        "each": {"architecture": list(expected)},
        "minus": {"step": steps[0]},
        "expected": expected,
        "bound": hypothesis.get("within", 0.0),
    }


def _contrasted(asked: Record, records: Sequence[Record]) -> Iterator[_Measured]:
    """The comparisons of means of a hypothesis; those without records are left out."""
    for words, where, minus in _places(asked):
        known = _values(records, asked, where, minus)
        if (against := asked.get("against")) is not None:
            partner = None if minus is None else {**minus, **against}
            known = _less(known, _values(records, asked, {**where, **against}, partner))
        if not known:
            continue
        before = None
        if "expected" in asked:
            words = where["architecture"]
            way, bound = asked["expected"][words], asked["bound"]
            first = _values(records, asked, minus or {})
            before = float(np.mean([first[place] for place in known]))
        else:
            way, bound = next((way, asked[way]) for way in WAYS if way in asked)
        table = _table(known)
        seeds = tuple(float(x) for x in np.nanmean(table, axis=0))
        pairs = int((~np.isnan(table)).sum())
        drawn = _resampled(table, paired=minus is not None)
        mean = _interval(float(np.nanmean(table)), drawn)
        yield Contrast(words, mean, pairs, seeds, before), drawn, way, bound


def _correlated(asked: Record, records: Sequence[Record]) -> Iterator[_Measured]:
    """The correlation of each measure; measures of fewer than 3 cells are left out."""
    predicted = means(records, asked["with"], asked["cells"])
    for way in WAYS:
        for name, bound in asked.get(way, {}).items():
            known = means(records, name, asked["cells"])
            cells = sorted(known.keys() & predicted.keys(), key=str)
            if len(cells) > 2:
                x, y = (np.array([of[cell] for cell in cells]) for of in (known, predicted))
                chosen = np.random.default_rng(0).integers(len(x), size=(DRAWS, len(x)))
                drawn = _spearman(x[chosen], y[chosen])
                mean = _interval(float(_spearman(x[None], y[None])[0]), drawn)
                yield Contrast(name, mean, len(cells)), drawn, way, bound


def _judged(measured: Sequence[_Measured]) -> list[Contrast]:
    """The comparisons of a hypothesis against their bounds, p corrected for their number."""
    tails = [2 * min((d <= b).mean(), (d >= b).mean()) for _, d, _, b in measured]
    corrected = holm([min(1.0, max(float(p), 2 / DRAWS)) for p in tails])
    made = []
    for (each, _, way, bound), p in zip(measured, corrected, strict=True):
        if way in ("within", "same"):
            _, low, high = each.mean
            inside, outside = -bound < low <= high < bound, low > bound or high < -bound
            made.append(replace(each, answer=YES if inside else NO if outside else OPEN))
            continue
        mixed = way not in WAYS and len({np.sign(seed) for seed in each.seeds}) > 1
        as_said = (each.mean.estimate > bound) == (way in ("above", "up"))
        answer = OPEN if p >= LEVEL or mixed else YES if as_said else NO
        made.append(replace(each, p=p, answer=answer))
    return made


def _places(asked: Record) -> Iterator[tuple[str, Record, Record | None]]:
    """Words, the records' fields, and their partners' fields: one for each comparison."""
    fixed, each, minus = asked.get("of", {}), asked.get("each", {}), asked.get("minus")
    for values in product(*each.values()):
        chosen = dict(zip(each, values, strict=True))
        where = {**fixed, **chosen}
        if minus is None:
            yield _words(chosen or fixed), where, None
            continue
        listed = [v if isinstance(v, list) else [v] for v in minus.values()]
        for other in product(*listed):
            partner = dict(zip(minus, other, strict=True))
            compared = _words({k: where[k] for k in partner if k in where})
            place = f"{_words(chosen)}: " if chosen else ""
            taken = f", less that of {_words(asked['against'])}" if "against" in asked else ""
            yield f"{place}{compared} less {_words(partner)}{taken}", where, {**where, **partner}


def _words(fields: Record) -> str:
    return ", ".join(v if isinstance(v, str) else f"{k} {v}" for k, v in fields.items())


def _less(known: Values, other: Values) -> Values:
    return {place: known[place] - other[place] for place in known.keys() & other.keys()}


def _values(
    records: Sequence[Record], asked: Record, where: Record, minus: Record | None = None
) -> Values:
    """A field, or its differences, by prompt, seed, and what it is averaged over."""
    value, over = asked["value"], asked.get("over", [])
    known: Values = {}
    for record in records:
        if where.items() <= record.items() and record.get(value) is not None:
            place = record["prompt"], record["seed"], *(record[name] for name in over)
            if place in known:
                raise RequestError(
                    f"{value} of {_words(where)}: prompt {place[0]} of seed {place[1]} has several "
                    "records; name what tells them apart"
                )
            known[place] = float(record[value])
    return known if minus is None else _less(known, _values(records, asked, minus))


def _table(known: Values) -> np.ndarray:
    """A field as `(prompts, seeds)`, nan where there is none."""
    prompts, seeds = (sorted({place[i] for place in known}) for i in (0, 1))
    total, count = np.zeros((2, len(prompts), len(seeds)))
    for (prompt, seed, *_), number in known.items():
        at = prompts.index(prompt), seeds.index(seed)
        total[at] += number
        count[at] += 1
    return np.where(count, total, np.nan) / np.maximum(count, 1)


def _resampled(table: np.ndarray, paired: bool = False) -> np.ndarray:
    """The mean redrawn; of pairs that are all alike, as far off as their number leaves possible."""
    there = table[~np.isnan(table)]
    if np.ptp(there) > 0:
        return pigeonhole(table)
    apart = at_most(0, len(there))
    least, most = (-1.0 if paired else 0.0, 1.0) if abs(there[0]) <= 1 else (-np.inf, np.inf)
    return np.clip(there[0] + np.linspace(-apart, apart, DRAWS), least, most)


def _interval(estimate: float, drawn: np.ndarray | list[float]) -> Interval:
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(estimate, float(low), float(high))


def _predicted(hypothesis: dict[str, Any], records: Sequence[Record]) -> Judged:
    """Whether a figure predicts another, over all models, steps, passages and distances.

    The error is that of the increasing curve nearest to the other seeds (isotonic regression).
    """
    from scipy.optimize import isotonic_regression

    names = hypothesis["predictor"], field_of(hypothesis["figure"])
    known = [
        (record["prompt"], record["seed"], *(record[name] for name in names))
        for record in records
        if all(record.get(name) is not None for name in names)
    ]
    if len({seed for _, seed, _, _ in known}) < 2:
        return Judged(hypothesis, OPEN)
    passages, seeds, x, y = (np.array(each) for each in zip(*sorted(known), strict=True))
    correlation = _correlation(x, y, passages, seeds)
    errors = np.zeros(len(y))
    for seed in sorted(set(seeds)):
        here = seeds == seed
        order = np.argsort(x[~here], kind="stable")
        curve = isotonic_regression(y[~here][order]).x
        errors[here] = np.abs(np.interp(x[here], x[~here][order], curve) - y[here])
    error = clustered(errors.tolist(), [1.0] * len(errors), passages.tolist(), seeds.tolist())
    least, most = hypothesis["correlation"], hypothesis["error"]
    if correlation.low >= least and error.high < most:
        answer = CONFIRMED
    else:
        answer = REFUTED if correlation.high < least or error.low > most else OPEN
    return Judged(hypothesis, answer, prediction=(correlation, error))


def _correlation(x: np.ndarray, y: np.ndarray, passages: np.ndarray, seeds: np.ndarray) -> Interval:
    """Spearman's rank correlation, redrawn over passages and seeds at once."""
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(RANK_DRAWS):
        counts = np.ones(len(x), dtype=int)
        for names in (passages, seeds):
            kinds, index = np.unique(names, return_inverse=True)
            counts *= generator.multinomial(len(kinds), np.full(len(kinds), 1 / len(kinds)))[index]
        some = np.repeat(np.arange(len(x)), counts)
        if len(some) > 2:
            drawn.append(float(_spearman(x[None, some], y[None, some])[0]))
    return _interval(float(_spearman(x[None], y[None])[0]), drawn)


def _spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of each row of two `(N, cells)` tables; 0 where either does not vary."""
    from scipy.stats import rankdata

    a, b = (rankdata(each, axis=1) for each in (x, y))
    a, b = (each - each.mean(axis=1, keepdims=True) for each in (a, b))
    size = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return np.divide((a * b).sum(axis=1), size, out=np.zeros(len(a)), where=size > 0)
