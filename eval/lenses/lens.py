"""What a lens is, the register of all of them, and the documents that hold what they found.

A lens is one file: a function that finds numbers, decorated with `lens`, and beside it the
functions that draw them. Those of the modules of this folder are registered when they are first
asked for; one in a user's own file, when that file is run.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eval.errors import RequestError
from eval.lenses import markup
from eval.models import Checkpoint
from eval.statistics import clustered
from eval.text import Prompt

if TYPE_CHECKING:
    from markupsafe import Markup

    from eval.plots import Figure

TOKENS = 8192
ALL = "all"
FOLDER = "lenses"
Document = dict[str, Any]
Record = dict[str, Any]
Label = str | int | float


@dataclass(frozen=True)
class Named:
    """An array whose axes have names and labels.

    Attributes:
        values: on the CPU, one axis for each name.
        axes: name of each axis in order, with the label of each of its places.

    Raises:
        ValueError: axes that do not fit the values.
    """

    values: Tensor
    axes: Mapping[str, Sequence[Label]]

    def __post_init__(self) -> None:
        """Brings the values to the CPU and checks their shape."""
        object.__setattr__(self, "values", self.values.detach().cpu())
        shape = tuple(len(labels) for labels in self.axes.values())
        if shape != tuple(self.values.shape):
            raise ValueError(f"axes {shape} do not fit values {tuple(self.values.shape)}")

    def records(self, **more: Any) -> Iterator[Record]:
        """A flat record for every number: `more`, its labels by axis, and itself as `value`."""
        numbers = self.values.flatten().tolist()
        for labels, number in zip(product(*self.axes.values()), numbers, strict=True):
            yield more | dict(zip(self.axes, labels, strict=True)) | {"value": number}

    def plain(self) -> dict[str, Any]:
        """As JSON holds it, to six significant digits; what is no number is null."""
        flat = [_short(number) for number in self.values.flatten().tolist()]
        return {"axes": {name: list(labels) for name, labels in self.axes.items()}, "values": flat}

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Named:
        """Reads what `plain` made."""
        flat = [float("nan") if number is None else number for number in plain["values"]]
        shape = [len(labels) for labels in plain["axes"].values()]
        return cls(torch.tensor(flat, dtype=torch.float64).view(shape), plain["axes"])


@dataclass(frozen=True)
class Request:
    """What is asked of a lens.

    Attributes:
        prompts: what is looked at, each short enough for the model.
        words: tokens whose probability or direction is followed, as texts; a lens that needs some
            and is given none takes the model's own answers.
        corpus: where text comes from, for a lens that is fitted or counted on some.
        tokens: how much of that text: with more of it all fits are better, and take longer.
        seed: of whatever is drawn.
        store: the results directory in which what is fitted is kept and read again; None to fit
            each time. It is no part of what is asked.
    """

    prompts: tuple[Prompt, ...]
    words: tuple[str, ...] = ()
    corpus: str = "toy"
    tokens: int = TOKENS
    seed: int = 0
    store: str | Path | None = field(default=None, compare=False)

    @property
    def record(self) -> Record:
        """What is asked, for keys and documents."""
        return {name: value for name, value in asdict(self).items() if name != "store"}


@dataclass(frozen=True)
class Finding:
    """What a lens found in one checkpoint.

    Attributes:
        arrays: by name; what figures are drawn from.
        figures: records of single numbers, which become rows: `figure` (its name), `value`, and
            whatever places it (`layer`, `part`, `method`, ...); `low`, `high`, `n` for an interval;
            `by_axis`, `named` and `mean_record` make them.
        notes: anything else that the page shows, as JSON holds it: `tokens` (a list of pieces for
            each prompt), tables, texts.
    """

    arrays: dict[str, Named] = field(default_factory=dict)
    figures: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


Find = Callable[[Checkpoint, Request], Finding]
Figures = Callable[[Sequence[dict[str, Any]]], "list[Figure]"]
Texts = Callable[[Sequence[dict[str, Any]]], "list[Markup]"]


@dataclass(frozen=True)
class Lens:
    """One way of looking.

    Attributes:
        name: as on the command line.
        about: in a line.
        find: looks. Raises RequestError for a model or a request that it cannot look at.
        title: of its section of the page; the name when empty.
        figures: draws the documents of all checkpoints.
        texts: tables and texts of those documents, as HTML.
        order: its place in lists and on the page, the smallest first.
    """

    name: str
    about: str
    find: Find
    title: str = ""
    figures: Figures = lambda documents: []
    texts: Texts = lambda documents: []
    order: float = 100.0


REGISTER: dict[str, Lens] = {}
"""Lenses by name, as far as their modules are imported; `lenses` imports those of this folder."""


def lens(name: str, about: str, **settings: Any) -> Callable[[Find], Find]:
    """Registers the decorated function as the `find` of a lens.

    Args:
        name: as on the command line.
        about: in a line.
        settings: the other attributes of `Lens`.

    Raises:
        RequestError: another file has a lens of that name.
    """

    def register(find: Find) -> Find:
        before = REGISTER.get(name)
        if before and _file(before.find) != _file(find):
            raise RequestError(f"lens {name}: {_file(before.find)} has one of that name; rename it")
        REGISTER[name] = Lens(name, about, find, **settings)
        return find

    return register


def lenses() -> dict[str, Lens]:
    """All lenses by name, in their order."""
    _import_all()
    return {one.name: one for one in sorted(REGISTER.values(), key=lambda one: one.order)}


def choose(names: list[str]) -> list[Lens]:
    """The lenses of these names, `all` standing for every one, each once.

    Raises:
        RequestError: a name that is not there.
    """
    known, chosen = lenses(), {}
    for name in names:
        if name != ALL and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise RequestError(
                f"--lens {name}: no lens of that name; {hint}use {ALL} or some of "
                f"{', '.join(known)}"
            )
        chosen |= known if name == ALL else {name: known[name]}
    return list(chosen.values())


@functools.cache
def _import_all() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")


def by_axis(
    figure: str, values: Tensor, axes: Mapping[str, Sequence[Label]], **more: Any
) -> list[Record]:
    """A record of `Finding.figures` for each number of a tensor that has these axes."""
    return list(Named(values, axes).records(figure=figure, **more))


def named(values: Mapping[str, float | Tensor], **place: Any) -> list[Record]:
    """A record of `Finding.figures` for each number by its name, all of one place."""
    return [{"figure": name, **place, "value": float(value)} for name, value in values.items()]


def mean_record(values: Sequence[float], clusters: Sequence[Hashable] = ()) -> Record:
    """`value` with the mean, `n`, and `low` and `high` where there are several clusters.

    Args:
        values: at least one.
        clusters: what each belongs to, such as its prompt; each is its own when not given.
    """
    groups = clusters or range(len(values))
    interval = clustered(values, [1] * len(values), groups, [0] * len(values))
    record = {"value": interval.estimate, "n": len(values)}
    return record | ({"low": interval.low, "high": interval.high} if len(set(groups)) > 1 else {})


def word_tokens(checkpoint: Checkpoint, words: Iterable[str]) -> dict[str, int]:
    """The one token that each word is: tokens whose probability or direction a lens follows.

    Raises:
        RequestError: a word that is no token or several, with its split shown.
    """
    return {word: _token(checkpoint, word) for word in words}


def read_documents(directory: str | Path) -> Iterator[Document]:
    """Every document of a results directory, in the order of their names."""
    for path in sorted((Path(directory) / FOLDER).glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def model_name(document: Document) -> str:
    """What a checkpoint is called in a menu: its name and its step."""
    checkpoint = document["checkpoint"]
    return f"{checkpoint['name']} at {checkpoint['step']}"


def records(documents: Sequence[Document], array: str) -> list[Record]:
    """A record for each number of an array in every document that has it, with its `model`."""
    rows = []
    for document in documents:
        if array in document["arrays"]:
            rows += Named.read(document["arrays"][array]).records(model=model_name(document))
    return _known(rows)


def figure_records(documents: Sequence[Document], *names: str) -> list[Record]:
    """The single figures of these names in every document, with its `model`."""
    return _known(
        {"model": model_name(document)} | figure
        for document in documents
        for figure in document["figures"]
        if figure["figure"] in names
    )


def _known(rows: Iterable[Record]) -> list[Record]:
    """Those with a value, which is what a chart can show."""
    return [r for r in rows if r["value"] is not None and r["value"] == r["value"]]


def note_table(
    documents: Sequence[Document],
    note: str,
    summary: str,
    columns: Sequence[str],
    cells: Callable[[Any], Sequence[Any]],
) -> list[Markup]:
    """A folded table of a note of every document, a row for each entry; none without an entry.

    Args:
        documents: of all checkpoints.
        note: a list in their `notes`.
        summary: stands above it.
        columns: after that of the checkpoint.
        cells: an entry's, one for each column.
    """
    rows = [(model_name(d), *cells(one)) for d in documents for one in d["notes"].get(note, [])]
    table = markup.table(("checkpoint", *columns), rows)
    return [markup.folded(summary, table)] if rows else []


def prompt_pieces(document: Document) -> dict[str, list[str]]:
    """The tokens of each prompt, by its label in the axis `prompt`."""
    return {f"{p['kind']} {p['index']}": p["pieces"] for p in document["prompts"]}


def averaged(rows: list[Record], *fields: str) -> list[Record]:
    """The mean value over all records that agree in these fields."""
    values: dict[tuple[Any, ...], list[float]] = {}
    for record in rows:
        values.setdefault(tuple(record[f] for f in fields), []).append(record["value"])
    return [
        dict(zip(fields, place, strict=True)) | {"value": sum(several) / len(several)}
        for place, several in values.items()
    ]


def at_tokens(
    documents: Sequence[Document],
    rows: list[Record],
    axis: str = "prompt",
    pieces_of: Callable[[Document], dict[str, list[str]]] = prompt_pieces,
) -> list[Record]:
    """With `token` and `place` (a label for an axis) for records of a prompt's positions.

    Padded or missing positions are left out.

    Args:
        documents: those of the records.
        rows: records with `position` and the axis.
        axis: whose label says which tokens.
        pieces_of: the tokens of each label in a document.
    """
    pieces = {model_name(document): pieces_of(document) for document in documents}
    placed = []
    for record in rows:
        tokens = pieces[record["model"]][record[axis]]
        if record["position"] < len(tokens):
            token = markup.visible(tokens[record["position"]])
            place = f"{record['position']} {token}"
            placed.append(record | {"token": token, "place": place})
    return placed


def _token(checkpoint: Checkpoint, word: str) -> int:
    ids = _encode(checkpoint, word)
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise RequestError(f"--words {word!r}: there is no token in it; give a word")
    split = " ".join(f'"{piece}"' for piece in checkpoint.pieces(ids))
    spaced = f" {word}"
    other = f', or "{spaced}", which is one' if len(_encode(checkpoint, spaced)) == 1 else ""
    raise RequestError(f'"{word}" is {len(ids)} tokens here: {split}; choose one of them{other}')


def _encode(checkpoint: Checkpoint, text: str) -> list[int]:
    return checkpoint.tokenizer.encode(text, add_special_tokens=False).ids


def _file(find: Find) -> str:
    return inspect.getfile(inspect.unwrap(find))


def _short(number: float) -> float | int | None:
    if isinstance(number, int):
        return number
    return float(f"{number:.6g}") if abs(number) < float("inf") else None
