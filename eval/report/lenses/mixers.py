"""Figures of the lenses on token mixers: what is read from where, and what heads write."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from eval.report.charts import Figure
from eval.report.lenses.frame import (
    DIVERGING,
    Document,
    by_model,
    chosen,
    data,
    heat,
    lines,
    options,
    records,
)


def draw_mixing(documents: Sequence[Document]) -> list[Figure]:
    """Maps, and how far they reach."""
    maps = [r for r in records(documents, "maps") if r["reads"] <= r["position"]]
    lags = records(documents, "by lag")
    reach = [r for r in lags if r["sign"] == "absolute"]
    return [
        Figure(
            "mixing-maps",
            "Where does each position look?",
            "Attention patterns on the first prompt, and the triangles of masked mixers: how much "
            "a position takes of each before it.",
            chosen(heat(maps, "reads", "position", "weight", DIVERGING, sort_x="ascending",
                        sort_y="ascending", size=(420, 420)), maps, "model", "map"),
        ),
        Figure(
            "mixing-lags",
            "How far back?",
            "Mean size of the weight by distance, a line for each map.",
            by_model(lines(reach, "lag", "mean weight", "map", ordered=True), reach),
        ),
    ]  # fmt: skip


def draw_ov(documents: Sequence[Document]) -> list[Figure]:
    """Whether heads copy."""
    found = [r for r in records(documents, "ov") if r["measure"] in ("copying", "effective rank")]
    chart = (
        alt.Chart(data(found))
        .mark_bar()
        .encode(
            x=alt.X("head:N", sort=options(found, "head"), axis=alt.Axis(labelAngle=-60)),
            y=alt.Y("value:Q", title=None),
            row=alt.Row("measure:N", title=None, sort=options(found, "measure")),
            tooltip=["head:N", "measure:N", alt.Tooltip("value:Q", format=".3f")],
        )
        .resolve_scale(y="independent")
        .properties(width=620, height=140)
    )
    return [
        Figure(
            "ov-heads",
            "What do heads write for what they read?",
            "Copying score of W_V W_O (1: all eigenvalues positive, it writes what it reads), and "
            "its effective rank.",
            by_model(chart, found),
        )
    ]
