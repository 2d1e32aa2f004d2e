"""What became of the tokens when all methods are taken together, as shares of each question."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from eval.recovery import Joined, question, shares
from eval.report.evidence import AFTER, BEFORE, Score, Task, group
from eval.report.tables import Record
from eval.statistics import Interval


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
        found_shares, tokens = {}, {}
        for phase in (BEFORE, AFTER):
            own = {question(s.row): s for s in cells.get((*place.values(), phase), [])}
            tried = [joined[q] for q in own if q in joined and joined[q].decisive]
            found_share = shares(tried, line["task"].nonself)
            if found_share:
                found_shares[phase] = found_share
                tokens[phase] = sum(j.count(line["task"].nonself).total() for j in tried)
        if found_shares:
            found.append(Outcome(**place, shares=found_shares, tokens=tokens))
    return found
