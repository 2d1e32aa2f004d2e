"""Figures of the logit lens and of the tuned lens."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from eval.report.charts import Figure
from eval.report.lenses.frame import (
    Document,
    Record,
    at_tokens,
    averaged,
    chosen,
    data,
    lines,
    model_name,
    records,
    visible,
)

CELL = 54
SHOWN = 18
"""Positions of the table of words, the last ones."""


def draw(documents: Sequence[Document]) -> list[Figure]:
    """The figures, each over all checkpoints."""
    lens = documents[0]["lens"]
    placed = at_tokens(documents, records(documents, "probability"))
    curves = [
        {k: visible(v) if k == "word" else v for k, v in r.items() if k != "place"} for r in placed
    ]
    shares = lines(curves, "layer", "probability", "word")
    figures = [
        Figure(
            f"{lens}-words",
            "What would each layer say?",
            f"The likeliest next token by layer and position (the last {SHOWN}), coloured by its "
            "probability. The line below names the token that is read there.",
            _words(documents),
        ),
        Figure(
            f"{lens}-curves",
            "Which token wins, and where?",
            "Probability of the followed tokens by layer, at the position that the slider picks.",
            chosen(shares, curves, "model", "prompt", "position"),
        ),
        _averaged(documents, lens, "entropy", "entropy, bits", "How unsure is each layer?",
                  f"Entropy of what a layer would say; {documents[0]['notes']['uniform']} bits are "
                  "every token alike. Mean over positions and prompts."),
        _averaged(documents, lens, "divergence", "KL, bits", "How far from the answer?",
                  "Kullback-Leibler divergence of what a layer would say from what the model says "
                  "in the end."),
    ]  # fmt: skip
    if any("token energy" in d["arrays"] for d in documents):
        figures.append(
            _averaged(documents, lens, "token energy", "token energy", "In the span of tokens?",
                      "Token energy: how far a vector lies along output embeddings, relative to "
                      "what their own spread allows."),
        )  # fmt: skip
    return figures


def _averaged(
    documents: Sequence[Document], lens: str, array: str, y: str, title: str, about: str
) -> Figure:
    found = averaged(records(documents, array), "model", "layer")
    name = f"{lens}-{array.replace(' ', '-')}"
    return Figure(name, title, about, lines(found, "layer", y, "model"))


def _words(documents: Sequence[Document]) -> alt.Chart | None:
    found: list[Record] = []
    for document in documents:
        likely = [r for r in records([document], "top probability") if r["rank"] == 0]
        top = document["notes"]["top"]
        labels = [f"{p['kind']} {p['index']}" for p in document["prompts"]]
        for record in at_tokens([document], likely):
            layer, position = record["layer"], record["position"]
            row = top[labels.index(record["prompt"])]
            texts = row[layer][position] if len(row) > layer else []
            length = len(document["prompts"][labels.index(record["prompt"])]["pieces"])
            if position >= length - SHOWN:
                said = ", ".join(map(visible, texts))
                found.append(record | {"says": visible(texts[0])[:9], "likeliest": said})
        assert found, model_name(document)
    base = alt.Chart(data(found)).encode(
        x=alt.X(
            "place:O",
            sort=alt.EncodingSortField("position"),
            axis=alt.Axis(labelAngle=-60, title=None, labelLimit=90),
        ),
        y=alt.Y("layer:O", sort="descending"),
        tooltip=[
            "layer:O",
            "token:N",
            "likeliest:N",
            alt.Tooltip("value:Q", title="probability", format=".3f"),
        ],
    )
    cells = base.mark_rect().encode(
        color=alt.Color(
            "value:Q", title="probability", scale=alt.Scale(scheme="blues", domain=[0, 1])
        )
    )
    texts = base.mark_text(fontSize=10).encode(
        text="says:N",
        color=alt.condition("datum.value > 0.5", alt.value("white"), alt.value("#1b2430")),
    )
    chart = alt.layer(cells, texts).properties(width=CELL * SHOWN, height=alt.Step(26))
    return chosen(chart, found, "model", "prompt")
