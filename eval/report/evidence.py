"""Rows placed where they can be compared: which model, before or after training, which question.

A row scores up to two questions: its self tokens (their own position is shown) and its non-self
tokens (it is hidden). Each becomes one `Score`; scores of equal place can then be pooled. Training
seeds of one recipe are one model (`eval.identity`).
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from eval.errors import RequestError
from eval.identity import labels
from eval.recovery import folder, layers, part, positions, variation
from eval.rows import Row
from eval.summary import model_of, recoveries

T = TypeVar("T")

BEFORE, BETWEEN, AFTER = "before", "between", "after"
EXACT = {"self": ("sweep", "alternating"), "nonself": ("alternating", "sweep")}
"""The searches that stand for exact search at each question, the one made for it first."""
SEED = "descent"
"""The published protocol, which always has a column of its own."""
BEST = "best"
"""The column of the best other gradient method, where there are too many for one each."""
COLUMNS = 4
"""Methods that are shown side by side; more are folded into `BEST`."""


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
        layer: the deepest of those shown; `part` names the others.
        column: the method; all searches share the column `exact`.
        variation: in what the question departs from the plain one; empty if in nothing.
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
    variation: tuple[tuple[str, Any], ...]
    row: Row

    @property
    def method(self) -> str:
        """The method's own name, as in the row."""
        return self.row["method"]


def scores(rows: list[Row]) -> list[Score]:
    """Places every row but those of claims; of rows with equal keys the last counts.

    Raises:
        RequestError: there are no rows, or none with a score.
    """
    rows = recoveries(rows)
    if not rows:
        raise RequestError("no rows: there is nothing to report; run `python -m eval invert` first")
    names = labels(rows)
    last = _last_steps(rows)
    placed = []
    for row in rows:
        for kind in ("self", "nonself"):
            found = row[kind]
            if not found or not found["count"]:
                continue
            placed.append(
                Score(
                    model=names[model_of(row)],
                    phase=_phase(row, last[_training(row)]),
                    step=row["checkpoint"]["step"],
                    layer=max(layers(row)),
                    part=part(row),
                    task=Task(kind == "nonself", row["hidden"], positions(row)),
                    prompts=row["prompts"],
                    column="exact" if row["family"] == "search" else row["method"],
                    count=found["count"],
                    hits=round(found["top1"] * found["count"]),
                    hits5=round(found["top5"] * found["count"]),
                    median_rank=found["median_rank"],
                    variation=tuple(variation(row).items()),
                    row=row,
                )
            )
    if not placed:
        raise RequestError(f"{len(rows)} rows, but none has a scored token; run the eval anew")
    return placed


def plain(placed: list[Score]) -> list[Score]:
    """The scores of plain questions; where there are none, those of the first variation."""
    wanted = () if any(not s.variation for s in placed) else placed[0].variation
    return [s for s in placed if s.variation == wanted]


def headline(placed: list[Score]) -> list[Score]:
    """Few enough methods to be shown side by side.

    One search per question, the one made for it where it was run; and where more than `COLUMNS`
    methods are left, of the gradient methods the published one and, in each cell, the best other,
    and chance.
    """
    placed = [s for cell in group(placed, _cell).values() for s in _one_search(cell)]
    if len({s.column for s in placed}) <= COLUMNS:
        return placed
    return [s for cell in group(placed, _cell).values() for s in _best(cell)]


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


def _cell(s: Score) -> Hashable:
    return (s.model, s.step, s.layer, s.part, s.task, s.prompts, s.variation)


def _one_search(cell: list[Score]) -> list[Score]:
    preferred = EXACT["nonself" if cell[0].task.nonself else "self"]
    present = {s.method for s in cell if s.column == "exact"}
    order = [*preferred, *sorted(present - set(preferred))]
    chosen = next((name for name in order if name in present), None)
    return [s for s in cell if s.column != "exact" or s.method == chosen]


def _best(cell: list[Score]) -> list[Score]:
    others = group([s for s in cell if _is_other_gradient(s)], lambda s: s.column)

    def share(column: str) -> float:
        return sum(s.hits for s in others[column]) / sum(s.count for s in others[column])

    best = [replace(s, column=BEST) for s in others[max(others, key=share)]] if others else []
    kept = [s for s in cell if s.column in (SEED, "exact") or s.row["family"] == "control"]
    return best + kept


def _is_other_gradient(s: Score) -> bool:
    return s.column != SEED and s.row["family"] == "gradient"


def _training(row: Row) -> tuple[str, str]:
    """One training run: its checkpoints lie in one folder."""
    return row["checkpoint"]["name"], folder(row)


def _last_steps(rows: list[Row]) -> dict[tuple[str, str], int]:
    """The last trained step of each training run; -1 where there is none."""
    last: dict[tuple[str, str], int] = defaultdict(lambda: -1)
    for row in rows:
        if row["checkpoint"]["trained"]:
            last[_training(row)] = max(last[_training(row)], row["checkpoint"]["step"])
    return last


def _phase(row: Row, last_step: int) -> str:
    """Where a row's checkpoint stands in its training: before, between or after."""
    if not row["checkpoint"]["trained"]:
        return BEFORE
    return AFTER if row["checkpoint"]["step"] == last_step else BETWEEN
