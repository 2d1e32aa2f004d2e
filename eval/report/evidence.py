"""Recoveries placed by model, question and phase of training, and the words for those.

A row answers up to two questions: about its self tokens (their own position is shown) and its
non-self tokens (it is hidden). Each answer is a `Placed`; those of equal place can be pooled.
Training seeds of one recipe are one model (`eval.identity`).
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from eval import RequestError
from eval.identity import labels, model_of, recoveries
from eval.inversion.solver import Solver, solvers
from eval.recovery import channel_count, folder, layers, part, positions, variation
from eval.schema import Row
from eval.tables import group

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
PROMPTS = {"story": "story", "random": "random tokens", "text": "given text"}
"""The prompt sets, in the order of reading."""


class TokenQuestion(NamedTuple):
    """One question: which tokens are asked about, and what is shown of the site."""

    nonself: bool
    hidden: int
    slice: str


@dataclass(frozen=True)
class Placed:
    """One row's answer to one question."""

    model: str
    phase: str
    step: int
    layer: int  # the deepest of those shown
    part: str  # names the others too
    task: TokenQuestion
    prompts: str
    column: str  # the method; all searches share the column `exact`
    method: str
    family: str
    variation: tuple[tuple[str, Any], ...]  # in what the question departs from the plain one
    noise: float | None  # None where it departs in something else too
    channels: int | None  # so many of the first ones are shown; None likewise
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


def place_rows(rows: list[Row]) -> list[Placed]:
    """Places every recovery; of rows with equal keys the last counts.

    Raises:
        RequestError: there are no recoveries, or none with a token.
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
            Placed(
                model=names[model_of(row)],
                phase=ended if row["checkpoint"]["trained"] else BEFORE,
                step=step,
                layer=max(layers(row)),
                part=part(row),
                task=TokenQuestion(kind == "nonself", row["hidden"], positions(row)),
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


def plain_questions(placed: list[Placed]) -> list[Placed]:
    """Those of plain questions; where there are none, those of the first variation."""
    wanted = () if any(not s.variation for s in placed) else placed[0].variation
    return [s for s in placed if s.variation == wanted]


def headline(placed: list[Placed]) -> list[Placed]:
    """Few enough methods to be shown side by side.

    One search per question, the one made for it where it was run. Where more than `COLUMNS` methods
    remain: the published gradient method, the best other one of each cell, search, and chance.
    """
    placed = [s for cell in _cells(placed) for s in _one_search(cell)]
    if len({s.column for s in placed}) <= COLUMNS:
        return placed
    return [s for cell in _cells(placed) for s in _best(cell)]


def asked_in_tables(placed: list[Placed], ends: bool = True) -> list[Placed]:
    """Of each model and prompt set: self tokens where the most is shown, and all non-self tokens.

    `ends`: before and after training alone.
    """
    kept = []
    for several in group(placed, lambda s: (s.model, s.prompts)).values():
        most = min((s.task for s in several if not s.task.nonself), default=None)
        kept += [s for s in several if s.task.nonself or s.task == most]
    return [s for s in kept if not ends or s.phase != BETWEEN]


def deepest(placed: list[Placed]) -> list[Placed]:
    """Those of each question at the deepest site at which most phases were asked.

    Blocks come before other parts.
    """
    kept = []
    for several in group(placed, lambda s: (s.model, s.task, s.prompts)).values():
        sites = group(several, lambda s: (s.part == "block", s.layer, s.part))
        phases = {site: len({s.phase for s in there}) for site, there in sites.items()}
        kept += sites[max(sites, key=lambda site: (site[0], phases[site], *site[1:]))]
    return kept


def once(placed: Iterable[Placed]) -> list[Placed]:
    """Each row once, though it may answer two questions."""
    return list({s.row["key"]: s for s in placed}.values())


class Method(NamedTuple):
    """The words of a method, as a `Solver` has them."""

    title: str
    text: str = ""


COLUMN_WORDS = {  # of columns of several solvers
    BEST: Method("the best of the other gradient methods"),
    "exact": Method("exact search"),
}


def method(name: str) -> Solver | Method:
    """The words of a method or column; an unknown one is called by its name."""
    return solvers().get(name) or COLUMN_WORDS.get(name) or Method(name)


def column_order(names: set[str]) -> list[str]:
    """Methods in the order of reading: gradient, then what is not known, then search, chance."""
    known = solvers()
    first = [name for name, solver in known.items() if solver.family == "gradient"]
    last = [name for name, solver in known.items() if solver.family in ("search", "control")]
    order = [*first[:2], BEST, *first[2:]]
    others = sorted(names - {*order, "exact", *last})
    return [name for name in (*order, *others, "exact", *last) if name in names]


def variation_label(departs: Iterable[tuple[str, Any]]) -> str:
    """In what a question departs from the plain one: `noise 0.5, control: shuffled`."""
    words = {"channels": "channels {}", "without": "without {}", "noise": "noise {:g}",
             "control": "control: {}"}  # fmt: skip
    return ", ".join(words.get(name, name).format(value) for name, value in departs)


def variation_order(departs: tuple[tuple[str, Any], ...]) -> tuple[bool, str, float]:
    """The place of a variation in the order of reading: noise comes last, the least of it first."""
    others = [item for item in departs if item[0] != "noise"]
    noise = dict(departs).get("noise", 0.0)
    return (noise > 0, str(others), noise)


def prompt_set(name: str) -> str:
    """A prompt set in words."""
    return PROMPTS.get(name, name)


def prompt_order(name: str) -> tuple[int, str]:
    """The place of a prompt set in the order of reading."""
    return ([*PROMPTS, name].index(name), name)


def task_label(task: TokenQuestion) -> str:
    """A question in words: `3 hidden tokens`, `all tokens shown`."""
    where = "" if task.slice.replace(" ", "") == f"[:,{task.hidden}:,:]" else f" of {task.slice}"
    tokens = "1 hidden token" if task.hidden == 1 else f"{task.hidden} hidden tokens"
    if task.nonself:
        return tokens + where
    return f"shown tokens beside {tokens}{where}" if task.hidden else f"all tokens shown{where}"


def task_kind(task: TokenQuestion) -> str:
    """The field's word for a question: self or non-self."""
    return f"non-self, k = {task.hidden}" if task.nonself else "self"


def site_label(layer: int, part: str) -> str:
    """`4` for a block's output, `4 mixer` and the like for its parts."""
    return str(layer) if part == "block" else f"{layer} {part}"


def _cells(placed: list[Placed]) -> Iterable[list[Placed]]:
    """Those of equal model, site, question and prompt set together: they differ in their method."""
    return group(
        placed, lambda s: (s.model, s.step, s.layer, s.part, s.task, s.prompts, s.variation)
    ).values()


def _one_search(cell: list[Placed]) -> list[Placed]:
    present = {s.method for s in cell if s.column == "exact"}
    order = [*EXACT[cell[0].kind], *sorted(present)]
    chosen = next((name for name in order if name in present), None)
    return [s for s in cell if s.column != "exact" or s.method == chosen]


def _best(cell: list[Placed]) -> list[Placed]:
    others = group(
        (s for s in cell if s.column != SEED and s.family == "gradient"), lambda s: s.column
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
