"""The figures of lenses on the page and in files, and texts with highlighted tokens."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from arch import LanguageModel, ModelConfig
from arch.storage.directory import save_model
from eval.__main__ import main
from eval.drawing.figures import write_figures
from eval.drawing.markup import highlighted, visible
from eval.lenses.documents import read_documents
from eval.lenses.lens import lenses
from eval.lenses.table import Table
from eval.rows.store import Results
from eval.views.page.inside import LensSection, lens_sections
from eval.views.page.page import draw_lenses
from tests.browser_cases import opened
from tests.eval.lenses.cases import story_tokenizer
from tests.eval.views.page.cases import Page, checkpoint_of, lens, make_row, make_rows, tick_labels

NASTY = "</script><script>alert('x')</script> \"quoted\""
ABOUT = make_row("flat")["checkpoint"]


def look(key: str, **about: Any) -> dict[str, Any]:
    """A document of the residual lens that says `key` of itself."""
    table, axes = Table(), dict[str, Any].fromkeys(("layer", "other layer"), range(2))
    table.add("similarity", torch.eye(2), **axes)
    known = {"lens": "residual", "key": key, "about": key, "prompts": []}
    return known | {"checkpoint": checkpoint_of(ABOUT, **about), **table.plain()}


def row(key: str, **about: Any) -> dict[str, Any]:
    """One of its rows."""
    return lens(checkpoint_of(ABOUT, **about), 1.0) | {"look": key, "key": f"row of {key}"}


def names(found: LensSection) -> list[str]:
    """The checkpoints of its first figure."""
    return list(found.figures[0].panels)


@pytest.mark.parametrize("order", [("A", "B"), ("B", "A"), ("A",), ("B",)])
def test_the_look_asked_last_is_shown(order):
    """Whatever the names of their files, by which documents are read; one without rows yields."""
    (section,) = lens_sections([look("A"), look("B")], [row(key) for key in order])
    assert section.about == f"{order[-1]}."


def test_looks_whose_documents_are_not_there_are_said(tmp_path, capsys):
    """The page of rows that were copied alone had no section of a lens, and no line."""
    Results(tmp_path).append([row("A")])
    words = ["report", str(tmp_path), "--out", str(tmp_path / "page.html")]
    assert main(words) == 0
    assert "figures of residual" in capsys.readouterr().err
    assert main([*words, "--figures", str(tmp_path / "figures")]) == 2
    assert "--figures" in capsys.readouterr().err
    assert draw_lenses([look("A")], [row("A")])
    assert not capsys.readouterr().err


PIECES = ["<script>", "alert('\"", " &amp;", "\n", " dog"]


def read(scores: dict[str, list[float]]) -> tuple[ElementTree.Element, list[ElementTree.Element]]:
    """The pieces highlighted by scores, as a browser reads them, and its tokens."""
    page = ElementTree.fromstring(f"<main>{highlighted(PIECES, scores)}</main>")
    return page, list(page.iter("span"))


def test_text_stays_text_and_every_token_says_its_number_to_mouse_and_keyboard():
    page, spans = read({"<b>gradient</b>": [0.0, 1.0, -2.0, 0.5, 0.123456]})
    assert {each.tag for each in page.iter()} == {"main", "section", "h4", "p", "span"}
    assert [span.text for span in spans] == ["<script>", "alert('\"", " &amp;", "↵\n", " dog"]
    assert [each.text for each in page.iter("h4")] == ["<b>gradient</b>"]
    assert all(span.get("tabindex") == "0" for span in spans)
    assert [span.get("data-score") for span in spans] == ["+0", "+1", "−2", "+0.5", "+0.123"]
    assert spans[1].get("title") == "+1 " + repr("alert('\"")


def test_a_part_of_a_character_has_its_colour():
    """It had no letter, so that neither colour nor number could be seen."""
    page = ElementTree.fromstring(str(highlighted(["", "日"], {"gradient": [1.0, 0.5]})))
    assert [span.text for span in page.iter("span")] == ["∅", "日"]


def test_letters_that_stand_for_blanks_are_no_blanks():
    """And a blank of two bytes is not the second of them."""
    marks = [visible(piece) for piece in (" ", "\n", "\t", "\r", "")]
    assert marks == ["·", "⏎", "⇥", "␍", "∅"]
    assert [visible(mark) for mark in (*marks, "\xa0")] == [
        "\\u00b7", "\\u23ce", "\\u21e5", "\\u240d", "\\u2205", "\\u00a0",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What all lenses found in a tiny model of two mixers, of a name that would do harm."""
    place = tmp_path_factory.mktemp("all")
    size, mixers = story_tokenizer().get_vocab_size(), ("attention(heads=2)", "flat")
    model = LanguageModel(ModelConfig(size, 64, 32, 2, mixers=mixers, embedding_std=1.0))
    path = save_model(
        place / "model", model, story_tokenizer().to_str(), {"name": NASTY, "step": 0}
    )
    out = place / "results"
    asked = ["--text", *(f'Tom said "<b>hi</b>{n}".' for n in (1, 2)), "--corpus", "toy:400"]
    asked += ["--tokens", "400"]
    assert main(["lens", str(path), "--out", str(out), *asked]) == 0
    Results(out).append(make_rows(("flat",), layers=(4,), hidden=(1,), count=1))
    page = ["--out", str(out / "page.html"), "--figures", str(out / "figures")]
    assert main(["report", str(out), *page]) == 0
    return out


