"""Figures of the lenses on the tokens' own vectors: geometry, bigrams, confidence, path."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
from markupsafe import Markup

from eval.report.charts import Figure
from eval.report.lenses.frame import (
    Document,
    Record,
    by_model,
    chosen,
    codes,
    data,
    figure_records,
    folded,
    lines,
    model_name,
    options,
    records,
    table,
    visible,
)

MEDIAN = 0.5


def draw_geometry(documents: Sequence[Document]) -> list[Figure]:
    """Lengths, alignment, and which likeness agrees with the model."""
    lengths, aligned = records(documents, "lengths"), records(documents, "alignment")
    agrees = records(documents, "agreement")
    return [
        Figure(
            "geometry-lengths",
            "How long are the tokens' vectors?",
            "Tokens by the length of their row in the input and in the output embedding.",
            by_model(_histogram(lengths, "length", "matrix"), lengths),
        ),
        Figure(
            "geometry-alignment",
            "Do a token's two vectors point the same way?",
            "Tokens by the cosine of their input and output row; the control pairs each with "
            "another token's.",
            by_model(_histogram(aligned, "cosine", "rows"), aligned),
        ),
        Figure(
            "geometry-agreement",
            "Which likeness agrees with the model?",
            "Share of positions whose nearest token, by each measure, is the model's own answer "
            "(of the embedding: the token itself).",
            by_model(_bars(agrees, "metric", "share", "query", "keys"), agrees),
        ),
    ]


def vector_tables(documents: Sequence[Document]) -> list[Markup]:
    """Outliers by name, the nearest tokens, and what comes back from a token's vector."""
    odd = [
        (model_name(d), o["matrix"], codes([o["piece"]]), f"{o['length']:.2f}", o["count"])
        for d in documents
        for o in d["notes"]["outliers"][:12]
    ]
    near = [
        (model_name(d), codes([n["piece"]]), n["metric"], codes(n["nearest"]))
        for d in documents
        for n in d["notes"]["nearest"]
    ]
    back = [
        (model_name(d), codes([r["piece"]]), r["method"], f"{r['own']:.3g}", codes(r["others"]))
        for d in documents
        for r in d["notes"]["round trip"]
    ]
    tied = [
        Markup("<li>{}: {}</li>").format(
            model_name(d),
            f"input and output are {'one matrix' if d['notes']['tied'] else 'two matrices'}",
        )
        for d in documents
    ]
    columns = ("checkpoint", "matrix", "token", "length, medians", "times seen")
    found = [Markup("<ul>{}</ul>").format(Markup("").join(tied))]
    if odd:
        found.append(folded("tokens of unusual length", table(columns, odd)))
    columns = ("checkpoint", "token", "by", "nearest in the input matrix")
    found.append(folded("nearest tokens", table(columns, near)))
    columns = ("checkpoint", "token", "way back", "its own value", "largest others")
    return [*found, folded("one-hot to vector and back to tokens", table(columns, back))]


def successors(documents: Sequence[Document]) -> list[Markup]:
    """What follows the most frequent tokens, in the corpus and by the embeddings alone."""
    rows = [
        (model_name(d), codes([s["piece"]]), codes(s["corpus"]), codes(s["table"]))
        for d in documents
        for s in d["notes"]["successors"]
    ]
    columns = ("checkpoint", "after", "in the corpus", "by W_E W_U'")
    return [folded("what follows the most frequent tokens", table(columns, rows))]


def split_words(documents: Sequence[Document]) -> list[Markup]:
    """Some of the words that the tokenizer splits."""
    rows = [
        (model_name(d), Markup("; ").join(codes(pieces) for pieces in d["notes"]["examples"]))
        for d in documents
    ]
    return [folded("words of several tokens", table(("checkpoint", "words"), rows))]


def draw_bigrams(documents: Sequence[Document]) -> list[Figure]:
    """Whether the embeddings alone say what follows what."""
    ranks = [r for r in records(documents, "bigrams") if r["measure"] == "rank"]
    return [
        Figure(
            "bigrams-rank",
            "Do the embeddings alone know what follows what?",
            "Where the corpus's true next tokens rank in each table of logits, 0 the top and 0.5 "
            "chance; the shuffled pairs are the control.",
            by_model(_bars(ranks, "pairs", "rank", "table"), ranks),
        )
    ]


