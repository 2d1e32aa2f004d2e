"""Recoveries placed where they can be compared: model, question, before or after training.

A row answers up to two questions: about its self tokens (their own position is shown) and its
non-self tokens (it is hidden). Each answer is a `Score`; scores of equal place can be pooled.
Training seeds of one recipe are one model (`eval.identity`).
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from eval.errors import RequestError
from eval.identity import labels
from eval.recovery import channel_count, folder, layers, part, positions, variation
from eval.schema import Row
from eval.summary import model_of, recoveries

T = TypeVar("T")

BEFORE, BETWEEN, AFTER = PHASES = "before", "between", "after"
EXACT = {"self": ("sweep", "alternating"), "nonself": ("alternating", "sweep")}
"""The searches that stand for exact search at each question, the one made for it first."""
SEED = "descent"
"""The published protocol, which always has a column of its own."""
BEST = "best"
"""The column of the best other gradient method, where there are too many for one each."""
PLACE = ("model", "prompts", "task", "part", "layer")
"""Fields that tell lines of a table apart, in the order of reading."""
COLUMNS = 4
"""Methods that are shown side by side; more are folded into `BEST`."""


class Task(NamedTuple):
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
        noise, channels: how much, and how many of the first ones, are shown; None where the
            question departs in something else too.
    """

    model: str
    phase: str
    step: int
    layer: int
    part: str
    task: Task
    prompts: str
    column: str
    method: str
    family: str
    variation: tuple[tuple[str, Any], ...]
    noise: float | None
    channels: int | None
    row: Row

    @property
    def place(self) -> tuple[Any, ...]:
        """The fields of `PLACE`."""
        return tuple(getattr(self, name) for name in PLACE)

    @property
    def kind(self) -> str:
        """The row's tokens that are asked about, and the quantity that counts them."""
        return "nonself" if self.task.nonself else "self"

    @property
    def counted(self) -> tuple[int, int]:
        """Tokens whose best candidate is the true one, of how many."""
        tokens = self.row[self.kind]
        return round(tokens["top1"] * tokens["count"]), tokens["count"]


def scores(rows: list[Row]) -> list[Score]:
    """Places every row but those of claims; of rows with equal keys the last counts.

    Raises:
        RequestError: there are no rows, or none with a score.
    """
    rows = recoveries(rows)
    if not rows:
        raise RequestError("no rows: there is nothing to report; run `python -m eval invert` first")
    names = labels(rows)
    last: dict[Hashable, int] = defaultdict(lambda: -1)  # the last trained step of each run
    for row in rows:
        if row["checkpoint"]["trained"]:
            last[_run(row)] = max(last[_run(row)], row["checkpoint"]["step"])
    placed = []
    for row in rows:
        step = row["checkpoint"]["step"]
        ended = AFTER if step == last[_run(row)] else BETWEEN
        departs = variation(row)
        placed += [
            Score(
                model=names[model_of(row)],
                phase=ended if row["checkpoint"]["trained"] else BEFORE,
                step=step,
                layer=max(layers(row)),
                part=part(row),
                task=Task(kind == "nonself", row["hidden"], positions(row)),
                prompts=row["prompts"],
                column="exact" if row["family"] == "search" else row["method"],
                method=row["method"],
                family=row["family"],
                variation=tuple(departs.items()),
                noise=departs.get("noise", 0.0) if departs.keys() <= {"noise"} else None,
                channels=channel_count(row) if departs.keys() <= {"channels"} else None,
                row=row,
            )
            for kind in ("self", "nonself")
            if row[kind] and row[kind]["count"]
        ]
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


def asked(placed: list[Score], ends: bool = True) -> list[Score]:
    """What tables ask of each model: self tokens where the most is shown, and all non-self tokens.

    Args:
        placed: a prompt set is a question of its own.
        ends: before and after training alone.
    """
    kept = []
    for several in group(placed, lambda s: (s.model, s.prompts)).values():
        most = min((s.task for s in several if not s.task.nonself), default=None)
        kept += [s for s in several if s.task.nonself or s.task == most]
    return [s for s in kept if not ends or s.phase != BETWEEN]


def deepest(placed: list[Score]) -> list[Score]:
    """Of each question, the scores at the deepest site at which most phases were asked.

    Blocks come before other parts.
    """
    kept = []
    for several in group(placed, lambda s: (s.model, s.task, s.prompts)).values():
        sites = group(several, lambda s: (s.part, s.layer))

        def merit(site: tuple[str, int], sites: dict = sites) -> tuple[bool, int, int, str]:
            part, layer = site
            return (part == "block", len({s.phase for s in sites[site]}), layer, part)

        kept += sites[max(sites, key=merit)]
    return kept


def once(placed: Iterable[Score]) -> list[Score]:
    """Each row once, though it may have two scores."""
    return list({s.row["key"]: s for s in placed}.values())


def group(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Items by key, in the order of first appearance."""
    groups: dict[Any, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _cell(s: Score) -> Hashable:
    return (s.model, s.step, s.layer, s.part, s.task, s.prompts, s.variation)


def _one_search(cell: list[Score]) -> list[Score]:
    preferred = EXACT[cell[0].kind]
    present = {s.method for s in cell if s.column == "exact"}
    order = [*preferred, *sorted(present - set(preferred))]
    chosen = next((name for name in order if name in present), None)
    return [s for s in cell if s.column != "exact" or s.method == chosen]


def _best(cell: list[Score]) -> list[Score]:
    others = group(
        [s for s in cell if s.column != SEED and s.family == "gradient"], lambda s: s.column
    )

    def share(column: str) -> float:
        hits, counts = zip(*(s.counted for s in others[column]), strict=True)
        return sum(hits) / sum(counts)

    best = [replace(s, column=BEST) for s in others[max(others, key=share)]] if others else []
    kept = [s for s in cell if s.column in (SEED, "exact") or s.family == "control"]
    return best + kept


def _run(row: Row) -> tuple[str, str]:
    """One training run: its checkpoints lie in one folder."""
    return row["checkpoint"]["name"], folder(row)
