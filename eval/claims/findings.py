"""The page's text: `findings.md`, a Jinja template whose figures are looked up in the records.

    {{ figure(71, "nonself", by="search") }}       hidden tokens of claim 71, by search (fair)
    {{ figure(69, "self", protocol="reported", arm="trained") }}
    {{ figure(74, "self", by="descent", padded=true) }}         or control="identity"
    {{ figure(88, "agrees", arm="flat", metric="dot") }}        a lens's, with where it is
    {{ figure(90, "norm", arm="flat", pool="last") }}           pooled over what remains, by layer
    {{ curve("step", "flat", 1000, "nonself", "search") }}      and state="after"
    {{ verdict(71) }} {{ why(71) }} {{ prompts(71) }}           and models, sizes, found
    {{ tally() }} {{ tally("mixers") }} {{ which("does not hold", "mixers") }}
    {{ claim(71, 74) }} {{ curves() }}             links to rows, which hold the commands
    {% assert figure(71, "nonself", by="search").low > figure(71, "nonself", by="gradient").high %}

A paragraph with figures of a claim must link to it, and may have no share that was typed by hand.
"""

from __future__ import annotations

import operator
import re
import traceback
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from eval.claims.cells import SHOWN, escaped, number, quoted, share
from eval.claims.entries import FAIR, POOLS, PROTOCOLS, REPORTED, Term
from eval.claims.evidence import Record
from eval.claims.judge import (
    FAILS,
    HOLDS,
    NOT_RUN,
    ONLY_REPORTED,
    VERDICTS,
    WEIGHTS,
    Judgement,
    look_up,
)
from eval.claims.registry import GROUPS
from eval.errors import RequestError

