"""Figures named by words: of a claim, `71 nonself search`, and of a curve, `curve width flat 64 …`.

Words are separated by blanks; quotes hold together what has blanks in it.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from eval.claims.entries import FAIR, POOLS, PROTOCOLS, REPORTED, Term
from eval.claims.evidence import Record
from eval.claims.judge import Judgement
from eval.claims.lookup import SHOWN, escaped, look_up, number, quoted, share
from eval.errors import RequestError

OF_CURVE = ("axis", "architecture", "x", "slice", "family")
FACTS = ("verdict", "why", "prompts", "models", "sizes", "found")
WIDTH = 80  # of a text that was found


class Reading(NamedTuple):
    """A figure in print, and as a number with its interval where it has one."""

    shown: str
    value: Any
    low: float | None = None
    high: float | None = None


def figure(one: Judgement, words: list[str]) -> Reading:
    """`[reported] FIGURE [BY] [padded] [arm=] [control=] [pool=] [FIELD=VALUE ...]`.

    BY is a method, a family or `best`; fields are those that say where a lens's figure was taken.

    Raises:
        RequestError: no record bears it; the message lists those that there are.
    """
    plain, where = _options(words)
    protocol = next((word for word in plain if word in PROTOCOLS), FAIR)
    padded = "padded" in plain
    plain = [word for word in plain if word not in (*PROTOCOLS, "padded")]
    arm, pool = str(where.pop("arm", "")), str(where.pop("pool", "mean"))
    control = str(where.pop("control", ""))
    arms = [arm.name for arm in one.claim.arms]
    if arm not in arms or pool not in POOLS or len(plain) not in (1, 2):
        named = "" if arms == [""] else f", arm= one of {', '.join(map(repr, arms))}"
        raise RequestError(f"needs a figure, by whom{named}; pool= {', '.join(POOLS)}")
    term = Term(plain[0], arm, plain[1] if plain[1:] else "best", where, pool)
    value = look_up(one, term, protocol, padded, control)
    if value is None:
        own = [r for r in one.records if (r["arm"], r["protocol"]) == (arm, protocol)]
        there = ", ".join(dict.fromkeys(_words(r) for r in own)) or "none"
        raise RequestError(f"no record of that; of that arm, {protocol}, there are: {there}")
    return Reading(number(value), *value[:3])


def fact(one: Judgement, name: str) -> Reading:
    """The verdict and what explains it; how many prompts and models, of what size; a text found.

    Raises:
        RequestError: it is not known.
    """
    fair = [r for r in one.records if r["protocol"] == FAIR]
    said = {"verdict": one.verdict, "why": one.why}
    said |= {key: str(max((r[key] for r in fair), default="")) for key in ("prompts", "models")}
    said["sizes"] = ", ".join(sorted({s for r in fair for s in r["sizes"] if not r.get("control")}))
    texts = [r["found"] for r in one.records if r["protocol"] == REPORTED and "found" in r]
    said["found"] = escaped(quoted(texts[0], WIDTH)) if texts else ""
    if not said[name]:
        raise RequestError("not known: no record says it")
    return Reading(said[name], said[name])


def curve(records: list[Record], words: list[str]) -> Reading:
    """`AXIS ARCHITECTURE X SLICE FAMILY [state=before|after] [FIELD=VALUE ...]`.

    X is null where an axis has none. A method's name does for a family, and its last word too.

    Raises:
        RequestError: not exactly one point is of that.
    """
    plain, where = _options(words)
    if len(plain) != len(OF_CURVE):
        raise RequestError(f"a curve's figure needs {', '.join(OF_CURVE)}")
    wanted = dict(zip(OF_CURVE, plain, strict=True)) | where
    own = [r for r in records if all(_alike(r, key, value) for key, value in wanted.items())]
    if len(own) != 1:
        near = own or [r for r in records if r["axis"] == wanted["axis"]] or records
        names = ("axis", "architecture", "x", "state", "slice", "method")
        there = "; ".join(
            f"{name} {', '.join(dict.fromkeys(str(r.get(name)) for r in near))}" for name in names
        )
        raise RequestError(f"{len(own)} points are of that, not 1; there are: {there}")
    ends = own[0]["share"], own[0]["low"], own[0]["high"]
    return Reading(share(*ends), *ends)


def _alike(record: Record, key: str, value: Any) -> bool:
    if key == "family":
        return value in (record["family"], record["family"].split()[-1], record["method"])
    own = record.get(key)
    return own == value or str(own) == str(value) or own == _read(str(value))


def _options(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The words, and those of the form KEY=VALUE."""
    plain = [word for word in words if "=" not in word]
    pairs = (word.split("=", 1) for word in words if "=" in word)
    return plain, {key: _read(value) for key, value in pairs}


def _read(value: str) -> Any:
    """A number, true, false or null; else the word itself."""
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _words(record: Record) -> str:
    """What a record is of, in a placeholder's words."""
    if "lens" in record:
        return " ".join(
            [f'"{record["figure"]}"', *(f"{k}={v}" for k, v in record["where"].items())]
        )
    shares = "|".join(figure for figure in SHOWN if record.get(figure) is not None)
    more = ["padded"] if record["padded"] else []
    more += [f"control={record['control']}"] if record["control"] else []
    return " ".join([shares, record["method"], *more])
