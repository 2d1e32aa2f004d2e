"""Documents: all that a lens found in a checkpoint, one JSON file each in a results directory."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eval.messages import RequestError
from eval.rows.misfits import find_misfit, parse_json
from eval.rows.schema import LensDocument

FOLDER = "lenses"
Document = dict[str, Any]


def model_name(document: Document) -> str:
    """What a checkpoint is called in a menu: its name and its step."""
    checkpoint = document["checkpoint"]
    return f"{checkpoint['name']} at {checkpoint['step']}"


def read_documents(directory: str | Path) -> Iterator[Document]:
    """Every document of a results directory, in the order of their names.

    Raises:
        RequestError: as `read_document`.
    """
    for path in sorted((Path(directory) / FOLDER).glob("*.json")):
        yield read_document(path)


def read_document(path: Path) -> Document:
    """A document from its file.

    Raises:
        RequestError: it does not hold what a document must.
    """
    try:
        document = parse_json(path.read_bytes())
        fault = find_misfit(document, LensDocument)
        for numbers in () if fault else document["numbers"]:
            expected = math.prod(map(len, numbers["axes"].values()))
            words = {value for value in numbers["values"] if isinstance(value, str)}
            if len(numbers["values"]) != expected or not words <= {"inf", "-inf"}:
                fault = f"numbers of {numbers['name']!r}: expected {expected} for its axes"
    except ValueError:
        fault = "not JSON"
    if fault:
        raise RequestError(f"{path}: no document of a lens ({fault}); delete it and ask again")
    return document
