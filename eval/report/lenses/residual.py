"""Figures of the residual lens."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from eval.report.charts import Figure
from eval.report.lenses.frame import Document, chosen, menu, model_name, records


def draw(documents: Sequence[Document]) -> list[Figure]:
    """The figures, each over all checkpoints."""
    return [_similarity(documents)]


def _similarity(documents: Sequence[Document]) -> Figure:
    models = list(dict.fromkeys(map(model_name, documents)))
    chart = (
        alt.Chart(alt.Data(values=records(documents, "similarity")))
        .mark_rect()
        .encode(
            x=alt.X("layer:O", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("other layer:O", sort="descending"),
            color=alt.Color("value:Q", title="cosine"),
            tooltip=["layer:O", "other layer:O", alt.Tooltip("value:Q", format=".4f")],
        )
        .properties(width=300, height=300)
    )
    return Figure(
        "residual-similarity",
        "How alike are the streams of two layers?",
        "Cosine similarity of a position's vector after one layer and after another, averaged "
        "over positions and prompts.",
        chosen(chart, ("model", menu("model", models, "checkpoint"))),
    )
