"""Two models paired: the difference of a figure on what both were asked, in records and tables."""

from collections.abc import Sequence

from eval.analysis.statistics import equivalent, paired_difference, seeds_difference
from eval.analysis.summary import Record
from eval.drawing.tables import Table, interval_text, text


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