@pytest.fixture(scope="module")
def page_of_all(results):
    return results / "page.html"


def test_every_lens_has_its_figures_and_texts_stay_texts(page_of_all):
    html = page_of_all.read_text()
    page = Page(html)
    sections = html.split('<section class="lens" id="lens-')[1:]
    assert {section.split('"')[0] for section in sections} == {*lenses()}
    for section in sections:
        marks = re.findall(r"<svg.*?</svg>", section, re.DOTALL)
        assert all("<path" in svg and 'role="img" aria-label="' in svg for svg in marks)
        assert marks, section[:20]
    assert "<script>alert" not in html
    assert "alert('x')</script> \"quoted\"" in "".join(page.text)
    assert page.classes["table", "plain"] >= 6
    for summary in ("nearest tokens", "one-hot to vector", "most frequent tokens", "pairs of"):
        assert summary in page.words
    assert "http" not in html
    assert len(html.encode()) < 1_500_000


def test_every_figure_is_a_file_too_and_no_tick_is_written_twice(results, page_of_all, tmp_path):
    drawn = re.findall(r'<figure class="chart[^>]* id="([^"]*)"', page_of_all.read_text())
    files = sorted((results / "figures").iterdir())
    assert len(drawn) == len(files) > 20
    assert {*drawn} == {path.stem for path in files}
    axes = {path.name: tick_labels(path) for path in files}
    twice = {name: [a for a in some if len(set(a)) < len(a)] for name, some in axes.items()}
    assert {name: some for name, some in twice.items() if some} == {}
    assert ["0", "1", "2"] in axes["residual-norm.svg"]
    assert ["1", "2"] in axes["residual-updates.svg"]
    (section,) = lens_sections([d for d in read_documents(results) if d["lens"] == "residual"])
    first, second = write_figures(tmp_path, section.figures[:1] * 2, "png")  # of one name
    assert first != second
    assert first.read_bytes()[:4] == second.read_bytes()[:4] == b"\x89PNG"


COLOURS = """() => {
    const fills = (kind) => [...document.querySelectorAll(`#logit-words svg ${kind}`)]
        .map((one) => getComputedStyle(one).fill);
    return [fills("text"), fills("path")];
}"""
"""Colours of the letters and of the cells of a figure."""
SMALLEST = """() => Math.min(...[...document.querySelectorAll("svg text")].map((one) => {
    const svg = one.closest("svg");
    return parseFloat(getComputedStyle(one).fontSize)
        * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
}))"""
"""Height of the smallest letters of charts, in pixels."""
CARDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(24, 30, 37)"}


def luminance(colour: str) -> float:
    """Of `rgb(r, g, b)`, as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.first(1)
@pytest.mark.parametrize("scheme", CARDS)
def test_it_can_be_read_on_a_telephone_and_in_the_dark(browser, page_of_all, scheme):
    with opened(browser, page_of_all, scheme) as (page, wrong):
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(SMALLEST) > 7.5
        card = page.locator("#logit-words")
        assert card.evaluate("e => getComputedStyle(e).backgroundColor") == CARDS[scheme]
        letters, cells = page.evaluate(COLOURS)
        assert wrong == []
    cells = [cell for cell in cells if cell.startswith("rgb")]
    written = [letter for letter in letters if letter in ("rgb(0, 0, 0)", "rgb(255, 255, 255)")]
    assert len(written) == len(cells) > 10
    for pair in zip(written, cells, strict=True):
        dark, light = sorted(map(luminance, pair))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, pair
