"""The results' text: `findings.md`, a Jinja template whose figures are looked up in the records.

    {{ figure(71, "nonself", by="search") }}       hidden tokens of claim 71, by search
    {{ figure(69, "self", arm="trained") }}        or by="descent", padded=true
    {{ answer(71, "information") }}                yes, no, open, invalid or not asked
    {{ prompts(71) }} {{ sizes(71, arm="flat") }}  of figures
    {{ tally("gradients") }}                       of all claims
    {{ claim(71, 74) }}                            links to rows, which lead to the commands
    {{ hypothesis("H1") }} {{ progress() }}        of the registered experiment: confirmed, ...
    {{ contrast("H1", "flat") }} {{ prediction("H7") }}
    {{ e2b.contrast("H1", "flat, hidden 3") }}     of another one, by its name
    {% do check(figure(71, "nonself", by="search").low, ">", figure(71, "nonself").high) %}

A paragraph with figures of a claim must link to it, and may have no share that was typed by hand.
`check` prints nothing, and fails where the comparison does not hold.
"""

from __future__ import annotations

import operator
import re
import traceback
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError, TemplateSyntaxError, nodes

from eval import RequestError
from eval.claims.columns import COLUMNS, SHOWN, Judgement, Value, tally_of, value_of
from eval.claims.entries import FAIR, Term
from eval.claims.evidence import Record

TEMPLATE = Path(__file__).with_suffix(".md")
PLACEHOLDER = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
TYPED = re.compile(r"\d[\d.,]*\s?%|\}\}")
START, END = "<!-- finding -->", "<!-- /finding -->"
"""Around what the README says as well."""
OPERATORS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, ">=": operator.ge,
             ">": operator.gt}  # fmt: skip
FACTS = ("prompts", "sizes")


@dataclass
class Known:
    """What the template's functions look up.

    Args:
        judgements: of all claims.
        page: put before links, where the text stands in another file than the table.
        more: other functions: those of an experiment (`eval.information.page.placeholders`).
    """

    judgements: list[Judgement]
    page: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def functions(self) -> dict[str, Any]:
        """All that a template can call, by name."""
        named = (self.figure, self.claim, self.answer, self.tally)
        known = {function.__name__: function for function in named}
        return self.more | known | {n: partial(self._fact, n) for n in FACTS} | {"check": _hold}

    def figure(
        self, claim: int, name: str, by: str = "best", arm: str = "", padded: bool = False
    ) -> Value:
        """A figure of a claim, fairly asked, by a method, a family or `best`.

        Raises:
            RequestError: no record bears it; the message lists those that there are.
        """
        arms = [arm.name for arm in self._claim(claim).claim.arms]
        if arm not in arms:
            raise RequestError(f"arm={arm!r}: claim {claim} has {', '.join(map(repr, arms))}")
        fair = self._fair(claim, arm)
        asked = [record for record in fair if record.get("padded", False) == padded]
        value = value_of(Term(name, arm, by), asked)
        if value is None:
            there = ", ".join(dict.fromkeys(map(_words, fair))) or "none"
            raise RequestError(f"no record of that; of that arm, fair, there are: {there}")
        return value

    def claim(self, *numbers: int) -> str:
        """Links to claims."""
        known = [self._claim(number).claim.number for number in numbers]
        return ", ".join(f"[{number}]({self.page}#claim-{number})" for number in known)

    def answer(self, claim: int, column: str) -> str:
        """A column's answer."""
        return self._claim(claim).cells[_column(column)].answer

    def tally(self, column: str) -> str:
        """How many claims have which answer in a column."""
        return tally_of(self.judgements, _column(column))

    def _fact(self, name: str, claim: int, arm: str | None = None) -> str:
        """How many prompts a claim, or its arm, was fairly asked of; the sizes of its models."""
        records = self._fair(claim, arm)
        if not records:
            raise RequestError(f"{name} of claim {claim} is not known: no record says it")
        if name == "sizes":
            return ", ".join(sorted({size for record in records for size in record["sizes"]}))
        return str(max(record[name] for record in records))

    def _fair(self, claim: int, arm: str | None) -> list[Record]:
        """The records of the fair protocol, without controls, of one arm or of all."""
        records = self._claim(claim).records
        fair = [r for r in records if r["protocol"] == FAIR and not r.get("control")]
        return [r for r in fair if arm in (None, r["arm"])]

    def _claim(self, number: int) -> Judgement:
        for one in self.judgements:
            if one.claim.number == number:
                return one
        raise RequestError(f"there is no claim {number!r}")


