"""Verdicts on tokens across all solvers, and the answers that were accepted wrongly.

One solver that fails says little: a token that gradient descent does not recover may still be
recovered by search, or may not be there at all. So the rows of one question (a checkpoint, a site,
a slice, a prompt) are joined over their solvers and seeds, and every token gets one verdict.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from eval.analysis.accepts import accepted, hidden_positions, is_false_accept, weights
from eval.analysis.frame import Frame, Quantity, coordinates, counted, prompt_of
from eval.analysis.statistics import at_most
from eval.rows.schema import SHUFFLED, Row

OF_SOLVER = ("solver", "family", "settings")
"""The coordinates of a recovery that say how it was asked."""
GRADIENT = "recovered by gradient"
SEARCH = "recovered only by search"
AMBIGUOUS = "ambiguous"
NOT_FOUND = "not found"
SHORT = {GRADIENT: "gradient", SEARCH: "search", AMBIGUOUS: "ambiguous", NOT_FOUND: "not_found"}
"""Every verdict, and its name in fields."""
TOKENS = {"self": False, "nonself": True}
"""Tokens of either kind, and whether their position is hidden."""

QUANTITIES = tuple(
    Quantity(
        f"{kind}_{name}", "share", lambda row: None, f"{words}: {name.replace('_', ' ')}", True
    )
    for kind, words in (("self", "shown"), ("nonself", "hidden"))
    for name in SHORT.values()
)
"""What `verdict_lines` measures."""


@dataclass(frozen=True)
class Joined:
    """The rows of one question, a verdict per position, and the hidden positions."""

    rows: list[Row]
    verdicts: list[str]
    hidden: set[int]

    @property
    def decisive(self) -> bool:
        """Whether both gradients and search were tried, so that each verdict was possible."""
        return {"gradient", "search"} <= {row["family"] for row in self.rows}

    def count(self, hidden: bool) -> Counter[str]:
        """Verdicts of the hidden positions, or of the shown ones."""
        return Counter(v for t, v in enumerate(self.verdicts) if (t in self.hidden) == hidden)


def join_rows(rows: Iterable[Row]) -> list[Joined]:
    """Joins rows over solvers and seeds, in the order of first appearance.

    Rows of neither gradient solvers nor searches give no verdict and are left out, and so are those
    of shuffled targets.
    """
    questions: dict[Hashable, list[Row]] = {}
    for row in rows:
        if row["family"] in ("gradient", "search") and row["control"] != SHUFFLED:
            questions.setdefault(question(row), []).append(row)
    return [
        Joined(alike, [_verdict(alike, t) for t in range(len(alike[0]["truth"]))],
               hidden_positions(alike[0]))
        for alike in questions.values()
    ]  # fmt: skip


def question(row: Row) -> tuple[Hashable, ...]:
    """Equal for rows that differ in their solver, its settings and its seed only."""
    where = {n: value for n, value in coordinates(row).items() if n not in OF_SOLVER}
    return (row["checkpoint"]["name"], weights(row), *where.values(), prompt_of(row))


def verdict_lines(lines: Frame, rows: Iterable[Row]) -> Frame:
    """Verdicts as measurements: a line for each question, kind of token and verdict.

    Of questions to which both families of solvers were put. Quantities are
    `QUANTITIES`; the coordinates are those of recoveries without `OF_SOLVER`.

    Args:
        lines: of `eval.analysis.frame.frame`, of these rows.
        rows: recoveries, and others, which are left out.
    """
    import pandas

    heads = lines.drop_duplicates("key").set_index("key")
    found = []
    for joined in join_rows(row for row in rows if row["kind"] == "recovery"):
        for kind, hidden in TOKENS.items() if joined.decisive else ():
            count = joined.count(hidden)
            for verdict, name in SHORT.items() if count else ():
                measured = counted(count[verdict], count.total())
                found.append((joined.rows[0]["key"], f"{kind}_{name}", *measured, "share"))
    names = ["key", "quantity", "hits", "n", "value", "low", "high", "pool"]
    table = pandas.DataFrame(found, columns=names).astype(dict.fromkeys(names[2:7], float))
    about = heads.drop(columns=[*OF_SOLVER, *names[1:]], errors="ignore")
    return table.join(about, on="key")


def _verdict(rows: list[Row], t: int) -> str:
    """Ambiguous before all else: where two inputs fit, finding the true one is luck."""
    if any(row["verdict"][t] == AMBIGUOUS for row in rows):
        return AMBIGUOUS
    finders = {row["family"] for row in rows if row["found"][t] == row["truth"][t]}
    if "gradient" in finders:
        return GRADIENT
    return SEARCH if "search" in finders else NOT_FOUND


class Accepts(NamedTuple):
    """Answers at the floor, and the wrong ones among them.

    Attributes:
        wrong: answers at the floor that are false accepts.
        answers: answers at the floor.
        tokens: of those answers.
        wrong_pairs: pairs of prompt and model with a false accept.
        pairs: pairs of prompt and model with an answer at the floor.
        ambiguous: answers at the floor that are another prompt, with the true one at the floor too.
    """

    wrong: int
    answers: int
    tokens: int
    wrong_pairs: int
    pairs: int
    ambiguous: int

    @property
    def bound(self) -> float:
        """The share of pairs with a false accept, at most, with 95 % confidence; pairs >= 1.

        Tokens, layers, solvers and seeds of one pair are no independent trials: a pair is one.
        """
        return at_most(self.wrong_pairs, self.pairs)


def accepts(rows: Iterable[Row]) -> Accepts:
    """Counts of accepted answers; controls and noisy targets are left out."""
    recoveries = {row["key"]: row for row in rows if row["kind"] == "recovery"}.values()
    answers = [row for row in recoveries
               if accepted(row) and not (row["control"] or row["noise"])]  # fmt: skip
    wrong = [row for row in answers if is_false_accept(row)]
    return Accepts(
        wrong=len(wrong),
        answers=len(answers),
        tokens=sum(row["length"] for row in answers),
        wrong_pairs=_count_pairs(wrong),
        pairs=_count_pairs(answers),
        ambiguous=sum(not row["exact"] for row in answers) - len(wrong),
    )


def _count_pairs(rows: Iterable[Row]) -> int:
    """Pairs of prompt and model; a prompt that a slice cuts short is no other one.

    What is left of it comes just before the whole one in the order of tokens.
    """
    known = sorted({(weights(row), row["prompts"], *row["truth"]) for row in rows})
    return sum(after[: len(pair)] != pair for pair, after in pairwise([*known, ()]))
