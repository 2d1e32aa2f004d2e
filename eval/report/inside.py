"""The page's part about the inside of models: a section of figures for each lens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

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
        documents: what lenses found; of two of one lens and checkpoint the last counts.
        rows: those of retrieval become a section too.
    """
    by_lens = defaultdict(dict)
    for document in documents:
        place = (document["checkpoint"]["name"], document["checkpoint"]["step"])
        by_lens[document["lens"]][place] = document
    found = []
    for name, drawer in DRAWERS.items():
        own = [document for _, document in sorted(by_lens[name].items())]
        if own:
            about = own[0]["about"]
            about = f"{about[:1].upper()}{about[1:]}{'' if about.endswith('?') else '.'}"
            drawn = [figure for figure in drawer.figures(own) if figure.chart is not None]
            found.append(Section(name, drawer.title, about, drawn, drawer.texts(own)))
    matched = [row for row in rows if row.get("kind") == "retrieval"]
    if matched:
        about = "A sentence taken out of its story, and the story found again by hidden states."
        found.append(Section("retrieval", "Retrieval", about, causes.draw_retrieval(matched)))
    return found
