"""Documents of lenses: read back, and their arrays as records for charts and tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from eval.lenses.markup import visible
from eval.lenses.named import Named

FOLDER = "lenses"
Document = dict[str, Any]
Record = dict[str, Any]


def read_documents(directory: str | Path) -> Iterator[dict[str, Any]]:
    """Every document of a results directory, in the order of their names."""
    for path in sorted((Path(directory) / FOLDER).glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def model_name(document: Document) -> str:
    """What a checkpoint is called in a menu: its name and its step."""
    checkpoint = document["checkpoint"]
    return f"{checkpoint['name']} at {checkpoint['step']}"


def records(documents: Sequence[Document], array: str) -> list[Record]:
    """A record for each number of an array in every document that has it, with its `model`."""
    found = []
    for document in documents:
        if array in document["arrays"]:
            named = Named.read(document["arrays"][array])
            found += [{"model": model_name(document)} | r for r in named.records()]
    return _known(found)


def figure_records(documents: Sequence[Document], *names: str) -> list[Record]:
    """The single figures of these names in every document, with its `model`."""
    return _known(
        {"model": model_name(document)} | figure
        for document in documents
        for figure in document["figures"]
        if figure["figure"] in names
    )


def _known(found: Iterable[Record]) -> list[Record]:
    """Those with a value, which is what a chart can show."""
    return [r for r in found if r["value"] is not None and r["value"] == r["value"]]


def averaged(found: list[Record], *fields: str) -> list[Record]:
    """The mean value over all records that agree in these fields."""
    values: dict[tuple[Any, ...], list[float]] = {}
    for record in found:
        values.setdefault(tuple(record[f] for f in fields), []).append(record["value"])
    return [
        dict(zip(fields, place, strict=True)) | {"value": sum(own) / len(own)}
        for place, own in values.items()
    ]


def at_tokens(documents: Sequence[Document], found: list[Record]) -> list[Record]:
    """With `token` and `place` (a label for an axis) for records of a prompt's positions.

    Padded or missing positions are left out.
    """
    pieces = {
        (model_name(d), f"{p['kind']} {p['index']}"): p["pieces"]
        for d in documents
        for p in d["prompts"]
    }
    placed = []
    for record in found:
        tokens = pieces[record["model"], record["prompt"]]
        if record["position"] < len(tokens):
            token = visible(tokens[record["position"]])
            place = f"{record['position']} {token}"
            placed.append(record | {"token": token, "place": place})
    return placed
