"""What the pages say of the claims: no verdict but in their columns, and counts that are so."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from eval.claims.columns import judge
from eval.claims.evidence import evidence
from eval.claims.registry import claims
from eval.rows import read_rows

ROOT = Path(__file__).resolve().parent.parent
VERDICTS_PAGE = ROOT / "docs" / "results" / "claims.md"
OF_CLAIMS = (VERDICTS_PAGE, *VERDICTS_PAGE.with_suffix("").glob("*.md"))
ASKED = ("claim", "arm", "protocol", "stand_in")
PAGES = [ROOT / "README.md", *sorted({*ROOT.glob("docs/**/*.md")} - {*OF_CLAIMS})]
OF_A_CLAIM = re.compile(r"#claim-\d+|^\| *\d+(-\d+)? [a-z]|\bclaims? \d+", re.IGNORECASE)
VERDICT = re.compile(r"\b(holds?|hold only|not hold|needs? weights|is (true|false|refuted))\b")


def stated(text: str) -> list[str]:
    """The lines of a page that give a verdict on a claim: blocks of prose, or rows of a table."""
    prose = re.split(r"\n\n|\n(?=[|*-])", text)
    return [block for block in prose if OF_A_CLAIM.search(block) and VERDICT.search(block)]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("| 95 entropy drops | holds, by degrees | 10.1 |", 1),
        ("| [95](claims.md#claim-95) entropy | 10.1 |\n| [96](claims.md#claim-96) x | holds |", 1),
        ("This says that claim 100\ndoes not hold.", 1),
        ("Claim 100 is about stories.\n\nA checkpoint holds it.", 0),
    ],
)
def test_a_verdict_is_seen(text: str, count: int) -> None:
    assert len(stated(text)) == count


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_but_one_states_a_verdict(page: Path) -> None:
    assert stated(page.read_text(encoding="utf-8")) == []


def test_what_was_asked_again_is_there_row_by_row():
    """Shares of shown tokens, counted anew from the tokens of every row that is kept."""
    rows = read_rows([VERDICTS_PAGE.with_suffix(".parquet")])
    assert not re.search(r"/(tmp|work|home|root)/", json.dumps(rows))
    by_key = {row["key"]: row for row in rows}
    kept: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        if row["kind"] == "claim":
            for one in (by_key[key] for key in row["keys"]):
                if one["kind"] == "recovery":
                    how = (one["method"], one["control"], one["padded"])
                    kept[(*(row.get(name, "") for name in ASKED), *how)].append(one)
    assert kept
    records, notes = evidence(rows, claims())
    assert notes == []
    again = {number for number, claim in claims().items() if claim.again}
    counted = set()
    for record in records:
        own = kept[(*(record.get(n, "") for n in (*ASKED, "method", "control", "padded")),)]
        if own:
            hits = [hit for row in own for hit in shown_hits(row)]
            assert record["self"] == pytest.approx(sum(hits) / len(hits), abs=1e-6)
            assert record["prompts"] == len({tuple(row["truth"]) for row in own})
            counted.add(record["claim"])
        else:
            assert "lens" in record or record["claim"] not in again
    assert counted >= {number for number in again if not claims()[number].arms[0].lens}


def shown_hits(row: Any) -> list[bool]:
    """Whether each token whose output was shown was found."""
    ((first, end),) = re.findall(r"\[:, (\d*):(\d*), ", row["slice"])
    pairs = list(zip(row["truth"], row["found"], strict=True))
    return [truth == found for truth, found in pairs[int(first or 0) : int(end or len(pairs))]]


def test_readme_counts_the_claims_that_were_asked():
    records, _ = evidence(read_rows([VERDICTS_PAGE.with_suffix(".parquet")]), claims())
    judged = [judge(claim, records) for claim in claims().values()]
    asked = sum(one.asked for one in judged)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{asked} of {len(judged)} claims were asked" in readme
    assert f"The other {len(judged) - asked} need weights" in readme