def draw_confidence(documents: Sequence[Document]) -> list[Figure]:
    """Length and temperature against entropy."""
    scaled = _median(records(documents, "scale"))
    heated = [r for r in _median(records(documents, "temperature")) if r["measure"] == "best"]
    entropy = [r for r in scaled if r["measure"] == "entropy"]
    return [
        Figure(
            "confidence-length",
            "Is a vector's length its confidence?",
            "Median entropy of the next token as the final vector is scaled; before the norm, "
            "scaling changes nothing.",
            by_model(
                lines(entropy, "scale", "entropy, bits", "part").encode(
                    x=alt.X("scale:Q", scale=alt.Scale(type="symlog", constant=0.1))
                ),
                entropy,
            ),
        ),
        Figure(
            "confidence-temperature",
            "What does temperature do?",
            "Median probability of the likeliest token.",
            lines(heated, "temperature", "probability", "model").encode(
                x=alt.X("temperature:Q", scale=alt.Scale(type="log"))
            ),
        ),
    ]


def draw_path(documents: Sequence[Document]) -> list[Figure]:
    """The last position's way on the plane of two tokens."""
    found: list[Record] = []
    for document in documents:
        steps: dict[tuple[str, int], Record] = {}
        for r in records([document], "path"):
            step = {"model": r["model"], "prompt": r["prompt"], "layer": r["layer"]}
            steps.setdefault((r["prompt"], r["layer"]), step)[r["measure"]] = r["value"]
        found += [step | {"mark": str(step["layer"])} for step in steps.values()]
        ends: dict[tuple[str, str], Record] = {}
        prompts = options(records([document], "corners"), "prompt")
        for r in records([document], "corners"):
            pair = document["notes"]["pairs"][prompts.index(r["prompt"])]
            name = visible(pair[0 if r["token"] == "first" else 1])
            end = {"model": r["model"], "prompt": r["prompt"], "end": name}
            ends.setdefault((r["prompt"], r["token"]), end)[r["measure"]] = r["value"]
        found += ends.values()
    base = alt.Chart(data(found)).encode(
        x=alt.X("x:Q", title="along the first token"), y=alt.Y("y:Q", title="across it")
    )
    way = base.transform_filter("isValid(datum.layer)").encode(
        order="layer:Q",
        tooltip=["layer:O", alt.Tooltip("share:Q", title="share in the plane", format=".3f")],
    )
    corners = base.transform_filter("isValid(datum.end)").encode(tooltip=["end:N", "x:Q", "y:Q"])
    chart = alt.layer(
        way.mark_line(point=alt.OverlayMarkDef(size=50)),
        way.mark_text(dy=-10).encode(text="mark:N"),
        corners.mark_point(shape="diamond", size=120, filled=True, color="#b86e00"),
        corners.mark_text(dy=16, fontWeight="bold").encode(text="end:N"),
    ).properties(width=420, height=420)
    return [
        Figure(
            "path-plane",
            "How does the last position get to its answer?",
            "Its vector after each layer, on the plane of two tokens' output directions "
            "(diamonds): the answer and the runner-up.",
            chosen(chart, found, "model", "prompt"),
        )
    ]


def draw_words(documents: Sequence[Document]) -> list[Figure]:
    """What a word's last token still says of its tokens."""
    found = figure_records(documents, "read")
    chart = lines(found, "layer", "share read", "offset")
    return [
        Figure(
            "detokenisation-read",
            "Where are words put together?",
            "From a token of each group: how often a linear probe reads the token at an offset "
            "from it (0: itself), by layer.",
            chosen(chart, found, "model", "group"),
        )
    ]


def _histogram(found: list[Record], field: str, colour: str) -> alt.Chart:
    return (
        alt.Chart(data(found))
        .mark_area(interpolate="step", opacity=0.45, line=True)
        .encode(
            x=alt.X(f"{field}:Q"),
            y=alt.Y("value:Q", title="tokens", stack=None),
            color=alt.Color(f"{colour}:N", sort=options(found, colour)),
            tooltip=[f"{colour}:N", alt.Tooltip(f"{field}:Q", format=".3f"), "value:Q"],
        )
        .properties(width=620, height=200)
    )


def _bars(found: list[Record], x: str, y: str, column: str, row: str | None = None) -> alt.Chart:
    """Bars by `x` and coloured so, a panel for each value of `column`, and of `row`."""
    channels = {} if row is None else {"row": alt.Row(f"{row}:N", sort=options(found, row))}
    return (
        alt.Chart(data(found))
        .mark_bar()
        .encode(
            x=alt.X(f"{x}:N", sort=options(found, x), axis=alt.Axis(labelAngle=0, title=None)),
            y=alt.Y("value:Q", title=y),
            color=alt.Color(f"{x}:N", sort=options(found, x), legend=None),
            column=alt.Column(f"{column}:N", sort=options(found, column), title=None),
            tooltip=[
                f"{x}:N",
                f"{column}:N",
                *([f"{row}:N"] if row else []),
                alt.Tooltip("value:Q", format=".3f"),
            ],
            **channels,
        )
        .properties(width=150, height=130)
    )


def _median(found: list[Record]) -> list[Record]:
    return [r for r in found if r["quantile"] == MEDIAN]
