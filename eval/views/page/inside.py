"""The page's part about the inside of models: a section of figures for each lens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from eval.analysis.coordinates import looked_at
from eval.drawing.figures import Figure
from eval.lenses.documents import Document, model_name
from eval.lenses.lens import Lens, lenses
from eval.lenses.table import Table
from eval.messages import say_once
from eval.rows.schema import Row


class LensSection(NamedTuple):
    """The figures of one lens."""

    name: str
    title: str
    about: str  # a sentence
    figures: list[Figure]
    texts: Sequence[Markup] = ()  # anything else


def lens_sections(documents: Sequence[Document], rows: Sequence[Row] = ()) -> list[LensSection]:
    """A section for each lens that has documents, in the order of `lenses`.

    A lens that is not registered was a plug-in; its section asks for its file. Of two documents of
    one lens and checkpoint the one asked last counts, by the order of their rows.
    """
    order = {row["look"]: i for i, row in enumerate(rows) if "look" in row}
    documents = sorted(documents, key=lambda document: order.get(document.get("key"), -1))
    last: dict[Any, Document] = {looked_at(document): document for document in documents}
    alike = Counter((name, step) for name, step, _ in {which[1:] for which in last})

    def named(document: Document) -> Document:
        """With a hash of the weights in the checkpoint's name, where name and step are shared."""
        about = document["checkpoint"]
        shared, digest = alike[about["name"], about["step"]] > 1, about["weights_sha256"][:10]
        return {**document, "checkpoint": about | {"name": about["name"] + f" ({digest})" * shared}}

    known, found = lenses(), dict.fromkeys(lens for lens, *_ in last)
    parts = []
    for name in [*(n for n in known if n in found), *(n for n in found if n not in known)]:
        of_lens = [named(last[which]) for which in sorted(last) if which[0] == name]
        about = of_lens[0]["about"]
        about = f"{about[:1].upper()}{about[1:]}{'' if about.endswith('?') else '.'}"
        parts.append(_section(name, about, of_lens, known.get(name)))
    return parts


def _section(name: str, about: str, documents: list[Document], lens: Lens | None) -> LensSection:
    if lens is None:
        say_once(f"lens {name} is left out: give the file that defines it as --plugin FILE")
        text = Markup("<p>Its figures are drawn by the file that defines it: give that file to the "
                      "command of this page as <code>--plugin FILE</code>.</p>")  # fmt: skip
        return LensSection(name, name, about, [], [text])
    tables = {model_name(document): Table.read(document) for document in documents}
    return LensSection(name, lens.title, about, lens.figures(tables), lens.texts(tables))
