"""The page's part about the inside of models: a section of figures for each lens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from eval.report.charts import Figure
from eval.report.lenses import residual
from eval.report.lenses.frame import Document


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


DRAWERS = {"residual": Drawer("The residual stream", residual.draw)}


def sections(documents: Sequence[Document]) -> list[Section]:
    """A section for each lens that has been looked through, in the order of `DRAWERS`."""
    by_lens = defaultdict(list)
    for document in documents:
        by_lens[document["lens"]].append(document)
    return [
        Section(name, drawer.title, own[0]["about"], drawer.figures(own), drawer.texts(own))
        for name, drawer in DRAWERS.items()
        if (own := sorted(by_lens[name], key=lambda d: d["checkpoint"]["step"]))
    ]
