"""What became of the tokens when all methods are taken together, as shares of each question."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from eval.inversion.fields import prompt, weights
from eval.inversion.verdicts import VERDICTS, Joined, question
from eval.report.evidence import AFTER, BEFORE, Score, Task, group
from eval.report.tables import Record
from eval.statistics import Interval, share


@dataclass(frozen=True)
class Outcome:
    """One question at one site, before and after training.

    Attributes:
        shares: of the four verdicts, in their order, by phase.
        tokens: how many tokens they are shares of, by phase.
    """

    model: str
    task: Task
    prompts: str
    part: str
    layer: int
    shares: dict[str, dict[str, Interval]]
    tokens: dict[str, int]


def outcomes(
    lines: list[Record], placed: list[Score], joined: dict[Hashable, Joined]
) -> list[Outcome]:
    """The verdicts of the questions of a table, where both gradients and search were tried.

    Args:
        lines: of `tables.pivot`.
        placed: the scores that they were made of.
        joined: verdicts by `verdicts.question`.
    """
    cells = group(placed, lambda s: (s.model, s.task, s.prompts, s.part, s.layer, s.phase))
    found = []
    for line in lines:
        place: dict[str, Any] = {k: line[k] for k in ("model", "task", "prompts", "part", "layer")}
        shares, tokens = {}, {}
        for phase in (BEFORE, AFTER):
            own = {question(s.row): s for s in cells.get((*place.values(), phase), [])}
            tried = [joined[q] for q in own if {"gradient", "search"} <= joined[q].families]
            if tried:
                shares[phase] = _shares(tried, line["task"].nonself)
                tokens[phase] = sum(j.count(line["task"].nonself).total() for j in tried)
        if shares:
            found.append(Outcome(**place, shares=shares, tokens=tokens))
    return found


def _shares(tried: list[Joined], hidden: bool) -> dict[str, Interval]:
    counts = [j.count(hidden) for j in tried]
    totals = [count.total() for count in counts]
    prompts = [prompt(j.rows[0]) for j in tried]
    models = [weights(j.rows[0]) for j in tried]
    return {
        verdict: share([count[verdict] for count in counts], totals, prompts, models)
        for verdict in VERDICTS
    }
