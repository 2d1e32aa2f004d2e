"""What a lens is, the register of all lenses, and what a lens writes and draws.

A lens is one file: a function that measures, decorated with `lens`, and functions that draw what
was measured. The modules of this folder are registered when lenses are first asked for, a user's
own file when it is run.
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
from tokenizers import Tokenizer
from torch import Tensor

from eval import RequestError
from eval.lenses import markup
from eval.lenses.table import Table
from eval.lenses.trace import gather
from eval.models import Checkpoint
from eval.statistics import clustered

if TYPE_CHECKING:
    from markupsafe import Markup

    from eval.lenses.charts import Chart, Tables
    from eval.plots import Figure
    from eval.text import Prompt

TOKENS = 8192
ALL = "all"
FOLDER = "lenses"
HERE = Path(__file__).parent
Document = dict[str, Any]
Record = dict[str, Any]
Label = str | int | float
Axes = Mapping[str, Sequence[Label]]
"""The name of each axis in order, with the label of each place."""


@dataclass(frozen=True)
class Named:
    """An array, brought to the CPU, whose axes have names and labels.

    Raises:
        ValueError: axes that do not fit the values.
    """

    values: Tensor
    axes: Axes

    def __post_init__(self) -> None:
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
        """For JSON, to six significant digits; NaN and infinite values are null."""
        flat = [_short(number) for number in self.values.flatten().tolist()]
        return {"axes": {name: list(labels) for name, labels in self.axes.items()}, "values": flat}

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Named:
        """Reads what `plain` made; null becomes NaN."""
        flat = [float("nan") if number is None else number for number in plain["values"]]
        shape = [len(labels) for labels in plain["axes"].values()]
        return cls(torch.tensor(flat, dtype=torch.float64).view(shape), plain["axes"])


@dataclass(frozen=True)
class Request:
    """The prompts and settings that a lens is given.

    Attributes:
        prompts: each short enough for the model.
        words: tokens, as texts, whose probability or direction is followed; a lens that needs some
            and is given none takes the model's answers.
        corpus: where text comes from, for a lens that fits or counts.
        tokens: how much of that text; fits improve with more of it, and take longer.
        seed: of whatever is drawn.
        store: results directory in which fits are kept and read again; None to fit each time.
    """

    prompts: tuple[Prompt, ...]
    words: tuple[str, ...] = ()
    corpus: str = "toy"
    tokens: int = TOKENS
    seed: int = 0
    store: str | Path | None = field(default=None, compare=False)

    @property
    def record(self) -> Record:
        """All of it but the store, for keys and documents."""
        return {name: value for name, value in asdict(self).items() if name != "store"}


@dataclass
class Finding:
    """What a lens measures in one checkpoint, filled in by the methods.

    Attributes:
        arrays: by name; charts are drawn from them.
        figures: records of single numbers, which become rows: `figure` (its name), `value`, what
            places it (`layer`, `part`, `method`, ...), and `low`, `high`, `n` of an interval.
        notes: anything else that the page shows, as JSON holds it, such as tables and texts.
    """

    arrays: dict[str, Named] = field(default_factory=dict)
    figures: list[Record] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def array(self, name: str, values: Tensor, axes: Axes) -> None:
        """Adds an array."""
        self.arrays[name] = Named(values, axes)

    def number(self, figure: str, value: float | Tensor, **place: Any) -> None:
        """Adds a record."""
        self.figures.append({"figure": figure, **place, "value": float(value)})

    def numbers(self, values: Mapping[str, float | Tensor], **place: Any) -> None:
        """Adds a record for each number by its name, all of one place."""
        for name, value in values.items():
            self.number(name, value, **place)

    def rows(self, figure: str, values: Tensor, axes: Axes, **place: Any) -> None:
        """Adds a record for each number of a tensor, placed by the labels of its axes."""
        self.figures.extend(Named(values, axes).records(figure=figure, **place))

    def mean(
        self, figure: str, values: Sequence[float], clusters: Sequence[Hashable] = (), **place: Any
    ) -> None:
        """Adds a record of a mean: with `n`, and `low` and `high` where there are several clusters.

        Clusters are what the values belong to, such as prompts; without them each is its own. The
        mean of no value is NaN.
        """
        if not values:
            return self.number(figure, float("nan"), **place, n=0)
        groups = clusters or range(len(values))
        interval = clustered(values, [1] * len(values), groups, [0] * len(values))
        limits = {"low": interval.low, "high": interval.high} if len(set(groups)) > 1 else {}
        return self.number(figure, interval.estimate, **place, **limits, n=len(values))


def model_name(document: Document) -> str:
    """What a checkpoint is called in a menu: its name and its step."""
    checkpoint = document["checkpoint"]
    return f"{checkpoint['name']} at {checkpoint['step']}"


class Documents(list[Document]):
    """What one lens found in each checkpoint; its charts and tables are drawn of this."""

    @property
    def lens(self) -> str:
        """The name of the lens."""
        return self[0]["lens"]

    def records(self, array: str, **chosen: Any) -> list[Record]:
        """A record for each number of an array, with its `model`; those with the chosen labels."""
        rows = (
            record
            for document in self
            if array in document["arrays"]
            for record in Named.read(document["arrays"][array]).records(model=model_name(document))
        )
        return [
            row
            for row in rows
            if row["value"] == row["value"] and all(row[name] == chosen[name] for name in chosen)
        ]

    def figures(self, *names: str) -> list[Record]:
        """The single figures of these names that are numbers, each with its `model`."""
        return [
            {"model": model_name(document)} | figure
            for document in self
            for figure in document["figures"]
            if figure["figure"] in names and figure["value"] is not None
        ]

    def by_prompt(self, note: str = "") -> dict[tuple[str, str], Any]:
        """The tokens of each prompt, or the entry of a note for it, by `model` and `prompt`."""
        return {
            (model_name(one), f"{prompt['kind']} {prompt['index']}"): entry
            for one in self
            for prompt, entry in zip(
                one["prompts"],
                one["notes"][note] if note else [prompt["pieces"] for prompt in one["prompts"]],
                strict=True,
            )
        }

    def at_tokens(
        self,
        rows: list[Record],
        axis: str = "prompt",
        pieces: Mapping[Any, list[str]] | None = None,
    ) -> list[Record]:
        """Records of positions with their `token` and a `place`, a label for charts.

        Args:
            rows: with `model`, `position` and the axis; those past the end are left out.
            axis: whose label says which tokens.
            pieces: the tokens by model and label; those of `by_prompt` when not given.
        """
        pieces, placed = pieces or self.by_prompt(), []
        for record in rows:
            tokens = pieces[record["model"], record[axis]]
            if record["position"] < len(tokens):
                token = markup.visible(tokens[record["position"]])
                place = f"{record['position']} {token}"
                placed.append(record | {"token": token, "place": place})
        return placed

    def table(
        self, note: str, summary: str, columns: Sequence[str], cells: Callable[[Any], Sequence[Any]]
    ) -> list[Markup]:
        """A folded table of the entries of a note: the checkpoint, and what `cells` makes of each.

        None where there is no entry.
        """
        rows = [(model_name(d), *cells(one)) for d in self for one in d["notes"].get(note, [])]
        table = markup.html_table(("checkpoint", *columns), rows)
        return [markup.folded(summary, table)] if rows else []


Find = Callable[..., Any]


@dataclass(frozen=True)
class Lens:
    """A lens as it is registered.

    Attributes:
        name: as on the command line.
        about: in a line.
        find: measures, without autograd. Raises RequestError for a model or a request that it
            cannot look at.
        title: of its section of the page; the name when empty.
        figures: draws the documents of all checkpoints.
        texts: tables and texts of those documents, as HTML.
        order: its place in lists and on the page, the smallest first.
    """

    name: str
    about: str
    find: Find
    title: str = ""
    figures: Callable[[Documents], list[Figure]] = lambda documents: []
    texts: Callable[[Documents], list[Markup]] = lambda documents: []
    order: float = 100.0
    charts: Sequence[Chart] | None = None
    draw: Callable[[Tables], list[Figure]] = lambda tables: []
    html: Callable[[Tables], list[Markup]] = lambda tables: []

    def measure(self, checkpoint: Checkpoint, request: Request) -> Table:
        """What it finds in a checkpoint.

        Raises:
            RequestError: it cannot look at this model or request.
        """
        batch = gather(checkpoint, request.prompts)
        pieces = {label: checkpoint.pieces(list(prompt.tokens[: prompt.real]))
                  for label, prompt in zip(batch.labels, request.prompts, strict=True)}  # fmt: skip
        table = Table(pieces=pieces)
        self.find(checkpoint, batch, request, table)
        return table

    def drawn(self, tables: Tables) -> list[Figure]:
        """Its figures over all checkpoints: its own, then those that are declared."""
        declared = [chart.draw(self.name, tables) for chart in self.charts or ()]
        return self.draw(tables) + [figure for figure in declared if figure]


REGISTER: dict[str, Lens] = {}
"""Lenses by name, as far as their modules are imported; `lenses` imports those of this folder."""


def lens(name: str, title: str = "", **settings: Any) -> Callable[[Find], Find]:
    """Registers the decorated function as the `find` of a lens.

    The first line of its docstring is the lens's `about`. Settings are the other attributes.

    Raises:
        RequestError: another file has a lens of that name.
    """

    def register(find: Find) -> Find:
        if _file(find).parent != HERE:
            _import_all()  # or a file could take the name of a lens that is not there yet
        before = REGISTER.get(name)
        if before and _file(before.find) != _file(find):
            raise RequestError(
                f"the name {name} is taken by the lens of {_file(before.find)}; choose another name"
            )
        about = (inspect.getdoc(find) or title or name).splitlines()[0].removesuffix(".")
        about = about[:1].lower() + about[1:]
        REGISTER[name] = Lens(name, about, torch.no_grad()(find), title, **settings)
        return find

    return register


def lenses() -> dict[str, Lens]:
    """All lenses by name, in their order."""
    _import_all()
    return {one.name: one for one in sorted(REGISTER.values(), key=lambda one: one.order)}


def parse_lenses(names: list[str]) -> list[Lens]:
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
    for module in pkgutil.iter_modules([str(HERE)]):
        importlib.import_module(f"{__package__}.{module.name}")


def word_tokens(checkpoint: Checkpoint, words: Iterable[str]) -> dict[str, int]:
    """The one token that each word is.

    Raises:
        RequestError: a word that is no token or several, with its split shown.
    """
    return {word: _token(checkpoint, word) for word in words}


def token_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text, without special ones."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def _token(checkpoint: Checkpoint, word: str) -> int:
    ids, spaced = token_ids(checkpoint.tokenizer, word), f" {word}"
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise RequestError(f"--words {word!r}: there is no token in it; give a word")
    split = " ".join(f'"{piece}"' for piece in checkpoint.pieces(ids))
    other = (
        f', or "{spaced}", which is one'
        if len(token_ids(checkpoint.tokenizer, spaced)) == 1
        else ""
    )
    raise RequestError(f'"{word}" is {len(ids)} tokens here: {split}; choose one of them{other}')


def read_documents(directory: str | Path) -> Iterator[Document]:
    """Every document of a results directory, in the order of their names."""
    for path in sorted((Path(directory) / FOLDER).glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def averaged(rows: list[Record], *fields: str) -> list[Record]:
    """The mean value over all records that agree in these fields."""
    values: dict[tuple[Any, ...], list[float]] = {}
    for record in rows:
        values.setdefault(tuple(record[f] for f in fields), []).append(record["value"])
    return [
        dict(zip(fields, place, strict=True)) | {"value": sum(several) / len(several)}
        for place, several in values.items()
    ]


def _file(find: Find) -> Path:
    return Path(inspect.getfile(inspect.unwrap(find)))


def _short(number: float) -> float | int | None:
    if isinstance(number, int):
        return number
    return float(f"{number:.6g}") if abs(number) < float("inf") else None
