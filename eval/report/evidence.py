"""Rows placed where they can be compared: which model, before or after training, which question.

A row scores up to two questions: its self tokens (their own position is shown) and its non-self
tokens (it is hidden). Each becomes one `Score`; scores of equal place can then be pooled.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from eval.errors import RequestError
from eval.inversion.slices import Slice

Row = dict[str, Any]
T = TypeVar("T")

BEFORE, BETWEEN, AFTER = "before", "between", "after"
EXACT = {"self": ("sweep", "alternating"), "nonself": ("alternating", "sweep")}
"""The exact methods of each question, the one made for it first."""


@dataclass(frozen=True, order=True)
class Task:
    """One question: which tokens are asked about, and what is shown of the site."""

    nonself: bool
    hidden: int
    slice: str


@dataclass(frozen=True)
class Score:
    """One row's answer to one question.

    Attributes:
        column: the method; both exact methods share the column `exact`.
        hits: tokens whose best candidate is the true one; `hits5` within the best five.
    """

    model: str
    phase: str
    step: int
    layer: int
    part: str
    task: Task
    prompts: str
    column: str
    count: int
    hits: int
    hits5: int
    median_rank: float
    row: Row

    @property
    def method(self) -> str:
        """The method's own name, as in the row."""
        return self.row["method"]


def scores(rows: list[Row]) -> list[Score]:
    """Places every row; of rows with equal keys the last counts.

    Raises:
        RequestError: there are no rows, or none with a score.
    """
    if not rows:
        raise RequestError("no rows: there is nothing to report; run `python -m eval invert` first")
    rows = list({row["key"]: row for row in rows}.values())
    names = _model_names(rows)
    last = _last_steps(rows, names)
    placed = []
    for row in rows:
        model = names[_identity(row)]
        for kind in ("self", "nonself"):
            found = row[kind]
            if not found or not found["count"]:
                continue
            placed.append(
                Score(
                    model=model,
                    phase=_phase(row, last[model]),
                    step=row["checkpoint"]["step"],
                    layer=row["site"]["layer"],
                    part=row["site"]["part"],
                    task=Task(kind == "nonself", row["hidden"], row["slice"]),
                    prompts=row["prompts"],
                    column="exact" if row["method"] in EXACT[kind] else row["method"],
                    count=found["count"],
                    hits=round(found["top1"] * found["count"]),
                    hits5=round(found["top5"] * found["count"]),
                    median_rank=found["median_rank"],
                    row=row,
                )
            )
    if not placed:
        raise RequestError(f"{len(rows)} rows, but none has a scored token; run the eval anew")
    return placed


def headline(placed: list[Score]) -> list[Score]:
    """One exact method per question: the one made for it, where both were run."""

    def place(s: Score) -> Hashable:
        return (s.model, s.step, s.layer, s.part, s.task, s.prompts)

    present = defaultdict(set)
    for s in placed:
        present[place(s)].add(s.method)
    kept = []
    for s in placed:
        first, second = EXACT["nonself" if s.task.nonself else "self"]
        if not (s.method == second and first in present[place(s)]):
            kept.append(s)
    return kept


def group(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Items by key, in the order of first appearance."""
    groups: dict[Any, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def deepest(placed: list[Score]) -> list[Score]:
    """The scores at the deepest site at which most phases were asked, blocks before other parts."""
    sites = group(placed, lambda s: (s.part, s.layer))

    def merit(site: tuple[str, int]) -> tuple[bool, int, int, str]:
        part, layer = site
        return (part == "block", len({s.phase for s in sites[site]}), layer, part)

    return sites[max(sites, key=merit)]


def hidden_positions(row: Row) -> set[int]:
    """The positions that the row's slice does not show."""
    try:
        shown = Slice.parse(row["slice"]).positions(row["length"])
    except RequestError:  # a slice of another form hides leading positions only
        return set(range(row["hidden"]))
    return set(range(row["length"])) - set(shown)


def _model_names(rows: list[Row]) -> dict[tuple[str, str], str]:
    """Names by `(name, folder)`; the folder is told only where a name and step stand for two."""
    weights: dict[tuple[str, int], set[str]] = defaultdict(set)
    for c in (row["checkpoint"] for row in rows):
        weights[c["name"], c["step"]].add(c["weights_sha256"])
    unclear = {name for (name, _), hashes in weights.items() if len(hashes) > 1}
    names = {}
    for row in rows:
        name, folder = _identity(row)
        names[name, folder] = f"{name} ({folder})" if name in unclear else name
    return names


def _last_steps(rows: list[Row], names: dict[tuple[str, str], str]) -> dict[str, int]:
    """The last trained step of each model; -1 where there is none."""
    last = dict.fromkeys(names.values(), -1)
    for row in rows:
        if row["checkpoint"]["trained"]:
            name = names[_identity(row)]
            last[name] = max(last[name], row["checkpoint"]["step"])
    return last


def _phase(row: Row, last_step: int) -> str:
    """Where a row's checkpoint stands in its training: before, between or after."""
    if not row["checkpoint"]["trained"]:
        return BEFORE
    return AFTER if row["checkpoint"]["step"] == last_step else BETWEEN


def _identity(row: Row) -> tuple[str, str]:
    checkpoint = row["checkpoint"]
    return checkpoint["name"], str(Path(os.path.normpath(checkpoint["path"])).parent)
