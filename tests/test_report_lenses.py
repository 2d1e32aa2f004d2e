"""The page's part about the inside of models, in a real browser."""

from pathlib import Path
from typing import Any

import pytest
import torch

from eval.errors import RequestError
from eval.lenses.named import Named
from eval.report.charts import write_figures
from eval.report.inside import sections
from eval.report.page import render_page, write_page
from tests.browser_cases import needs_browser, opened

NASTY = "</script><script>alert('x')</script> \"quoted\""


def document(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    alike = torch.corrcoef(torch.randn(5, 9, generator=generator))
    axes = {"layer": range(5), "other layer": range(5)}
    return {
        "lens": "residual",
        "about": f"the stream {NASTY}",
        "checkpoint": {"name": NASTY, "step": step},
        "prompts": [],
        "arrays": {"similarity": Named(alike, axes).plain()},
        "figures": [],
        "notes": {},
    }


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_draws_its_figures_without_network_or_error(tmp_path: Path, scheme: str):
    path = tmp_path / "page.html"
    write_page(path, render_page([], None, [document(0), document(7)]))
    assert path.stat().st_size < 2_000_000
    with opened(path, scheme) as (page, wrong):
        page.wait_for_selector("figure.chart[data-drawn=yes] svg")
        assert NASTY in (page.text_content("#lens-residual") or "")
        menu = page.locator("figure.chart select")
        assert menu.locator("option").all_text_contents()[1] == f"{NASTY} at 7"
        before = page.locator("figure.chart .mark-rect.role-mark path").all()
        shown = [mark.get_attribute("aria-label") for mark in before]
        menu.focus()
        page.keyboard.press("ArrowUp")
        page.wait_for_timeout(300)
        after = page.locator("figure.chart .mark-rect.role-mark path").all()
        assert shown != [mark.get_attribute("aria-label") for mark in after]
        assert len(before) == len(after) == 25
        assert wrong == []


def test_every_figure_is_written_as_a_file(tmp_path: Path):
    figures = [figure for section in sections([document(0)]) for figure in section.figures]
    (svg,) = write_figures(tmp_path, figures, "svg")
    assert svg.name == "residual-similarity.svg"
    assert svg.read_text().startswith("<svg")
    (png,) = write_figures(tmp_path, figures, "png")
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(RequestError, match="figures as gif: allowed are svg and png"):
        write_figures(tmp_path, figures, "gif")
