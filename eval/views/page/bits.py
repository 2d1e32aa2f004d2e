"""Bits about a token, by how many positions later the output stands: a panel for each model."""

import math
from typing import NamedTuple

from markupsafe import Markup

from eval.analysis.frame import Frame
from eval.analysis.summary import summarise
from eval.drawing import figures, plots
from eval.drawing.tables import Record, interval_text, number_text
from eval.messages import say_once
from eval.views.comparison.table import ALIKE, FIGURES, select

STEPS = 6
"""Curves of a panel, at most: the first step, the last, and those between at equal ranks."""


class Panel(NamedTuple):
    """A chart under its heading."""

    title: str
    svg: Markup


class Bits(NamedTuple):
    """The section: its panels, and what they have in common.

    Attributes:
        candidates: tokens that were run in a token's place.
        most: bits that tell one of them.
        passages: least and most behind a point.
    """

    panels: list[Panel]
    candidates: int
    most: str
    passages: tuple[int, int]


def draw_bits(lines: Frame) -> Bits | None:
    """The section for rows of `eval bits`: the column `bits at 4` of compare, at all distances.

    Args:
        lines: of `eval.analysis.frame.frame`.
    """
    column = next(figure for figure in FIGURES if figure.kind == "bits")
    where = tuple(pair for pair in column.where if pair[0] != "distance")
    chosen = select(lines, column._replace(where=where), shown="the page shows")
    if chosen.empty:
        bits = lines[lines["kind"] == column.kind] if len(lines) else lines
        if len(bits) and "block" not in (parts := [*bits["part"].unique()]):
            say_once(
                f"left out: bits of part {', '.join(parts)}; the page draws those of blocks, and "
                "summary shows all"
            )
        return None
    by, pooled = ["model", "layer", "step", "distance"], ["observed", "trained", *ALIKE["bits"]]
    records = summarise(chosen, by, pooled).to_dict("records")
    candidates = int(chosen["candidates"].iloc[0])
    counts = [int(record["n"]) for record in records]
    panels = []
    for model, layer in dict.fromkeys((r["model"], r["layer"]) for r in records):
        own = [r for r in records if (r["model"], r["layer"]) == (model, layer)]
        heading = f"{model}, layer {layer}"
        panels.append(Panel(heading, _draw(own, heading, math.log2(candidates))))
    return Bits(panels, candidates, number_text(math.log2(candidates)), (min(counts), max(counts)))


def _draw(records: list[Record], heading: str, most: float) -> Markup:
    steps = sorted({record["step"] for record in records})
    ranks = {round(i * (len(steps) - 1) / (STEPS - 1)) for i in range(STEPS)}
    kept = steps if len(steps) <= STEPS else [steps[rank] for rank in sorted(ranks)]
    points = [_point(record) for record in records if record["step"] in kept]
    points.sort(key=lambda point: (point["number"], point["distance"]))
    chart = plots.lines(
        points, "distance", "bits", "step", even=True, ordered=True, top=most,
        axis={"title": "positions later"},
    )  # fmt: skip
    return figures.inline(chart, f"bits about a token, {heading}")


def _point(record: Record) -> Record:
    known = {name: record[name] for name in ("value", "low", "high", "distance")}
    said = interval_text(record["value"], record["low"], record["high"])
    tip = f"step {record['step']:,}, {record['distance']} later: {said} bits, n = {record['n']}"
    return known | {"number": record["step"], "step": f"{record['step']:,}", "tip": tip}
