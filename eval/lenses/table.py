"""What a lens finds: tensors whose axes have names, and the figures derived from them.

Axes of `SAMPLES` count what was drawn: prompts, stories, positions within them. All other axes are
places: a layer, a head, a method. The figure of a place is the mean over its samples, with one
interval for all lenses: Student's, 95 %, between the clusters, which are what was drawn
independently of each other. Positions of one prompt are no clusters. Samples of truth values are
shares: their limits lie between 0 and 1, and where all are true, or none, they are Wilson's with a
trial for each cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch

from eval.analysis.coordinates import NOT_COORDINATES
from eval.analysis.statistics import clustered, token_fraction
from eval.analysis.summary import COUNTS, MODEL, SAMPLED
from eval.messages import RequestError

CLUSTERS = ("story", "prompt", "pair", "token")
SAMPLES = (*CLUSTERS, "position")
ROW = {*NOT_COORDINATES, *MODEL, *SAMPLED, *COUNTS, "lens", "prompt_kind"} - {*SAMPLES}
"""Fields of every row, or of what sums rows up: an axis of such a name would replace them."""
MEASURED = ("value", "low", "high", "n", "reason")
"""Fields of a figure that are no place."""
NO_FIELD = frozenset(".[]\\'\"")
"""Characters by which charts would take the name of an axis for a path."""
Label = str | int | float
Record = dict[str, Any]
Cell = str | list[str]
"""A text, or tokens."""


@dataclass(frozen=True)
class Numbers:
    """A tensor under a name.

    Labels of samples may be repeated: equal ones of a cluster's axis are one cluster.
    """

    name: str  # as figures and charts call it
    values: np.ndarray  # in float64, NaN where there is nothing, as past a prompt's end
    axes: dict[str, list[Label]]  # the name of each axis in order, with its labels
    rows: bool = True  # whether its means become rows, or are for charts alone
    share: bool = False  # whether they are of truth values

    def records(self) -> Iterator[Record]:
        """A record for each number that is there: the labels of its axes, and `value`."""
        labels = product(*self.axes.values())
        for coordinates, value in zip(labels, self.values.ravel().tolist(), strict=True):
            if value == value:
                yield dict(zip(self.axes, coordinates, strict=True)) | {"value": value}

    def means(self) -> Iterator[Record]:
        """A record for each place that has a number: its labels, `value`, and of samples `n`.

        With `low` and `high` where there are several clusters.
        """
        import pandas as pd

        axes = [axis for axis in self.axes if axis not in SAMPLES]
        frame = pd.DataFrame(self.records(), dtype=object)
        if len(axes) == len(self.axes) or frame.empty:
            yield from self.records()
            return
        cluster = next((axis for axis in CLUSTERS if axis in self.axes), "position")
        values = frame.groupby([*axes, cluster], sort=False)["value"]
        totals = values.agg(["sum", "count"]).astype(float)
        for coordinates, group in totals.groupby(axes, sort=False) if axes else [((), totals)]:
            sums, counts = group["sum"].to_numpy(), group["count"].to_numpy()
            figure = mean_interval(sums, counts, self.share)
            # older pandas gives numpy's whole numbers, which JSON has not
            labels = (
                label.item() if isinstance(label, np.generic) else label for label in coordinates
            )
            yield dict(zip(axes, labels, strict=True)) | figure | {"n": int(counts.sum())}

    def plain(self) -> dict[str, Any]:
        """The tensor as JSON holds it: six significant digits, null for NaN, infinity as a text."""
        return vars(self) | {"values": [_short(value) for value in self.values.ravel().tolist()]}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Numbers:
        """Reads what `plain` made."""
        flat = [math.nan if value is None else float(value) for value in plain["values"]]
        shape = [len(labels) for labels in plain["axes"].values()]
        return cls(**{**plain, "values": np.array(flat).reshape(shape)})


def mean_interval(sums: np.ndarray, counts: np.ndarray, share: bool) -> dict[str, float]:
    """The mean of G clusters' samples, from sums and counts `(G,)`, with limits where they vary."""
    G, mean = len(sums), float(sums.sum() / counts.sum())
    if G == 1 or not math.isfinite(mean):
        return {"value": mean}
    estimate = token_fraction if share else clustered
    _, low, high = estimate(sums.tolist(), counts.tolist(), range(G), [0] * G)
    limits = {"low": low, "high": high} if high - low > 1e-9 * abs(mean) else {}
    return {"value": mean, **limits}


