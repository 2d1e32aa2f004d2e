"""Two models paired: the difference of a figure on what both were asked, in records and tables."""

from collections import Counter
from collections.abc import Sequence

from eval.analysis.frame import Frame
from eval.analysis.statistics import equivalent, paired_difference, seeds_difference
from eval.analysis.summary import Record
from eval.drawing.tables import Table, interval_text, text
from eval.messages import RequestError, say_once
from eval.views.comparison.table import FIGURES, Figure, select

ITEM = ["cluster"]
"""The column that tells what was asked: a prompt, a window or a passage."""


def paired_records(
    lines: Frame,
    first: tuple[str, int | str],
    second: tuple[str, int | str],
    margin: float,
    solver: str | None = None,
    prompts: str = "story",
) -> list[Record]:
    """The difference of two checkpoints in each figure, of what both were asked.

    Fields: figure, share (whether it is one), first, second, difference (first less second), low,
    high, p, n, units (what n counts), margin and equivalent. Where both have several training
    seeds, seeds are compared.

    Args:
        lines: of `measured`.
        first: model and step.
        second: the same of the other.
        margin: within which figures count as equivalent, in per cent: points of a share, and of the
            first value in bits.
        solver: of which of recoveries; a search when not given.
        prompts: the set of prompts of recoveries.
    """
    if len(lines):
        named = zip(lines["model"], lines["step"], strict=True)
        lines = lines[[checkpoint in (first, second) for checkpoint in named]]
    records = []
    for figure in FIGURES:
        selected = select(lines, figure, solver, prompts, "the difference is of")
        if selected.empty:
            continue
        sides = [_count(selected[(selected["model"] == model) & (selected["step"] == step)])
                 for model, step in (first, second)]  # fmt: skip
        both = _both(sides, figure)
        if both.empty:
            continue
        seeds = [_of_seeds(side, both) for side in sides]
        hits = both["hits_first"], both["hits_second"]
        records.append(
            paired_record(figure.heading, *hits, both["n"], figure.percent, margin, figure.units,
                          (seeds[0], seeds[1]))
        )  # fmt: skip
    return records


def _count(side: Frame) -> Frame:
    """A line for each training seed and prompt; plain numbers count as hits of one trial."""
    hits, counted = side["hits"].fillna(side["value"]), side["hits"].notna()
    lines = side.assign(hits=hits, n=side["n"].where(counted, 1.0))
    return lines.groupby(["name", "weights", *ITEM])[["hits", "n"]].mean().reset_index()


def _both(sides: Sequence[Frame], figure: Figure) -> Frame:
    """Hits and counts of what every training seed of both sides has, seeds averaged.

    A line says how much of what both sides have some seeds lack. Where no seed has what another
    has, as where prompts were dealt out over the seeds, all counts that both sides have.
    """
    means = []
    for side in sides:
        items = side.groupby(ITEM)[["hits", "n"]]
        whole = items.size() == len(side[["name", "weights"]].drop_duplicates())
        means.append(items.mean().assign(whole=whole).reset_index())
    both = means[0].merge(means[1], on=[*ITEM, "n"], suffixes=("_first", "_second"))
    whole = both["whole_first"] & both["whole_second"]
    if whole.all() or not whole.any():
        return both
    say_once(
        f"left out of the difference in {figure.heading}: {(~whole).sum()} of {len(both)} "
        f"{figure.units}, of which not every training seed has a figure"
    )
    return both[whole]


def _of_seeds(side: Frame, both: Frame) -> dict[str, float]:
    """The figure of each training seed on what both sides have, by the name of its run.

    Runs of one name, which lie in several directories, are told apart by their weights.
    """
    shared = side.merge(both[ITEM], on=ITEM)
    sums = shared.groupby(["name", "weights"])[["hits", "n"]].sum()
    names = Counter(name for name, _ in sums.index)
    figures = (sums["hits"] / sums["n"]).to_dict()
    return {name if names[name] == 1 else f"{name} {weights}": figure
            for (name, weights), figure in figures.items()}  # fmt: skip


def find_pair(
    records: Sequence[Record], ends: Sequence[Record], names: Sequence[str]
) -> tuple[tuple[str, int | str], tuple[str, int | str]]:
    """Model and step of the two that are named, `MODEL` (its last step) or `MODEL@STEP`.

    Args:
        records: of every step.
        ends: of the last step of each run.

    Raises:
        RequestError: another number of names, or there is no such checkpoint.
    """
    if len(names) != 2:
        raise RequestError(f"--paired {' '.join(names)}: give two checkpoints")
    known = {f"{r['model']}@{r['step']}": (r["model"], r["step"]) for r in [*records, *ends]}
    first = ", ".join([*known][: min(8, len(records))])
    known |= {r["model"]: (r["model"], r["step"]) for r in reversed(ends)}  # may have a @ itself
    for name in names:
        if name not in known:
            raise RequestError(f"--paired {name}: there is no such checkpoint; there are {first}")
    return known[names[0]], known[names[1]]


def paired_record(
    figure: str,
    first: Sequence[float],
    second: Sequence[float],
    counts: Sequence[float],
    percent: bool,
    margin: float,
    units: str,
    seeds: tuple[dict[str, float], dict[str, float]] = ({}, {}),
) -> Record:
    """The difference of one figure of two models, as `paired_records` describes it.

    Args:
        first: hits, or bits, of one model in each pair, `(pairs,)`.
        second: the same of the other.
        counts: tokens, or bytes, of each pair.
        percent: whether the figure is a fraction, shown in per cent.
        margin: within which figures count as equivalent, in per cent.
        units: what the pairs are.
        seeds: the figure of each training seed of both, which are compared where there are several.
    """
    whole = sum(counts)
    totals = float(sum(first) / whole), float(sum(second) / whole)
    bound = margin / 100 * (1 if percent else abs(totals[0]))
    confidences = (0.95, 0.9)
    by_seed = [seeds_difference(*seeds, confidence) for confidence in confidences]
    wide, narrow = (
        difference or paired_difference(first, second, counts, percent, confidence)
        for difference, confidence in zip(by_seed, confidences, strict=True)
    )
    return {
        "figure": figure,
        "share": percent,
        "first": totals[0],
        "second": totals[1],
        "difference": totals[0] - totals[1],
        **{name: getattr(wide, name, None) for name in ("low", "high", "p")},
        "n": wide.n if wide else len(counts),
        "units": "seeds" if by_seed[1] else units,
        "margin": bound,
        "equivalent": bool(narrow and equivalent(narrow.low, narrow.high, bound)),
    }


def paired_table(records: Sequence[Record], first: str, second: str) -> Table:
    """The differences as a table; shares in per cent, and their differences in points."""
    lines = []
    for record in records:
        percent = record["share"]
        value, low, high = (_rounded(record[name], 100 if percent else 1)
                            for name in ("difference", "low", "high"))  # fmt: skip
        lines.append([
            record["figure"] + " %" * percent,
            *(text(record[side], percent) for side in ("first", "second")),
            interval_text(value, low, high),
            _p_text(record["p"]),
            f"{record['n']} {record['units']}",
            "yes" if record["equivalent"] else "not established",
        ])  # fmt: skip
    headings = ["figure", first, second, "difference", "p", "of", "equivalent"]
    return Table(headings, lines, f"{first} minus {second}, on the same prompts and windows")


def _p_text(p: float | None) -> str:
    if p is None:
        return "–"
    return "< 0.001" if p < 0.0005 else f"{p:.3f}"


def _rounded(value: float | None, scale: int) -> float | None:
    return None if value is None else float(f"{scale * value:.3g}")
