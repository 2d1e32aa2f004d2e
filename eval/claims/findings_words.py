"""What a placeholder says: a figure, a verdict, a count, a link; or nothing, of an assertion."""

from __future__ import annotations

import operator
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eval.claims.evidence import Record
from eval.claims.findings_figures import FACTS, Reading, curve, fact, figure
from eval.claims.judge import FAILS, HOLDS, NOT_RUN, ONLY_REPORTED, VERDICTS, WEIGHTS, Judgement
from eval.claims.registry import GROUPS
from eval.errors import RequestError

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, "=": operator.eq, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip
OF_SEVERAL = {
    HOLDS: "hold",
    ONLY_REPORTED: "hold only as reported",
    FAILS: "do not hold",
    WEIGHTS: "need weights",
    NOT_RUN: "were not run",
}
OF_ONE = {verdict: verdict for verdict in VERDICTS} | {NOT_RUN: "was not run"}
CURVES = "curves"
"""What figures of curves cite, in place of a claim's number."""


@dataclass
class Known:
    """What placeholders are looked up in.

    Args:
        judgements: of all claims.
        curves: records of the curves.
        page: put before links, where the text stands in another file than the table.
        used: whose figures were said.
        cited: what was linked to.
    """

    judgements: list[Judgement]
    curves: list[Record] = field(default_factory=list)
    page: str = ""
    used: set[str] = field(default_factory=set)
    cited: set[str] = field(default_factory=set)

    def say(self, text: str) -> str:
        """What stands in a placeholder's place.

        Raises:
            RequestError: it means nothing, or the records do not bear an assertion out.
        """
        name, *rest = _split(text)
        if name == "assert":
            self._check(rest)
            return ""
        if name == "claim":
            numbers = [str(self._claim(word).claim.number) for word in rest]
            self.cited.update(numbers)
            return self._links(numbers)
        if name == CURVES:
            if not self.curves:
                raise RequestError("there are no records of curves; give them with --curves")
            self.cited.add(CURVES)
            return f"[curves]({self.page}#{CURVES})"
        if name == "tally":
            return tally(self._group(rest)) or "none"
        if name == "which":
            if not rest or rest[0] not in VERDICTS:
                raise RequestError(f"needs a verdict in quotes, of {', '.join(VERDICTS)}")
            own = [one for one in self._group(rest[1:]) if one.verdict == rest[0]]
            return self._links([str(one.claim.number) for one in own]) or "none"
        whose = CURVES if name == CURVES[:-1] else " ".join(rest) if name in FACTS else name
        self.used.add(whose)
        return self._read([name, *rest]).shown

    def _read(self, words: list[str]) -> Reading:
        name, *rest = words or [""]
        if name == CURVES[:-1]:
            return curve(self.curves, rest)
        if name in FACTS:
            return fact(self._claim(" ".join(rest)), name)
        return figure(self._claim(name), rest)

    def _claim(self, word: str) -> Judgement:
        for one in self.judgements:
            if str(one.claim.number) == word:
                return one
        names = ", ".join(("assert", "claim", "curve", CURVES, "tally", "which", *FACTS))
        raise RequestError(f"{word!r} is neither a claim's number nor one of {names}")

    def _group(self, words: list[str]) -> list[Judgement]:
        if len(words) > 1 or not set(words) <= set(GROUPS):
            raise RequestError(f"{' '.join(words)!r} is no group; there are {', '.join(GROUPS)}")
        return [one for one in self.judgements if not words or one.claim.group in words]

    def _links(self, numbers: list[str]) -> str:
        return ", ".join(f"[{n}]({self.page}#claim-{n})" for n in numbers)

    def _check(self, words: list[str]) -> None:
        signs = [i for i, word in enumerate(words) if word in OPERATORS]
        if len(signs) != 1:
            raise RequestError(f"needs a figure, one of {' '.join(OPERATORS)}, and another")
        at = signs[0]
        left, right = self._side(words[:at]), self._side(words[at + 1 :])
        if isinstance(left, str) != isinstance(right, str):
            raise RequestError(f"{left!r} cannot be compared with {right!r}")
        if not OPERATORS[words[at]](left, right):
            raise RequestError(
                f"the records say otherwise: {left} {words[at]} {right} is not so; "
                "what is written there has to change"
            )

    def _side(self, words: list[str]) -> Any:
        """A number, a verdict, a figure, or an end of its interval, `low` or `high`."""
        if " ".join(words) in VERDICTS:
            return " ".join(words)
        if len(words) == 1:
            try:
                return float(words[0])
            except ValueError:
                pass
        end = words[-1] if words and words[-1] in ("low", "high") else ""
        found = self._read(words[:-1] if end else words)
        value = getattr(found, end or "value")
        if value is None:
            raise RequestError(f"{' '.join(words[:-1])}: it has no interval")
        return value


def tally(judgements: list[Judgement]) -> str:
    """How many claims have which verdict: `3 hold, 1 does not hold`."""
    counts = Counter(one.verdict for one in judgements)
    return ", ".join(
        f"{counts[verdict]} {(OF_ONE if counts[verdict] == 1 else OF_SEVERAL)[verdict]}"
        for verdict in VERDICTS
        if counts[verdict]
    )


def _split(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise RequestError(f"cannot be read ({error})") from None
    if not words:
        raise RequestError("is empty")
    return words
