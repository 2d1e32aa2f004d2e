"""Figures of the lenses on causes: attribution, patching, steering, features."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
from markupsafe import Markup

from eval.report.charts import Figure
from eval.report.highlight import highlighted
from eval.report.lenses.frame import (
    DIVERGING,
    Document,
    Record,
    by_model,
    chosen,
    data,
    figure_records,
    folded,
    heat,
    lines,
    model_name,
    options,
    records,
    table,
    visible,
)


def draw_attribution(documents: Sequence[Document]) -> list[Figure]:
    """How far methods agree."""
    found = figure_records(documents, "rank correlation")
    return [
        Figure(
            "attribution-agreement",
            "Do methods agree?",
            "Rank correlation of two methods' scores over the tokens of a prompt, averaged.",
            by_model(
                heat(found, "method", "with", "rank correlation", DIVERGING,
                     sort_x=options(found, "method"), sort_y=options(found, "with"),
                     size=(420, 300)),
                found,
            ),
        )
    ]  # fmt: skip


def highlights(documents: Sequence[Document]) -> list[Markup]:
    """Prompts with their tokens coloured, folded but for the first."""
    found = []
    for document in documents:
        scores = records([document], "attribution")
        labels = [f"{p['kind']} {p['index']}" for p in document["prompts"]]
        for number, (label, prompt) in enumerate(zip(labels, document["prompts"], strict=True)):
            own = [r for r in scores if r["prompt"] == label]
            pieces = prompt["pieces"]
            for output in options(own, "output"):
                methods = {
                    method: [
                        r["value"] for r in own if r["method"] == method and r["output"] == output
                    ][: len(pieces)]
                    for method in options(own, "method")
                }
                answer = visible(document["notes"]["answers"][number])
                found.append(
                    Markup("<details{}><summary>{}, {}: {} (<code>{}</code>)</summary>{}</details>")
                    .format(
                        Markup(" open") if not found else "",
                        model_name(document),
                        label,
                        output,
                        answer,
                        highlighted(pieces, methods),
                    )
                )  # fmt: skip
    return found


def draw_intervention(documents: Sequence[Document]) -> list[Figure]:
    """Where a prediction passes through."""
    found: list[Record] = []
    for document in documents:
        pairs = {pair["label"]: pair for pair in document["notes"]["pairs"]}
        for r in records([document], "effect"):
            target = pairs[r["pair"]]["target"]
            if r["position"] < len(target):
                token = visible(target[r["position"]])
                found.append(r | {"token": token, "place": f"{r['position']} {token}"})
    effects = heat(found, "place", "layer", "effect", DIVERGING, sort_y="descending")
    return [
        Figure(
            "intervention-effect",
            "Which layer and position does the answer pass through?",
            "A vector of one prompt's run put into the other's: how far its answer moves over, 1 "
            "being all the way.",
            chosen(effects, found, "model", "pair"),
        )
    ]


def draw_steering(documents: Sequence[Document]) -> list[Figure]:
    """What a direction changes, and what it leaves."""
    found = [r for r in records(documents, "swap") if r["place"] == "word"]
    chart = lines(found, "layer", "change of log-odds, nats", "measured", "by")
    return [
        Figure(
            "steering-swap",
            "Does a swapped feature change what is said, and only that?",
            "One attribute's direction subtracted and another's added at the word: the swapped "
            "part ought to follow, the others to stay; a random direction of equal length beside.",
            chosen(chart, found, "model", "attribute"),
        )
    ]


def samples(documents: Sequence[Document]) -> list[Markup]:
    """Text written by steered models."""
    rows = [
        (model_name(document), sample["swapped"], sample["text"])
        for document in documents
        for sample in document["notes"].get("samples", [])
    ]
    told = table(("checkpoint", "swapped", "goes on with"), rows)
    return [folded("text written with features swapped", told)] if rows else []


def draw_features(documents: Sequence[Document]) -> list[Figure]:
    """Whether retellings share features."""
    lens = documents[0]["lens"]
    every = figure_records(documents, "feature overlap")
    found = [r for r in every if r["layer"] != "tokens"]
    chart = lines(found, "layer", "intersection over union", "texts")
    return [
        Figure(
            f"{lens}-overlap",
            "Do two tellings of one story share features?",
            f"Overlap of the {found[0]['of']} active in two texts: tellings of one story, "
            "unrelated texts, and what the units' frequencies alone would give.",
            by_model(chart, found),
        )
    ]


def draw_sparse(documents: Sequence[Document]) -> list[Figure]:
    """The same by an autoencoder's features, and how good it is."""
    measured = figure_records(documents, "sparse explained", "sparse dead")
    for record in measured:
        record["share"] = "of variance explained" if "expl" in record["figure"] else "of dead units"
    return [
        *draw_features(documents),
        Figure(
            "sparse-quality",
            "How good is the autoencoder?",
            "On text that it was not fitted on: the share of the stream's variance that it "
            "explains, and of its features those that are never active.",
            by_model(lines(measured, "layer", "share", "share"), measured),
        ),
    ]


def shared_words(documents: Sequence[Document]) -> list[Markup]:
    """How many of the tokens themselves are shared, which needs no model."""
    rows = [
        (model_name(document), r["texts"], f"{r['value']:.3f}")
        for document in documents
        for r in figure_records([document], "feature overlap")
        if r["layer"] == "tokens"
    ]
    told = table(("checkpoint", "texts", "intersection over union"), rows)
    return [folded("how many tokens the texts share", told)]


def draw_retrieval(rows: Sequence[Record]) -> list[Figure]:
    """Top-1 by number of candidates."""
    found = []
    for row in rows:
        checkpoint = row["checkpoint"]
        found.append(
            {
                "model": f"{checkpoint['name']} at {checkpoint['step']}",
                "value": row["top1"],
                **{k: row[k] for k in ("candidates", "method", "pool", "layer", "sentence",
                                       "low", "high", "chance")},
            }
        )  # fmt: skip
    found = [r for r in found if r["pool"] == "mean"] or found
    last = {m: max(r["layer"] for r in found if r["model"] == m) for m in options(found, "model")}
    deepest = [r for r in found if r["layer"] == last[r["model"]]]
    chart = lines(deepest, "candidates", "found first", "model", "method").encode(
        x=alt.X("candidates:Q", scale=alt.Scale(type="log", base=2))
    )
    band = (
        alt.Chart(data(deepest))
        .mark_errorbar()
        .encode(
            x=alt.X("candidates:Q", scale=alt.Scale(type="log", base=2)),
            y=alt.Y("low:Q", title="found first"),
            y2="high:Q",
            color="model:N",
            detail="method:N",
        )
    )
    return [
        Figure(
            "retrieval-top1",
            "Which story does a sentence belong to?",
            "Share of sentences whose own story is nearest among so many, by the last layer's "
            "states averaged over positions: as they are, centred, and after a short fit.",
            chosen(alt.layer(band, chart), deepest, "sentence"),
        )
    ]