def _hold(left: Any, sign: str, right: Any) -> None:
    """Refuses a comparison of figures, or of answers, that does not hold.

    Raises:
        RequestError: it does not hold, or a side is missing or of another kind.
    """
    if sign not in OPERATORS:
        raise RequestError(f"{sign!r} compares nothing; use one of {' '.join(OPERATORS)}")
    if left is None or right is None:
        raise RequestError("it has no interval")
    if isinstance(left, str) != isinstance(right, str):
        raise RequestError(f"{left!r} cannot be compared with {right!r}")
    if not OPERATORS[sign](left, right):
        raise RequestError(
            f"the records say otherwise: {left} {sign} {right} is not so; "
            "what is written there has to change"
        )


def fill(path: Path, known: Known) -> str:
    """A template with its placeholders resolved.

    Raises:
        RequestError: a line that names what means nothing, is not known, or is not so.
    """
    source = path.read_text(encoding="utf-8")
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, extensions=["jinja2.ext.do"], autoescape=False
    )
    environment.globals = known.functions
    try:
        text = environment.from_string(source).render()
        _check_written(environment, source)
    except (TemplateError, RequestError, TypeError) as error:
        lines = [
            line
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_code.co_filename == "<template>"
        ]
        line = getattr(error, "lineno", None) or lines[-1]
        words = f"{source.splitlines()[line - 1]}: {getattr(error, 'message', error)}"
        raise RequestError(f"{path.name}, line {line}: {' '.join(words.split())}") from None
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def readme(path: str | Path, filled: str) -> str:
    """A README with the finding of a filled template in place of its own.

    Raises:
        RequestError: one of them has not the marks of a finding once each.
    """
    text = Path(path).read_text(encoding="utf-8")
    for name, each in ((path, text), (TEMPLATE.name, filled)):
        if each.count(START) != 1 or each.count(END) != 1 or each.index(END) < each.index(START):
            raise RequestError(
                f"{name}: needs one {START} and one {END} after it, each on a line, around its "
                "finding"
            )
    said = filled[filled.index(START) : filled.index(END)]
    return text[: text.index(START)] + said + text[text.index(END) :]


def _check_written(environment: Environment, source: str) -> None:
    """Refuses a share that was typed by hand, and figures without a link in their paragraph."""
    plain = PLACEHOLDER.sub(lambda match: "\n" * match[0].count("\n"), source)
    if typed := TYPED.search(plain):
        line = 1 + plain.count("\n", 0, typed.start())
        raise TemplateSyntaxError(f"{typed[0]} is typed by hand; write a placeholder", line)
    starts = [1 + source.count("\n", 0, match.end()) for match in re.finditer(r"\n\n+", source)]
    used, cited = defaultdict(set), defaultdict(set)
    for output in environment.parse(source).find_all(nodes.Output):
        for call in output.find_all(nodes.Call):
            name, at = getattr(call.node, "name", ""), bisect_right(starts, call.lineno)
            links = [f"claim({getattr(node, 'value', '')})" for node in call.args]
            if name == "claim":
                cited[at] |= {*links}
            elif name in ("figure", "answer", *FACTS):
                used[at] |= {*links[:1]}
    for at in sorted(used):
        if missing := sorted(used[at] - cited[at]):
            message = f"figures without a link to their commands; add {', '.join(missing)}"
            raise TemplateSyntaxError(message, [1, *starts][at])


def _column(name: str) -> str:
    if name not in COLUMNS:
        raise RequestError(f"{name!r} is no column; there are {', '.join(COLUMNS)}")
    return name


def _words(record: Record) -> str:
    """What a record is of, as a placeholder asks for it."""
    if "lens" in record:
        return f'"{record["figure"]}"'
    shares = "|".join(name for name in SHOWN if record.get(name) is not None)
    return f"{shares} {record['method']}" + " padded" * record["padded"]
