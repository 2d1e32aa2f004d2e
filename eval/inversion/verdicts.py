"""What became of each token when all methods are taken together.

One method that fails says little: a token that gradient descent does not find may be there for
search to find, or may not be there at all. So the rows of one question (a checkpoint, a site, a
slice, a prompt) are joined over their methods and seeds, and every token ends with one verdict.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from eval.inversion.fields import (
    SHUFFLED,
    family,
    hidden_positions,
    layers,
    part,
    prompt,
    variation,
    weights,
)
from eval.results import Row
from eval.statistics import Interval, share

GRADIENT = "recovered by gradient"
SEARCH = "recovered only by search"
AMBIGUOUS = "ambiguous"
NOT_FOUND = "not found"
VERDICTS = (GRADIENT, SEARCH, AMBIGUOUS, NOT_FOUND)


@dataclass(frozen=True)
class Joined:
    """One question's rows, and the verdict of each token.

    Attributes:
        rows: at least one; of gradient methods and of searches.
        verdicts: one of `VERDICTS` per position.
        hidden: the positions not shown.
    """

    rows: list[Row]
    verdicts: list[str]
    hidden: set[int]

    @property
    def families(self) -> set[str]:
        """Which families of methods were asked."""
        return {family(row) for row in self.rows}

    @property
    def decisive(self) -> bool:
        """Whether both gradients and search were tried, so that each verdict was possible."""
        return {"gradient", "search"} <= self.families

    def count(self, hidden: bool) -> Counter[str]:
        """Verdicts of the hidden positions, or of the shown ones."""
        return Counter(v for t, v in enumerate(self.verdicts) if (t in self.hidden) == hidden)


def join(rows: Iterable[Row]) -> list[Joined]:
    """Joins rows over methods and seeds, in the order of first appearance.

    Rows of neither gradient methods nor searches (probes, say) give no verdict and are left out,
    and so are those of a control that has nothing to find.
    """
    questions: dict[Hashable, list[Row]] = {}
    for row in rows:
        if family(row) in ("gradient", "search") and row.get("control") != SHUFFLED:
            questions.setdefault(question(row), []).append(row)
    return [
        Joined(own, [_verdict(own, t) for t in range(len(own[0]["truth"]))],
               hidden_positions(own[0]))
        for own in questions.values()
    ]  # fmt: skip


def shares(joined: list[Joined], hidden: bool) -> dict[str, Interval] | None:
    """The share of each verdict among hidden or among shown tokens; None if there are none.

    With 95 % intervals clustered on prompts and training seeds.
    """
    counts = [j.count(hidden) for j in joined]
    totals = [count.total() for count in counts]
    if not sum(totals):
        return None
    prompts = [prompt(j.rows[0]) for j in joined]
    models = [weights(j.rows[0]) for j in joined]
    return {v: share([count[v] for count in counts], totals, prompts, models) for v in VERDICTS}


def question(row: Row) -> tuple[Hashable, ...]:
    """Equal for rows that differ in their method, its settings and its seed only."""
    departs = tuple(variation(row).items())
    site = (layers(row), part(row), row["slice"])
    return (row["checkpoint"]["name"], weights(row), *site, departs, prompt(row), row["prompt"])


def _verdict(rows: list[Row], t: int) -> str:
    """Ambiguous before all else: where two inputs fit, finding the true one is luck."""
    if any(row["verdict"][t] == AMBIGUOUS for row in rows):
        return AMBIGUOUS
    finders = {family(row) for row in rows if row["found"][t] == row["truth"][t]}
    if "gradient" in finders:
        return GRADIENT
    return SEARCH if "search" in finders else NOT_FOUND
