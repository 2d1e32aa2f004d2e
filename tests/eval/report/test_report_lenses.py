"""The page's part about the inside of models, in a real browser."""

import re

import pytest
import torch

from arch import LanguageModel, ModelConfig, save_model
from arch.files import write_text
from eval.__main__ import main
from eval.drawing import write_figures
from eval.lenses.lens import lenses, read_documents
from eval.report.inside import lens_sections
from eval.report.page import render_page
from eval.rows import read_rows
from tests.browser_cases import opened
from tests.eval.lenses.cases import story_tokenizer
from tests.eval.report.cases import tick_labels

NASTY = "</script><script>alert('x')</script> \"quoted\""


MARKS = "all => all.map(mark => mark.ariaLabel)"
"""What the marks of a figure say."""
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Waits until what was asked of the page is on the screen."""
CHANGED = """([name, before]) => {
    const marks = document.getElementById(name).querySelectorAll("[role=graphics-symbol]");
    const now = [...marks].map(mark => mark.ariaLabel);
    return now.length && JSON.stringify(now) != JSON.stringify(before);
}"""
"""Whether a figure has other marks than before."""
OFFERED = """of => {
    const menu = document.querySelector("#circuits-maps [name=chosen_map]");
    const offered = [...menu.options].filter(option => !option.disabled);
    return offered.length && offered.every(option => option.text.includes(of));
}"""
"""Whether the menu of maps offers those of one kind of mixer alone."""


BEHIND = "all => all.map(one => getComputedStyle(one).backgroundColor)"
CARDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(24, 30, 37)"}


COLOURS = """([words, cells]) => {
    const fills = all => [...all].map(one => getComputedStyle(one).fill);
    const figure = document.getElementById("logit-words");
    return [words, cells].map(kind => fills(figure.querySelectorAll(kind)));
}"""
"""Colours of the letters and of the cells below them."""


def luminance(colour: str) -> float:
    """Of `rgb(r, g, b)`, as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", CARDS)
