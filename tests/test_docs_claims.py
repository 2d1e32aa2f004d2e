"""What the pages say of the claims: one verdict for each, in one place, and counts that are so."""

import re
from pathlib import Path

import pytest

from eval.claims.evidence import evidence
from eval.claims.judge import NOT_RUN, WEIGHTS, judge
from eval.claims.registry import claims
from eval.rows import read_rows

ROOT = Path(__file__).resolve().parent.parent
VERDICTS_PAGE = ROOT / "docs" / "results" / "claims.md"
PAGES = [p for p in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))] if p != VERDICTS_PAGE]
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


def test_readme_counts_the_claims_that_have_a_verdict() -> None:
    records, _ = evidence(read_rows([VERDICTS_PAGE.with_suffix(".parquet")]), claims())
    verdicts = [judge(claim, records).verdict for claim in claims().values()]
    lacking = sum(verdict in (WEIGHTS, NOT_RUN) for verdict in verdicts)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{len(verdicts) - lacking} of {len(verdicts)} claims have a verdict" in readme
    assert f"The other {lacking} need weights" in readme
