"""The explorer in a real browser: type, hide, solve, stop, reload, two users, text as text."""

import re
import time

import pytest
from playwright.sync_api import expect

from arch import save_model
from tests.arch.cases import byte_tokenizer
from tests.eval.explore.explore_cases import running

TEXT = "Once upon a time there was a dog."
EVIL = "<img src=x onerror=boom()>"
DONE = re.compile("^done")
WAIT = 60_000  # milliseconds


pytestmark = pytest.mark.slow


@pytest.fixture
def opened(browser, port):
    """Opens a page of a user of its own; what went wrong on any of them fails the test."""
    address, contexts, wrong = f"http://127.0.0.1:{port}/", [], []

    def make(url=address, **settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(url)
        expect(page.locator("#tokens button").first).to_be_visible(timeout=WAIT)
        return page

    yield make
    for context in contexts:
        context.close()
    assert not [text for text in wrong if "status of 400" not in text]  # a sentence too long


def typed(page, text):
    page.fill("#text", text)
    expect(page.locator("#tokens")).to_have_text(text.replace(" ", "·"), timeout=WAIT)
    return page.locator("#tokens button")


def pieces_of(page, side=0):
    return page.locator(f"#side-{side} .found .t").all_inner_texts()


def test_hide_any_tokens_solve_and_reload_the_link(opened):
    page = opened()
    tokens = typed(page, TEXT)
    for place in (0, 2, 5, 2, 4):  # a second press shows it again
        tokens.nth(place).click()
    tokens.nth(1).focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    hidden = page.locator('#tokens [aria-pressed="true"]')
    expect(hidden).to_have_count(2)
    expect(page.locator("#shown")).to_contain_text("[:, :4+6:, :]", timeout=WAIT)
    expect(page.locator("#chosen")).to_have_text("alternating")
    page.focus("#invert")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text(DONE, timeout=WAIT)
    truth = tokens.all_inner_texts()
    assert pieces_of(page, 0) == pieces_of(page, 1) == truth
    expect(page.locator("#side-0 .figures")).to_contain_text("matches")
    expect(page.locator("#side-0 .found .hid")).to_have_text(hidden.all_inner_texts())
    for way, slices in (("command", "--slices '[:, :4+6:, :]'"), ("python", "slices='[:, :4+6:")):
        page.click(f"#copy-{way}")
        expect(page.locator("#copied")).to_contain_text(slices)
    again = opened(page.url)
    expect(again.locator("#tokens button").first).to_be_visible(timeout=WAIT)
    again.wait_for_timeout(150)
    assert not again.locator("#results > *").count()  # a link begins no work
    again.press("#text", "Enter")
    expect(again.locator("#status")).to_have_text(DONE, timeout=WAIT)
    assert pieces_of(again) == truth
    expect(again.locator('#tokens [aria-pressed="true"]')).to_have_text(hidden.all_inner_texts())
    assert again.input_value("#text") == TEXT
    page.evaluate("() => { window.boom = () => { throw new Error('run') } }")
    page.evaluate("() => { history.replaceState = boom }")  # as Safari, for the rest of 30 seconds
    expect(typed(page, EVIL).first).to_contain_text("<")
    assert page.locator("main img").count() == 0


def test_hidden_tokens_are_those_of_the_sentence_as_the_model_cuts_it(
    opened, explored, tmp_path, small_model
):
    """Of a model that cuts it into fewer no token could be pressed any more."""
    letters = byte_tokenizer()
    model = small_model(vocab_size=letters.get_vocab_size(), context=64)
    save_model(tmp_path / "letters", model, letters.to_str(), {"name": "letters", "step": 0})
    with running([str(tmp_path), str(explored)]) as port:
        page = opened(f"http://127.0.0.1:{port}/")
        said = page.locator("#shown")
        page.select_option("#second", "")
        page.select_option("#first", "letters, step 0")
        typed(page, TEXT).nth(len(TEXT) - 1).click()
        expect(said).to_contain_text(f"1 of {len(TEXT)} tokens", timeout=WAIT)
        page.select_option("#first", "flat, step 10")
        expect(said).to_contain_text("All ", timeout=WAIT)
        page.locator("#tokens button").first.click()
        expect(said).to_contain_text("1 of ", timeout=WAIT)
        with page.expect_response(lambda r: '"hidden":[0]' in (r.request.post_data or "")):
            page.select_option("#first", "flat, step 0")  # which cuts it alike
        expect(said).to_contain_text("1 of ")
        expect(page.locator("#invert")).to_be_enabled()


def test_a_long_solve_is_stopped_and_another_user_is_served(opened):
    first, second = opened(), opened()
    long = typed(first, f"{TEXT} {TEXT}"[:45])
    for place in range(11):
        long.nth(place).click()
    expect(first.locator("#shown")).to_contain_text("11 of", timeout=WAIT)
    first.click("#invert")
    expect(first.locator("#status")).to_have_text(re.compile("^at work"), timeout=WAIT)
    typed(second, TEXT)
    second.click("#invert")
    expect(second.locator("#status")).to_have_text("waiting; 1 before you", timeout=WAIT)
    first.click("#stop")
    expect(first.locator("#status")).to_have_text(re.compile("^stopped after"), timeout=WAIT)
    expect(first.locator("#stop")).to_be_disabled()
    expect(second.locator("#status")).to_have_text(DONE, timeout=WAIT)
    assert pieces_of(second) == second.locator("#tokens button").all_inner_texts()


def test_bits_and_a_lens_on_a_telephone_in_the_dark(opened):
    page = opened(viewport={"width": 390, "height": 800}, color_scheme="dark")
    hidden_height = "e => Math.max(0, e.scrollHeight - e.clientHeight)"
    typed(page, TEXT)
    page.click("#bits")
    expect(page.locator("#status")).to_have_text(DONE, timeout=WAIT)
    truth = page.locator("#tokens button").all_inner_texts()
    expect(page.locator("#side-1 .token")).to_have_count(len(truth))
    typed(page, "a")  # the figures stay those of the sentence that was asked
    page.select_option("#precision", "int2")
    assert pieces_of(page, 1) == truth
    page.select_option("#lens", "circuits")  # which needs two tokens
    page.click("#look")
    expect(page.locator("#status")).to_have_class(re.compile("wrong"), timeout=WAIT)
    assert page.locator("iframe").count() == 0
    page.select_option("#lens", "logit")
    typed(page, TEXT)
    page.click("#look")
    expect(page.locator("#status")).to_have_text(DONE, timeout=WAIT)
    frame = page.frame_locator("iframe")
    expect(frame.locator("figure.chart").first).to_be_visible(timeout=WAIT)
    count = frame.locator("figure.chart").count()
    expect(frame.locator("figure.chart:has(svg)")).to_have_count(count, timeout=WAIT)  # all drawn
    expect(frame.locator("figure.chart svg").first).to_be_visible(timeout=WAIT)
    expect(frame.locator("h1")).to_be_hidden()
    end = time.monotonic() + 60
    while frame.locator("html").evaluate(hidden_height):  # until it has no scrollbar of its own
        assert time.monotonic() < end
        page.wait_for_timeout(20)
    page.focus("#copy-command")
    page.keyboard.press("Enter")
    expect(page.locator("#copied")).to_contain_text("python -m eval lens")
    page.select_option("#lens", "residual")
    expect(page.locator("#copied")).to_be_hidden()  # it was of another question
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_a_question_that_is_refused_leaves_no_answer_of_another(opened):
    page = opened()
    typed(page, TEXT)
    page.click("#invert")
    expect(page.locator("#status")).to_have_text(DONE, timeout=WAIT)
    typed(page, "Tom ran")
    page.route("**/ask", lambda route: route.fulfill(status=400, json={"error": "busy"}))
    page.click("#invert")
    expect(page.locator("#status")).to_have_text("busy", timeout=WAIT)
    assert not page.locator("#results > *").count()