TEMPLATE = Path(__file__).with_suffix(".md")
PLACEHOLDER = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
TYPED = re.compile(r"\d[\d.,]*\s?%|\}\}")
START, END = "<!-- finding -->", "<!-- /finding -->"
"""Around what the README says as well."""
OPERATORS = {
    "lt": ("<", operator.lt), "lteq": ("<=", operator.le), "eq": ("==", operator.eq),
    "gteq": (">=", operator.ge), "gt": (">", operator.gt),
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
FACTS = ("verdict", "why", "prompts", "models", "sizes", "found")
WIDTH = 80  # of a text that was found


class Figure(float):
    """A number with its interval, where it has one; printed as text says it."""

    low: float | None
    high: float | None
    text: str

    def __new__(cls, text: str, value: float, low: float | None, high: float | None) -> Figure:
        """A figure."""
        new = super().__new__(cls, value)
        new.text, new.low, new.high = text, low, high
        return new

    def __str__(self) -> str:
        return self.text


class Assertions(Extension):
    """The tag `{% assert A > B %}`: prints nothing, and fails where it is not so."""

    tags = {"assert"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The tag as a call of `check`."""
        line = next(parser.stream).lineno
        said = parser.parse_expression()
        if not isinstance(said, nodes.Compare) or [one.op in OPERATORS for one in said.ops] != [1]:
            signs = " ".join(sign for sign, _ in OPERATORS.values())
            parser.fail(f"an assertion needs a figure, one of {signs}, and another", line)
        (other,) = said.ops
        given = [said.expr, nodes.Const(other.op), other.expr]
        return nodes.ExprStmt(self.call_method("check", given), lineno=line)

    def check(self, left: Any, operation: str, right: Any) -> None:
        """Fails where a comparison is not so, or is none.

        Raises:
            RequestError: it is not so.
        """
        sign, holds = OPERATORS[operation]
        if left is None or right is None:
            raise RequestError("it has no interval")
        if isinstance(left, str) != isinstance(right, str):
            raise RequestError(f"{left!r} cannot be compared with {right!r}")
        if not holds(left, right):
            raise RequestError(
                f"the records say otherwise: {left} {sign} {right} is not so; "
                "what is written there has to change"
            )


@dataclass
class Known:
    """What the template's functions look up.

    Args:
        judgements: of all claims.
        points: records of the curves.
        page: put before links, where the text stands in another file than the table.
    """

    judgements: list[Judgement]
    points: list[Record] = field(default_factory=list)
    page: str = ""

    @property
    def functions(self) -> dict[str, Any]:
        """All that a template can call, by name."""
        names = ("figure", "curve", "claim", CURVES, "tally", "which")
        return {name: getattr(self, name) for name in names} | {
            name: partial(self._fact, name) for name in FACTS
        }

    def figure(
        self,
        claim: int,
        name: str,
        by: str = "best",
        arm: str = "",
        protocol: str = FAIR,
        padded: bool = False,
        control: str = "",
        pool: str = "mean",
        **where: Any,
    ) -> Figure:
        """A figure of a claim, by a method, a family or `best`.

        Raises:
            RequestError: no record bears it; the message lists those that there are.
        """
        one = self._claim(claim)
        arms = [arm.name for arm in one.claim.arms]
        for flag, value, allowed in (
            ("arm", arm, arms), ("pool", pool, POOLS), ("protocol", protocol, PROTOCOLS)
        ):  # fmt: skip
            if value not in allowed:
                names = ", ".join(map(repr, allowed))
                raise RequestError(f"{flag}={value!r}: claim {claim} has {names}")
        value = look_up(one, Term(name, arm, by, where, pool), protocol, padded, control)
        if value is None:
            records = [r for r in one.records if (r["arm"], r["protocol"]) == (arm, protocol)]
            there = ", ".join(dict.fromkeys(map(_words, records))) or "none"
            raise RequestError(f"no record of that; of that arm, {protocol}, there are: {there}")
        return Figure(number(value), *value[:3])

    def curve(
        self, axis: str, architecture: str, x: Any, slice: str, family: str, **where: Any
    ) -> Figure:
        """A point of a curve; x is `none` where an axis has none. A method does for a family.

        Raises:
            RequestError: not exactly one point is of that.
        """
        fields = {"axis": axis, "architecture": architecture, "x": x, "slice": slice} | where
        records = [
            r
            for r in self.points
            if family in (r["family"], r["family"].split()[-1], r["method"])
            and all(r.get(key) == value for key, value in fields.items())
        ]
        if len(records) != 1:
            near = records or [r for r in self.points if r["axis"] == axis] or self.points
            names = ("axis", "architecture", "x", "state", "slice", "method")
            there = "; ".join(
                f"{name} {', '.join(dict.fromkeys(str(r.get(name)) for r in near))}"
                for name in names
            )
            raise RequestError(f"{len(records)} points are of that, not 1; there are: {there}")
        ends = records[0]["share"], records[0]["low"], records[0]["high"]
        return Figure(share(*ends), *ends)

    def _fact(self, name: str, claim: int) -> str:
        """The verdict and what explains it; how many prompts and models, of what size; a text."""
        one = self._claim(claim)
        fair = [r for r in one.records if r["protocol"] == FAIR]
        sizes = sorted({s for r in fair for s in r["sizes"] if not r.get("control")})
        texts = [r["found"] for r in one.records if r["protocol"] == REPORTED and "found" in r]
        says = {
            "verdict": one.verdict,
            "why": one.why,
            "prompts": str(max((r["prompts"] for r in fair), default="")),
            "models": str(max((r["models"] for r in fair), default="")),
            "sizes": ", ".join(sizes),
            "found": escaped(quoted(texts[0], WIDTH)) if texts else "",
        }
        if not says[name]:
            raise RequestError(f"{name} of claim {claim} is not known: no record says it")
        return says[name]

    def claim(self, *numbers: int) -> str:
        """Links to claims."""
        known = [self._claim(number).claim.number for number in numbers]
        return ", ".join(f"[{number}]({self.page}#claim-{number})" for number in known)

    def curves(self) -> str:
        """A link to the curves."""
        if not self.points:
            raise RequestError("there are no records of curves; give them with --curves")
        return f"[curves]({self.page}#{CURVES})"

    def tally(self, group: str = "") -> str:
        """How many claims, of a group, have which verdict."""
        return tally(self._group(group)) or "none"

    def which(self, verdict: str, group: str = "") -> str:
        """Links to the claims, of a group, that have a verdict."""
        if verdict not in VERDICTS:
            raise RequestError(f"{verdict!r} is no verdict; there are {', '.join(VERDICTS)}")
        return (
            self.claim(*(one.claim.number for one in self._group(group) if one.verdict == verdict))
            or "none"
        )

    def _claim(self, number: int) -> Judgement:
        for one in self.judgements:
            if one.claim.number == number:
                return one
        raise RequestError(f"there is no claim {number!r}")

    def _group(self, group: str) -> list[Judgement]:
        if group not in ("", *GROUPS):
            raise RequestError(f"{group!r} is no group; there are {', '.join(GROUPS)}")
        return [one for one in self.judgements if group in ("", one.claim.group)]


def fill(path: Path, known: Known) -> str:
    """A template with its placeholders resolved.

    Raises:
        RequestError: a line that names what means nothing, is not known, or is not so.
    """
    source = path.read_text(encoding="utf-8")
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, extensions=[Assertions], autoescape=False
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


def block(text: str, path: str | Path) -> tuple[str, str, str]:
    """A text in three: to the mark of the finding, what is between the marks, and the rest.

    Raises:
        RequestError: the marks are not there once each.
    """
    if text.count(START) != 1 or text.count(END) != 1 or text.index(END) < text.index(START):
        raise RequestError(
            f"{path}: needs one {START} and one {END} after it, each on a line, around its finding"
        )
    before, rest = text.split(START)
    inside, after = rest.split(END)
    return before + START, inside, END + after


def readme(path: str | Path, filled: str) -> str:
    """A README with the finding of a filled template in place of its own."""
    before, _, after = block(Path(path).read_text(encoding="utf-8"), path)
    return before + block(filled, TEMPLATE.name)[1] + after


def tally(judgements: list[Judgement]) -> str:
    """How many claims have which verdict: `3 hold, 1 does not hold`."""
    counts = Counter(one.verdict for one in judgements)
    return ", ".join(
        f"{counts[verdict]} {(OF_ONE if counts[verdict] == 1 else OF_SEVERAL)[verdict]}"
        for verdict in VERDICTS
        if counts[verdict]
    )


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
            elif name in ("figure", *FACTS):
                used[at] |= {*links[:1]}
            elif name in (CURVES, "curve"):
                (cited if name == CURVES else used)[at].add("curves()")
    for at in sorted(used):
        if missing := sorted(used[at] - cited[at]):
            message = f"figures without a link to their commands; add {', '.join(missing)}"
            raise TemplateSyntaxError(message, [1, *starts][at])


def _words(record: Record) -> str:
    """What a record is of, as a placeholder asks for it."""
    if "lens" in record:
        return f'"{record["figure"]}" ' + " ".join(f"{k}={v}" for k, v in record["where"].items())
    shares = "|".join(name for name in SHOWN if record.get(name) is not None)
    more = ["padded"] if record["padded"] else []
    more += [f"control={record['control']}"] if record["control"] else []
    return " ".join([shares, record["method"], *more])
