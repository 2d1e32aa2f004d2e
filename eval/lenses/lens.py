"""What a lens is, and the register of all lenses.

A lens is one file: a function that measures, decorated with `lens`, in which its charts are
declared. The modules of this folder are registered when lenses are first asked for, a user's own
file when it is run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup

from eval.drawing.figures import Figure
from eval.lenses.charts import Chart, Tables, word_tables
from eval.lenses.table import Record, Table
from eval.lenses.trace import PromptBatch, gather
from eval.lenses.words import word_tokens as word_tokens
from eval.messages import RequestError, nearest
from eval.models.checkpoint import Checkpoint
from eval.models.identity import hash_source
from eval.models.text import Prompt
from eval.rows.plugins import Registry, foreign_code

TOKENS = 8192
ALL = "all"


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
        order: the number of each given text's prompt, where a text was given twice: a prompt is
            one sample, and a lens of pairs takes the texts as they were given.
    """

    prompts: tuple[Prompt, ...]
    words: tuple[str, ...] = ()
    corpus: str = "toy"
    tokens: int = TOKENS
    seed: int = 0
    store: str | Path | None = field(default=None, compare=False)
    order: tuple[int, ...] = ()

    @property
    def record(self) -> Record:
        """All of it but the store and an order that is not needed, for keys and documents."""
        record = asdict(self)
        del record["store"]
        return record if self.order else {n: v for n, v in record.items() if n != "order"}


Measure = Callable[[Checkpoint, PromptBatch, Request, Table], None]
"""Adds what a lens finds in a checkpoint, at prompts side by side, to a table."""


@dataclass(frozen=True)
class Lens:
    """A lens as it is registered.

    `measure` runs without autograd, and raises RequestError for a model or a request that it cannot
    look at. `draw` makes figures that cannot be declared, and `html` texts for the page, of the
    tables of all checkpoints.
    """

    name: str  # as on the command line
    about: str  # in a line
    measure: Measure
    title: str  # of its section of the page
    charts: tuple[Chart, ...] = ()  # of the numbers that it adds
    draw: Callable[[Tables], list[Figure]] = lambda tables: []
    html: Callable[[Tables], list[Markup]] = lambda tables: []
    order: float = 100.0  # its place in lists and on the page, the smallest first
    main: tuple[tuple[str, dict[str, Any]], ...] = ()  # figures for a line: see `headlines`

    def find(self, checkpoint: Checkpoint, request: Request) -> Table:
        """Measures a checkpoint.

        Raises:
            RequestError: it cannot look at this model or request; of a user's own, it raises, or
                changes the model in place.
        """
        batch, table = gather(checkpoint, request.prompts), Table()
        for label, prompt in zip(batch.labels, request.prompts, strict=True):
            table.pieces[label] = checkpoint.pieces(list(prompt.tokens[: prompt.real]))
        guard = nullcontext()
        if hash_source(self.measure):
            batch = replace(batch)  # with a trace of its own, in which it may write
            tensors, who = (batch.tokens, batch.real), f"lens {self.name}"
            guard = foreign_code(who, self.measure, checkpoint.model, tensors)
        with guard:
            self.measure(checkpoint, batch, request, table)
        table.check_places()
        return table

    def figures(self, tables: Tables) -> list[Figure]:
        """The figures over all checkpoints: the lens's own, then those that are declared."""
        declared = [chart.draw(self.name, tables) for chart in self.charts]
        return self.draw(tables) + [figure for figure in declared if figure]

    def texts(self, tables: Tables) -> list[Markup]:
        """The lens's own texts for the page, then the tables of words that it added."""
        return [*self.html(tables), *word_tables(tables)]


LENSES: Registry[Lens] = Registry("lens", "eval.lenses")
"""Lenses by name; `lenses` gives them in order."""


def lens(
    name: str, title: str = "", *, charts: Sequence[Chart] = (), **settings: Any
) -> Callable[[Measure], Measure]:
    """Registers the decorated function as the measurement of a lens.

    The first line of its docstring is the lens's `about`. Settings are the other attributes.

    Raises:
        RequestError: another file has a lens of that name.
    """

    def register(measure: Measure) -> Measure:
        about = (inspect.getdoc(measure) or title or name).splitlines()[0].removesuffix(".")
        about = about[:1].lower() + about[1:]
        run = torch.no_grad()(measure)
        entry = Lens(name, about, run, title or name, tuple(charts), **settings)
        LENSES.enter(name, entry, measure)
        return measure

    return register


def lenses() -> dict[str, Lens]:
    """All lenses by name, in their order."""
    found = LENSES.load().values()
    return {entry.name: entry for entry in sorted(found, key=lambda entry: entry.order)}


def parse_lenses(names: list[str]) -> list[Lens]:
    """The lenses of these names, `all` standing for every one, each once.

    Raises:
        RequestError: a name that is not there.
    """
    known, chosen = lenses(), {}
    for name in names:
        if name != ALL and name not in known:
            allowed = f"use {ALL} or some of {', '.join(known)}"
            raise RequestError(
                f"--lens {name}: no lens of that name; {nearest(name, known, allowed)}"
            )
        chosen |= known if name == ALL else {name: known[name]}
    return list(chosen.values())
