"""The page's part about the inside of models: a section of figures for each lens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from eval import plots
from eval.drawing import Figure
from eval.lenses.lens import Document, Documents, Lens, lenses, model_name
from eval.schema import Row


@dataclass(frozen=True)
class LensSection:
    """The figures of one lens.

    Attributes:
        name: the lens's.
        title: its heading.
        about: a sentence about it.
        figures: charts.
        texts: anything else, as HTML.
    """

    name: str
    title: str
    about: str
    figures: list[Figure]
    texts: list[Markup] = field(default_factory=list)


def lens_sections(documents: Sequence[Document], rows: Sequence[Row] = ()) -> list[LensSection]:
    """A section for each lens that has documents, in the order of `lenses`, and one for retrieval.

    A lens that is not registered was a plug-in; its section asks for its file. Of two documents of
    one lens and checkpoint the one asked last counts.
    """
    documents = _in_order(documents, rows)
    matched = [row for row in rows if row["kind"] == "retrieval"]
    names = _names([*documents, *matched])
    by_lens: dict[str, dict[Hashable, Document]] = defaultdict(dict)
    for document in documents:
        by_lens[document["lens"]][_weights(document)] = _named(document, names)
    known = lenses()
    parts = []
    for name in [*known, *(name for name in by_lens if name not in known)]:
        several = Documents(document for _, document in sorted(by_lens[name].items()))
        if several:
            about = several[0]["about"]
            about = f"{about[:1].upper()}{about[1:]}{'' if about.endswith('?') else '.'}"
            parts.append(_section(name, about, several, known.get(name)))
    if matched:
        about = "A sentence taken out of its story, and the story found again by hidden states."
        drawn = _retrieval([_named(row, names) for row in matched])
        parts.append(LensSection("retrieval", "Retrieval", about, drawn))
    return parts


def _section(name: str, about: str, documents: Documents, lens: Lens | None) -> LensSection:
    if lens is None:
        text = Markup("<p>Its figures are drawn by the file that defines it: give that file to the "
                      "command of this page as <code>--plugin FILE</code>.</p>")  # fmt: skip
        return LensSection(name, name, about, [], [text])
    drawn = [figure for figure in lens.figures(documents) if figure.chart is not None]
    return LensSection(name, lens.title or name, about, drawn, lens.texts(documents))


def _in_order(documents: Sequence[Document], rows: Sequence[Row]) -> list[Document]:
    """As they were asked, by the order of their rows."""
    order = {row["look"]: i for i, row in enumerate(rows) if "look" in row}
    return sorted(documents, key=lambda document: order.get(document.get("key"), -1))


def _names(given: Sequence[Document | Row]) -> dict[tuple[str, int, str], str]:
    """The name of each checkpoint; with a hash of the weights where name and step are shared."""
    every = {_weights(one) for one in given}
    alike = Counter((name, step) for name, step, _ in every)
    return {
        (name, step, weights): f"{name} ({weights[:10]})" if alike[name, step] > 1 else name
        for name, step, weights in every
    }


def _weights(one: Document | Row) -> tuple[str, int, str]:
    """One model at one training step."""
    about = one["checkpoint"]
    return about["name"], about["step"], about.get("weights_sha256", "")


def _named(one: Document | Row, names: dict[tuple[str, int, str], str]) -> dict[str, Any]:
    return {**one, "checkpoint": one["checkpoint"] | {"name": names[_weights(one)]}}


def _retrieval(rows: Sequence[Row]) -> list[Figure]:
    """Top-1 by number of candidates."""
    shown = ("candidates", "method", "pool", "layer", "sentence", "low", "high", "chance")
    records = [
        {"model": model_name(row), "value": row["top1"], **{name: row[name] for name in shown}}
        for row in rows
    ]
    records = [r for r in records if r["pool"] == "mean"] or records
    last = {
        m: max(r["layer"] for r in records if r["model"] == m)
        for m in plots.options(records, "model")
    }
    deepest = [r for r in records if r["layer"] == last[r["model"]]]
    from_low = {"scale": {"zero": False}}
    chart = plots.lines(deepest, "candidates", "found first", "model", "method",
                        x_scale={"type": "log", "base": 2}, upright=from_low)  # fmt: skip
    return [
        Figure(
            "retrieval-top1",
            "Which story does a sentence belong to?",
            "Share of sentences whose own story is nearest among so many, by the last layer's "
            "states averaged over positions: as they are, centred, and after a short fit.",
            plots.chosen(chart, deepest, "sentence"),
        )
    ]
