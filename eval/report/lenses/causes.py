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
    heat,
    lines,
    menu,
    model_name,
    options,
    records,
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
    return [
        Figure(
            "intervention-effect",
            "Which layer and position does the answer pass through?",
            "A vector of one prompt's run put into the other's: how far its answer moves over, 1 "
            "being all the way.",
            chosen(
                heat(found, "place", "layer", "effect", DIVERGING, sort_y="descending"),
                ("model", menu("model", found, "checkpoint")),
                ("pair", menu("pair", found, "pair")),
            ),
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
            chosen(
                chart,
                ("model", menu("model", found, "checkpoint")),
                ("attribute", menu("attribute", found, "attribute")),
            ),
        )
    ]


def samples(documents: Sequence[Document]) -> list[Markup]:
    """Text written by steered models."""
    rows = Markup("").join(
        Markup("<tr><td>{}</td><td>{}</td><td>{}</td></tr>").format(
            model_name(document), sample["swapped"], sample["text"]
        )
        for document in documents
        for sample in document["notes"].get("samples", [])
    )
    if not rows:
        return []
    head = Markup("<tr><th>checkpoint</th><th>swapped</th><th>goes on with</th></tr>")
    return [
        Markup(
            '<details><summary>text written with features swapped</summary><div class="scroll">'
            '<table class="plain"><thead>{}</thead><tbody>{}</tbody></table></div></details>'
        ).format(head, rows)
    ]


def draw_features(documents: Sequence[Document]) -> list[Figure]:
    """Whether retellings share features."""
    every = figure_records(documents, "feature overlap")
    found = [r for r in every if r["layer"] != "tokens"]
    chart = lines(found, "layer", "intersection over union", "texts")
    return [
        Figure(
            "features-overlap",
            "Do two tellings of one story share features?",
            "Overlap of the units active in two texts: tellings of one story, unrelated texts, and "
            "what the units' frequencies alone would give.",
            chosen(
                chart,
                ("model", menu("model", found, "checkpoint")),
                ("of", menu("of", found, "units")),
            ),
        )
    ]


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
            chosen(
                alt.layer(band, chart),  # pyright: ignore[reportArgumentType]
                ("sentence", menu("sentence", deepest, "sentence")),
            ),
        )
    ]
