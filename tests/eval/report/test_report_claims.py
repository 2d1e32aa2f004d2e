"""Rows that say which rows answer a claim are of no model: all readers pass over them."""

from eval.__main__ import main
from eval.comparison import enter
from eval.gather import gather_models
from eval.report.page import render_page
from eval.report.tables import summary_table
from eval.rows import Results
from tests.eval.compare_cases import OF_CLAIM
from tests.eval.report.cases import make_row

ROWS = [make_row(prompt=prompt, share=(1.0, 1.0)) for prompt in range(4)]


def test_compare_and_the_page_pass_over_them(tmp_path):
    Results(tmp_path / "plain").append(ROWS)
    Results(tmp_path / "claims").append([*ROWS, OF_CLAIM])
    (plain,), (claims,) = (enter(gather_models([tmp_path / name])) for name in ("plain", "claims"))
    assert plain.figures == claims.figures
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "claims"), "--out", str(page)]) == 0
    assert page.read_text() == render_page(ROWS)
    assert summary_table([*ROWS, OF_CLAIM]) == summary_table(ROWS)
