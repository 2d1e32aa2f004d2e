"""Rows of every kind in one directory: each has its section of the page, with its numbers."""

import re

import pytest

from eval.__main__ import main
from eval.report.page import render_page
from eval.rows import Results
from tests.eval.report.cases import Page, about, every_kind, make_row, row

SITE = {"site": {"layer": 4, "part": "block"}}


def more(checkpoint):
    """What makes an axis of each kind: offsets and layers of probes, layers of the geometry."""
    for layer in (1, 2, 4):
        place = {"site": {"layer": layer, "part": "block"}}
        for offset in (-1, 0):
            share = (layer + offset + 1) / 10
            yield row("probe", checkpoint, method="softmax", offset=offset, top1=share,
                      information=0.5, **place)  # fmt: skip
        yield row("geometry", checkpoint, hidden=1, sigma_max=9.0, sigma_min=layer / 2,
                  condition=None, effective_rank=3.0, **place)  # fmt: skip


@pytest.fixture(scope="module")
def rows():
    measured = [r for step in (0, 100) for r in (*every_kind(about(step)), *more(about(step)))]
    return [*(r for r in measured if r["kind"] != "lens"), make_row("flat", 100)]


def test_every_kind_has_a_section_with_its_numbers(rows, tmp_path):
    Results(tmp_path / "results").append(rows)
    path = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "results"), "--out", str(path)]) == 0
    html = path.read_text()
    parts = dict(re.findall(r'<section id="kind-(\w+)">(.*?)</section>', html, re.DOTALL))
    assert list(parts) == ["loss", "probe", "geometry"]
    drawn = {kind: part.count("<svg") for kind, part in parts.items()}
    assert drawn == {"loss": 2, "probe": 2, "geometry": 2}
    lines = {kind: Page(part).tables[0] for kind, part in parts.items()}
    assert lines["loss"][0] == ["step", "bits/byte", "nats/token", "tokens/s"]
    assert lines["loss"][1][2] == "3.5"
    assert "offset 0, layer 2, step 100: 30 %, n = 1" in parts["probe"]
    assert "Token by token" in Page(html).words


def test_rows_without_recoveries_are_a_page_too(rows):
    page = Page(render_page([r for r in rows if r["kind"] == "probe"]))
    assert "What probes read" in page.words
    assert "Token by token" not in page.words


def test_bits_are_drawn_over_distance():
    """One passage at two steps, a prior and a precision that charts leave out among the others."""
    kinds = {"alone": [8.0, 2.0], "cumulative": [8.0, 2.5]}
    precisions = {"noise 0.25 rms": kinds, "bf16": kinds}
    measured = [
        row("bits", about(step), corpus="toy", place=4, candidates=400, prompts="inside",
            prompt=0, truth=[7], distances=[0, 4],
            rms=[1.0, 1.0], effect=[0.9, 0.1], effect_sampled=[0.9, 0.1], margin_bits=kinds,
            bits={"uniform": precisions, "unigram": precisions},
            **SITE)
        for step in (0, 100)
    ]  # fmt: skip
    html = render_page(measured)
    (part,) = re.findall(r'<section id="kind-bits">(.*?)</section>', html, re.DOTALL)
    assert part.count("<svg") == 3  # alone, cumulative, and the effect
    assert "distance 4, step 100: 2.5, n = 1" in part
    assert "unigram" not in part
    assert {"2.5 (2.5–2.5)", "bf16"} <= {cell for line in Page(part).tables[0] for cell in line}
