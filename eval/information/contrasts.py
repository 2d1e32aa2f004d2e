"""Registered comparisons of means, each against a bound: of any rows that come as flat records.

    contrasts:
      value: whole                                   # the field whose mean is taken
      of: {method: alternating, hidden: 3, shown: 4} # which records
      each: {architecture: [flat, llama]}            # a comparison for each choice of these
      minus: {method: [soda, pez]}                   # the partner's fields, where they differ
      over: [step]                                   # fields whose values are averaged in a pair
      against: {architecture: flat}                  # takes off the same difference of these
      above: 0                                       # or `below`, or `within` (of 0)

A mean is over pairs of prompt and training seed; with `minus` it is of the differences of the same
pairs. Intervals and p are of the pigeonhole bootstrap over prompts and seeds, where nothing varies
of the exact binomial; p is corrected by Holm over the comparisons of a hypothesis.

Whether what is measured orders cells as another figure does is asked by rank correlations:

    correlations:
      with: recall                                  # the field that is to be predicted
      cells: [architecture, pairs]                  # records that agree in these are one cell
      above: {probe: 0.6}                           # measures, and what their correlation is to be
      below: {searched: 0.3}

A cell's figure is the mean over its records, training seeds among them. Intervals are of cells
drawn anew; p is of the bound, corrected by Holm over the measures of a hypothesis. A measure that
is the same in all cells orders nothing: 0.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from eval.errors import RequestError
from eval.statistics import CONFIDENCE, Interval, at_most

DRAWS = 10_000
LEVEL = 0.05
CONFIRMED, REFUTED, OPEN = "confirmed", "refuted", "open"
YES, NO = "yes", "no"

Record = Mapping[str, Any]
"""One measurement, flat: `prompt`, `seed`, what it is of, and its figures."""
Place = tuple[Any, ...]
Known = dict[Place, float]
"""A field by prompt, seed, and what else it is averaged over."""


@dataclass(frozen=True)
class Contrast:
    """A comparison, and what became of it.

    Attributes:
        words: what is compared.
        mean: or mean difference, with its 95 % limits.
        p: two-sided, against the bound, corrected; None where nothing was corrected for.
        seeds: the mean of each training seed.
        pairs: of prompt and seed.
        answer: yes, no or open: whether it is as was said.
    """

    words: str
    mean: Interval
    p: float | None
    seeds: tuple[float, ...]
    pairs: int
    answer: str


def contrasts(asked: Mapping[str, Any], records: Sequence[Record]) -> list[Contrast]:
    """What became of the comparisons of a hypothesis; those without records are left out."""
    paired = "minus" in asked
    tables = [
        (words, table)
        for words, where, minus in _places(asked)
        if (table := _table(records, asked, where, minus)) is not None
    ]
    way, bound = next((way, asked[way]) for way in ("above", "below", "within") if way in asked)
    drawn = [_drawn(table, paired) for _, table in tables]
    limits = [np.quantile(d, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) for d in drawn]
    tails = [2 * min((d <= bound).mean(), (d >= bound).mean()) for d in drawn]
    corrected = holm([min(1.0, max(float(p), 2 / DRAWS)) for p in tails])
    made = []
    for (words, table), (low, high), p in zip(tables, limits, corrected, strict=True):
        mean = Interval(float(np.nanmean(table)), float(low), float(high))
        answer = _within(mean, bound) if way == "within" else _beyond(mean, way, bound, p)
        seeds = tuple(float(x) for x in np.nanmean(table, axis=0))
        pairs = int((~np.isnan(table)).sum())
        made.append(Contrast(words, mean, None if way == "within" else p, seeds, pairs, answer))
    return made


def correlations(asked: Mapping[str, Any], records: Sequence[Record]) -> list[Contrast]:
    """What became of each measure; `pairs` are cells. Measures of fewer than 3 are left out."""
    recalled = means(records, asked["with"], asked["cells"])
    made, drawn = [], []
    for way in ("above", "below"):
        for name, bound in asked.get(way, {}).items():
            known = means(records, name, asked["cells"])
            cells = sorted(known.keys() & recalled.keys(), key=str)
            if len(cells) > 2:
                x, y = (np.array([of[cell] for cell in cells]) for of in (known, recalled))
                made.append((name, way, bound, len(cells), float(_spearman(x[None], y[None])[0])))
                drawn.append(_resampled(x, y))
    bounds = [bound for _, _, bound, _, _ in made]
    tails = [2 * min((d <= b).mean(), (d >= b).mean()) for d, b in zip(drawn, bounds, strict=True)]
    corrected = holm([min(1.0, max(float(p), 2 / DRAWS)) for p in tails])
    judged = []
    for (name, way, bound, count, value), draws, p in zip(made, drawn, corrected, strict=True):
        low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        mean = Interval(value, float(low), float(high))
        judged.append(Contrast(name, mean, p, (), count, _beyond(mean, way, bound, p)))
    return judged


def means(
    records: Sequence[Record], field: str, cells: Sequence[str]
) -> dict[tuple[Any, ...], float]:
    """The mean of a field in each cell that has it."""
    several: dict[Place, list[float]] = defaultdict(list)
    for record in records:
        if record.get(field) is not None and all(name in record for name in cells):
            several[tuple(record[name] for name in cells)].append(float(record[field]))
    return {cell: float(np.mean(values)) for cell, values in several.items()}


def answer_of(asked: Mapping[str, Any], made: Sequence[Contrast]) -> str:
    """Confirmed where every comparison is as was said, refuted where one is not, else open."""
    if "value" in asked:
        wanted = len(list(_places(asked)))
    else:
        wanted = sum(len(asked.get(way, {})) for way in ("above", "below"))
    answers = [each.answer for each in made]
    if NO in answers:
        return REFUTED
    whole = len(answers) == wanted
    return CONFIRMED if whole and set(answers) == {YES} else OPEN


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


def mean_of(records: Sequence[Record], value: str, **where: Any) -> tuple[Interval, int] | None:
    """The mean of a field over pairs of prompt and seed, with its limits, and their number.

    None without records.
    """
    table = _table(records, {"value": value}, where, None)
    if table is None:
        return None
    low, high = np.quantile(_drawn(table), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    mean = Interval(float(np.nanmean(table)), float(low), float(high))
    return mean, int((~np.isnan(table)).sum())


def _places(asked: Mapping[str, Any]) -> Iterator[tuple[str, Record, Record | None]]:
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
    plain = (str(v) if isinstance(v, str) else f"{k} {v}" for k, v in fields.items())
    return ", ".join(plain)


def _table(
    records: Sequence[Record], asked: Record, where: Record, minus: Record | None
) -> np.ndarray | None:
    """A field, or its differences, `(prompts, seeds)`, nan where there is none."""
    known = _differences(records, asked, where, minus)
    if (against := asked.get("against")) is not None:
        partner = None if minus is None else {**minus, **against}
        known = _less(known, _differences(records, asked, {**where, **against}, partner))
    if not known:
        return None
    prompts, seeds = (sorted({place[i] for place in known}) for i in (0, 1))
    total, count = np.zeros((2, len(prompts), len(seeds)))
    for (prompt, seed, *_), number in known.items():
        at = prompts.index(prompt), seeds.index(seed)
        total[at] += number
        count[at] += 1
    return np.where(count, total, np.nan) / np.maximum(count, 1)


def _differences(
    records: Sequence[Record], asked: Record, where: Record, minus: Record | None
) -> Known:
    known = _values(records, asked, where)
    return known if minus is None else _less(known, _values(records, asked, minus))


def _less(known: Known, other: Known) -> Known:
    return {place: known[place] - other[place] for place in known.keys() & other.keys()}


def _values(records: Sequence[Record], asked: Record, where: Record) -> Known:
    """A field by prompt, seed, and what it is averaged over."""
    value, over = asked["value"], asked.get("over", [])
    known: Known = {}
    for record in records:
        if where.items() <= record.items() and record.get(value) is not None:
            place = record["prompt"], record["seed"], *(record[name] for name in over)
            if place in known:
                raise RequestError(
                    f"{value} of {_words(where)}: prompt {place[0]} of seed {place[1]} has several "
                    "records; name what tells them apart"
                )
            known[place] = float(record[value])
    return known


def _drawn(table: np.ndarray, paired: bool = False) -> np.ndarray:
    """The mean redrawn; of pairs that are all alike, as far off as their number leaves possible."""
    there = table[~np.isnan(table)]
    if np.ptp(there) > 0:
        return pigeonhole(table)
    apart = at_most(0, len(there))
    least, most = (-1.0 if paired else 0.0, 1.0) if abs(there[0]) <= 1 else (-np.inf, np.inf)
    return np.clip(there[0] + np.linspace(-apart, apart, DRAWS), least, most)


def _beyond(mean: Interval, way: str, bound: float, p: float) -> str:
    """Whether a figure is above or below a bound, as was said, by its corrected p."""
    if p >= LEVEL:
        return OPEN
    return YES if (mean.estimate > bound) == (way == "above") else NO


def _within(mean: Interval, bound: float) -> str:
    if -bound < mean.low and mean.high < bound:
        return YES
    return NO if mean.low > bound or mean.high < -bound else OPEN


def _resampled(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    chosen = np.random.default_rng(0).integers(len(x), size=(DRAWS, len(x)))
    return _spearman(x[chosen], y[chosen])


def _spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of each row of two `(N, cells)` tables; 0 where either does not vary."""
    from scipy.stats import rankdata

    a, b = (rankdata(each, axis=1) for each in (x, y))
    a, b = (each - each.mean(axis=1, keepdims=True) for each in (a, b))
    size = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return np.divide((a * b).sum(axis=1), size, out=np.zeros(len(a)), where=size > 0)
