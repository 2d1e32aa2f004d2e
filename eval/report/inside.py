"""The page's part about the inside of models: a section of figures for each lens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from eval.compare.evidence import own_rows
from eval.report.charts import Figure
from eval.report.lenses import causes, logit, mixers, residual, tokens
from eval.report.lenses.frame import Document
from eval.results import Row


@dataclass(frozen=True)
class Section:
    """What one lens saw.

    Attributes:
        name: the lens's.
        title: its heading.
        about: what it does, in a sentence.
        figures: charts.
        texts: anything else, as HTML.
    """

    name: str
    title: str
    about: str
    figures: list[Figure]
    texts: list[Markup] = field(default_factory=list)


@dataclass(frozen=True)
class Drawer:
    """How a lens's documents become a section."""

    title: str
    figures: Callable[[Sequence[Document]], list[Figure]]
    texts: Callable[[Sequence[Document]], list[Markup]] = lambda documents: []


DRAWERS = {
    "residual": Drawer("The residual stream", residual.draw),
    "logit": Drawer("The logit lens", logit.draw),
    "tuned": Drawer("The tuned lens", logit.draw),
    "geometry": Drawer("The tokens' vectors", tokens.draw_geometry, tokens.vector_tables),
    "bigrams": Drawer("What follows what", tokens.draw_bigrams, tokens.successors),
    "confidence": Drawer("Length, temperature, confidence", tokens.draw_confidence),
    "path": Drawer("The way to the answer", tokens.draw_path),
    "detokenisation": Drawer("Words of several tokens", tokens.draw_words, tokens.split_words),
    "mixing": Drawer("Where the mixers look", mixers.draw_mixing),
    "ov": Drawer("What heads write", mixers.draw_ov),
    "attribution": Drawer("Attribution", causes.draw_attribution, causes.highlights),
    "intervention": Drawer("Patching", causes.draw_intervention),
    "steering": Drawer("Swapped features", causes.draw_steering, causes.samples),
    "features": Drawer("Shared features", causes.draw_features, causes.shared_words),
    "sparse": Drawer("A sparse autoencoder's features", causes.draw_sparse, causes.shared_words),
}


def sections(documents: Sequence[Document], rows: Sequence[Row] = ()) -> list[Section]:
    """A section for each lens that has been looked through, in the order of `DRAWERS`.

    Args:
        documents: what lenses found; of two of one lens and checkpoint the one asked last counts.
        rows: in the order of asking; those of retrieval become a section too.
    """
    documents = _in_order(documents, rows)
    matched = [row for row in own_rows(rows, lone=False) if row.get("kind") == "retrieval"]
    names = _names([*documents, *matched])
    by_lens: dict[str, dict[Hashable, Document]] = defaultdict(dict)
    for document in documents:
        by_lens[document["lens"]][_weights(document)] = _named(document, names)
    found = []
    for name, drawer in DRAWERS.items():
        own = [document for _, document in sorted(by_lens[name].items())]
        if own:
            about = own[0]["about"]
            about = f"{about[:1].upper()}{about[1:]}{'' if about.endswith('?') else '.'}"
            drawn = [figure for figure in drawer.figures(own) if figure.chart is not None]
            found.append(Section(name, drawer.title, about, drawn, drawer.texts(own)))
    if matched:
        about = "A sentence taken out of its story, and the story found again by hidden states."
        drawn = causes.draw_retrieval([_named(row, names) for row in matched])
        found.append(Section("retrieval", "Retrieval", about, drawn))
    return found


def _in_order(documents: Sequence[Document], rows: Sequence[Row]) -> list[Document]:
    """As they were asked, which their rows tell; without those that only claims asked."""
    own = {row["look"]: i for i, row in enumerate(own_rows(rows, lone=False)) if "look" in row}
    of_claims = {row["look"] for row in rows if "look" in row} - set(own)
    kept = [document for document in documents if document.get("key") not in of_claims]
    return sorted(kept, key=lambda document: own.get(document.get("key"), -1))


def _names(found: Sequence[Document | Row]) -> dict[tuple[str, int, str], str]:
    """What each checkpoint is called: of several of one name and step, the weights say which."""
    every = {_weights(one) for one in found}
    alike = Counter((name, step) for name, step, _ in every)
    return {
        (name, step, weights): f"{name} ({weights[:10]})" if alike[name, step] > 1 else name
        for name, step, weights in every
    }


def _weights(found: Document | Row) -> tuple[str, int, str]:
    """One model at one training step."""
    about = found["checkpoint"]
    return about["name"], about["step"], about.get("weights_sha256", "")


def _named(found: Document | Row, names: dict[tuple[str, int, str], str]) -> dict[str, Any]:
    return {**found, "checkpoint": found["checkpoint"] | {"name": names[_weights(found)]}}
