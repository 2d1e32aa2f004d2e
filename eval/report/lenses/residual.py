"""Figures of the residual lens."""

from __future__ import annotations

from collections.abc import Sequence

from eval.report.charts import Figure
from eval.report.lenses.frame import (
    DIVERGING,
    Document,
    at_tokens,
    averaged,
    by_model,
    chosen,
    heat,
    lines,
    options,
    records,
)


def draw(documents: Sequence[Document]) -> list[Figure]:
    """The figures, each over all checkpoints."""
    alike = records(documents, "similarity")
    norms = [r for r in records(documents, "norm") if r["position"] > 0]
    shares = records(documents, "update share")
    written = at_tokens(documents, records(documents, "contribution to the answer"))
    parts = heat(written, "place", "part", "logit", DIVERGING, sort_y=options(written, "part"))
    length = lines(averaged(norms, "model", "layer"), "layer", "mean length", "model")
    stays = records(documents, "share still there")
    return [
        Figure(
            "residual-similarity",
            "How alike are the streams of two layers?",
            "Cosine similarity of a position's vector after one layer and after another, averaged "
            "over positions and prompts.",
            by_model(
                heat(alike, "layer", "other layer", "cosine", sort_x="ascending",
                     sort_y="descending", size=(280, 280)),
                alike,
            ),
        ),
        Figure(
            "residual-updates",
            "How much does each part add?",
            "Length of what is added, as a share of the vector that it is added to.",
            by_model(lines(shares, "layer", "share of the stream", "part"), shares),
        ),
        Figure(
            "residual-norm",
            "How long are the vectors?",
            "Length of the vectors by layer, averaged over positions but the first.",
            length if norms else None,
        ),
        Figure(
            "residual-contributions",
            "Which part writes the answer?",
            "What each part adds directly to the logit of the model's own next token, above what "
            "it adds to the mean logit, at each position; the parts sum to that logit.",
            chosen(parts, written, "model", "prompt"),
        ),
        Figure(
            "residual-survival",
            "How long does what is written stay?",
            "Share of each part's vector still found in later streams, along its own direction.",
            by_model(lines(stays, "layer", "share still there", "write", ordered=True), stays),
        ),
    ]  # fmt: skip
