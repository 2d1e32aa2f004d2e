"""Rows that the claims asked: they lie beside the user's own, and are not mixed with them."""

from pathlib import Path

import pytest

from eval.__main__ import main
from eval.comparison.entries import enter
from eval.comparison.evidence import gather
from eval.report import render_page, summary_table
from eval.results import Results
from tests.compare_cases import END, asked, complaint, lens_row, make_run, run_compare
from tests.report_cases import make_row

OWN = [make_row(prompt=prompt, share=(1.0, 1.0)) for prompt in range(4)]
THEIRS = [asked(make_row(prompt=prompt, share=(0.0, 0.0))) for prompt in range(9)]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    Results(tmp_path / "results" / "flat").append(OWN)
    Results(tmp_path / "results" / "claims").append([*THEIRS, asked(lens_row(3.0)), END])
    return tmp_path / "results"


def test_compare_leaves_claims_out(results: Path, tmp_path: Path) -> None:
    assert run_compare(make_run(tmp_path, "flat-s0"), results) == 0
    (mixed,), (alone,) = (enter(gather([p])) for p in (results, results / "flat"))
    assert mixed.figures == alone.figures


def test_the_page_leaves_claims_out(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    places = [str(results / name) for name in ("flat", "claims")]
    assert main(["report", *places, "--out", str(page)]) == 0
    assert page.read_text() == render_page(OWN)
    assert summary_table([*OWN, *THEIRS, END]) == summary_table(OWN)


@pytest.mark.parametrize("command", ["compare", "report"])
def test_claims_alone_are_one_line(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    page = tmp_path / "page.html"
    out = ["--out", str(page)] if command == "report" else []
    assert main([command, str(results / "claims"), *out]) == 2
    said = complaint(capsys)
    assert "rows of claims only" in said
    assert "python -m eval claims table" in said
    assert not page.exists()