@dataclass
class Table:
    """All that a lens finds in one checkpoint.

    Pieces are the tokens of prompts, and of whatever else positions are of, by label; texts small
    tables of words, as `say` adds them; notes what the lens's own charts are drawn of beside
    numbers, as JSON holds it.
    """

    numbers: list[Numbers] = field(default_factory=list)
    pieces: dict[str, list[str]] = field(default_factory=dict)
    texts: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def add(
        self, name: str, values: Any, *, rows: bool = True, share: bool = False, **axes: Any
    ) -> None:
        """Adds a tensor, or a number.

        Args:
            name: of the figure; several tensors may have one.
            values: NaN where there is nothing.
            rows: False for numbers that charts alone show.
            share: whether they are of truth values, as a tensor of those always is.
            axes: in the order of the tensor's: the labels of each. A single label, which is no
                sequence, is of a place that all values share and that the tensor has no axis for.

        Raises:
            ValueError: axes that do not fit the values.
            RequestError: there are values, and none is a number; a name that is taken, or that
                charts cannot have; two places of rows have one label.
        """
        self._check_names(name, axes, rows)
        tensor = torch.as_tensor(values).detach().cpu()
        single = {axis for axis, labels in axes.items() if isinstance(labels, Label)}
        shape = [len(labels) for axis, labels in axes.items() if axis not in single]
        if shape != list(tensor.shape):
            raise ValueError(f"{name}: axes {shape} do not fit values {list(tensor.shape)}")
        array = tensor.double().numpy()
        if array.size and np.isnan(array).all():
            raise RequestError(f"{name}: no number is finite; does the model give finite outputs?")
        listed = {a: [labels] if a in single else list(labels) for a, labels in axes.items()}
        for axis in {*listed} - {*SAMPLES} if rows else ():
            if len({*listed[axis]}) < len(listed[axis]):
                raise RequestError(f"{name}: axis {axis}: two labels are alike; number them")
        array = array.reshape([len(labels) for labels in listed.values()])
        share = share or tensor.dtype == torch.bool
        self.numbers.append(Numbers(name, array, listed, rows, share))

    def _check_names(self, name: str, axes: Mapping[str, Any], rows: bool) -> None:
        """Refuses axes that charts would take for paths, and names that are fields of rows."""
        for axis in axes:
            if NO_FIELD & {*axis}:
                allowed = "choose a name without dots, brackets, quotes and backslashes"
                raise RequestError(f"{name}: axis {axis}: {allowed}")
        known = [numbers for numbers in self.numbers if numbers.rows]
        names = {name, *(numbers.name for numbers in known)}
        all_axes = {*axes, *(axis for numbers in known for axis in numbers.axes)}
        if rows and (taken := (ROW & {name, *axes}) | (names & all_axes)):
            what = "axis" if min(taken) in axes else "figure"
            raise RequestError(
                f"{name}: {what} {min(taken)}: rows have another field of this name; choose "
                "another name"
            )

    def check_places(self) -> None:
        """Refuses several figures of one place, of which rows would keep the last.

        Raises:
            RequestError: naming the place.
        """
        seen = set[frozenset[Any]]()
        for figure in self.figures():
            coordinates = {name: value for name, value in figure.items() if name not in MEASURED}
            if frozenset(coordinates.items()) in seen:
                name = coordinates.pop("figure")
                where = ", ".join(f"{axis} {label}" for axis, label in coordinates.items())
                raise RequestError(
                    f"{name}: added twice at {where or 'no axis'}; give an axis that tells the two "
                    "apart"
                )
            seen.add(frozenset(coordinates.items()))

    def say(self, title: str, columns: Sequence[str], lines: Sequence[Sequence[Cell]]) -> None:
        """Adds a table of words, which pages fold; a cell is a text, or a list of tokens."""
        if lines:
            self.texts.append({"title": title, "columns": [*columns], "lines": [*map(list, lines)]})

    def of(self, name: str) -> list[Numbers]:
        """The tensors of a name."""
        return [numbers for numbers in self.numbers if numbers.name == name]

    def samples(self, name: str) -> list[Record]:
        """A record for each number of a name, its labels beside it."""
        return [record for numbers in self.of(name) for record in numbers.records()]

    def means(self, name: str) -> list[Record]:
        """A record for each place of a name, with its mean over samples."""
        return [record for numbers in self.of(name) for record in numbers.means()]

    def figures(self) -> Iterator[Record]:
        """A record for each row: `figure`, its place, its mean and interval."""
        for numbers in self.numbers:
            if numbers.rows:
                yield from ({"figure": numbers.name} | record for record in numbers.means())

    def plain(self) -> dict[str, Any]:
        """The table as JSON holds it."""
        return vars(self) | {"numbers": [numbers.plain() for numbers in self.numbers]}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Table:
        """Reads what `plain` made, from a document too."""
        numbers = [Numbers.read(part) for part in plain["numbers"]]
        return cls(numbers, plain["pieces"], plain["texts"], plain["notes"])


def _short(number: float) -> float | str | None:
    if math.isnan(number):
        return None
    return float(f"{number:.6g}") if math.isfinite(number) else str(number)