def test_letters_on_cells_can_be_read(browser, results, tmp_path, scheme):
    path = tmp_path / "page.html"
    assert main(["report", str(results), "--out", str(path)]) == 0
    with opened(browser, path, scheme) as (page, _):
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        page.locator("#logit-words").scroll_into_view_if_needed()
        page.wait_for_selector("#logit-words svg")
        cards = page.locator("#logit-words svg.marks, #logit-words").evaluate_all(BEHIND)
        assert set(cards) == {CARDS[scheme]}
        kinds = [".mark-text.role-mark text", ".mark-rect.role-mark path"]
        letters, cells = page.evaluate(COLOURS, kinds)
    assert len(letters) == len(cells) > 10
    for pair in zip(letters, cells, strict=True):
        dark, light = sorted(map(luminance, pair))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, pair


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What all lenses found in two tiny models, one of a name that would do harm."""
    place = tmp_path_factory.mktemp("all")
    kinds = {"a": ("attention(heads=2)",), NASTY: ("flat",)}
    paths = []
    for number, (name, mixers) in enumerate(kinds.items()):
        torch.manual_seed(number)
        size = story_tokenizer().get_vocab_size()
        config = ModelConfig(size, 64, 32, 2, mixers=mixers, embedding_std=1.0)
        path, meta = place / f"model{number}", {"name": name, "step": number}
        paths.append(save_model(path, LanguageModel(config), story_tokenizer().to_str(), meta))
    out = place / "results"
    asked = ["--text", 'Tom said "<b>hi</b>". The dog was sad.', "The cat and the dog ran.",
             "--corpus", "toy:900", "--tokens", "2000"]  # fmt: skip
    assert main(["lens", *map(str, paths), "--out", str(out), *asked]) == 0
    return out


def test_no_tick_is_written_twice(results, tmp_path):
    lenses = lens_sections(list(read_documents(results)), read_rows([results]))
    figures = [figure for section in lenses for figure in section.figures]
    drawn = {path.name: tick_labels(path) for path in write_figures(tmp_path, figures, "svg")}
    repeated = {name: [axis for axis in axes if len(set(axis)) < len(axis)]
                for name, axes in drawn.items()}  # fmt: skip
    assert {name: axes for name, axes in repeated.items() if axes} == {}
    assert ["0", "1", "2"] in drawn["residual-norm.svg"]
    assert ["1", "2"] in drawn["residual-updates.svg"]


@pytest.fixture(scope="module")
def page_of_all(results):
    path = results / "page.html"
    write_text(path, render_page(read_rows([results]), None, list(read_documents(results))))
    return path


@pytest.fixture(scope="module")
def browsed(browser, page_of_all):
    with opened(browser, page_of_all) as (page, wrong):
        for figure in page.locator("figure.chart").all():
            figure.scroll_into_view_if_needed()
        undrawn = "() => !document.querySelector('figure.chart:not([data-drawn=yes])')"
        page.wait_for_function(undrawn)
        yield page, wrong


def test_every_lens_has_figures_that_are_drawn_with_numbers_and_words(browsed):
    page, wrong = browsed
    sections = page.locator("section.lens").evaluate_all("all => all.map(s => s.id)")
    assert {s.removeprefix("lens-") for s in sections} == {*lenses()}
    for section in page.locator("section.lens").all():
        assert section.locator("figure.chart").count()
    for figure in page.locator("figure.chart").all():
        marks = figure.locator("[aria-roledescription][aria-label]")
        assert marks.count() > 0, figure.get_attribute("id")
        assert len(figure.get_attribute("aria-label") or "") > 30
        assert figure.locator("[role=graphics-document][aria-label]").count()
    assert wrong == []


def test_menus_and_sliders_take_the_keyboard_and_never_leave_a_picture_empty(browsed):
    page, wrong = browsed
    for figure in page.locator("figure.chart").all():
        name, drawn = figure.get_attribute("id"), figure.locator("[role=graphics-symbol]")
        for control in figure.locator("select, input[type=range]").all():
            slides = control.evaluate("c => c.type == 'range'")
            many = slides or control.locator("option:not([disabled])").count() > 1
            before = drawn.evaluate_all(MARKS)
            control.focus()
            for key in ("ArrowLeft",) if slides else ("Home", "End"):
                page.keyboard.press(key)
                if key != "End" and many:
                    page.wait_for_function(CHANGED, arg=[name, before])
                page.evaluate(PAINTED)
                assert drawn.evaluate_all(MARKS), f"{name}: nothing is shown after {key}"
    maps = page.locator("#circuits-maps")
    model, which = (maps.locator(f"[name=chosen_{field}]") for field in ("model", "map"))
    for chosen, of in (("a at 0", "attention"), (f"{NASTY} at 1", "flat")):
        model.select_option(label=chosen)
        page.wait_for_function(OFFERED, arg=of)
        page.evaluate(PAINTED)
        offered = which.locator("option:not([disabled])").all_text_contents()
        assert offered
        assert all(of in label for label in offered)
        assert which.locator("option:checked").text_content() in offered
        assert maps.locator(".mark-rect path").count()
    assert wrong == []


def test_texts_stay_texts_and_numbers_can_be_read(browsed):
    page, _ = browsed
    text = page.text_content("main")
    assert "alert('x')</script> \"quoted\"" in text
    assert "hi" not in page.locator("main b").all_text_contents()
    tables = page.locator("section.lens details table")
    assert tables.count() >= 6
    for summary in (
        "nearest tokens",
        "one-hot to vector",
        "most frequent tokens",
        "pairs of prompts",
    ):
        assert page.locator("summary", has_text=summary).count()
    token = page.locator(".attribution span").first
    assert re.fullmatch(r"[+−]\S+", token.get_attribute("data-score"))
    assert token.get_attribute("tabindex") == "0"


def test_the_page_is_small_and_its_figures_scroll_on_a_narrow_screen(browsed, page_of_all):
    page, _ = browsed
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page_of_all.stat().st_size < 5_000_000


def test_every_lens_figure_is_a_file_too(results, tmp_path, capsys):
    for kind, begins in (("svg", b"<svg"), ("png", b"\x89PNG")):
        place = tmp_path / kind
        asked = ["--out", str(tmp_path / "page.html"), "--figures", str(place), "--format", kind]
        assert main(["report", str(results), *asked]) == 0
        documents, rows = list(read_documents(results)), read_rows([results])
        drawn = [f.name for section in lens_sections(documents, rows) for f in section.figures]
        files = sorted(path.stem for path in place.iterdir())
        assert files == sorted(drawn)
        assert len(files) > 25
        assert all(path.read_bytes().startswith(begins) for path in place.iterdir())
