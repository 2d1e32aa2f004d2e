"""The page, on made-up rows."""

import re

import pytest

from arch.files import write_text
from eval import RequestError
from eval.lenses.markup import visible
from eval.report.page import render_page
from eval.report.tables import summary_table, terminal_table
from eval.tables import percent, text
from tests.eval.report.cases import (
    Page,
    expected_lines,
    expected_share,
    make_row,
    make_rows,
    renamed,
)

ROWS = make_rows()
HTML = render_page(ROWS)


@pytest.fixture(scope="module")
def page():
    return Page(HTML)


SHARE = r"[<>]?\d+ [<>]?\d+–[<>]?\d+"


def test_page_shows_the_summary_and_every_layer(page):
    tables = [t for t in page.tables if t[0][0] == "model" and "prompts" in t[0]]
    summary, every = ([row for row in table[2:] if row] for table in tables[:2])
    by_layer = [expected_lines(ROWS, layer) for layer in (1, 2, 4)]
    apart = [by_layer[i][line] for line in range(6) for i in range(3)]
    for lines, expected in ((summary, by_layer[-1]), (every, apart)):
        shares = [[c.split()[0] for c in row if re.fullmatch(SHARE, c)] for row in lines]
        assert shares == [[percent(s) for s in line] for line in expected]
    assert [row[-1] for row in summary] == ["8"] * 6


def test_page_is_well_formed_small_and_needs_nothing_else(page):
    assert len(HTML.encode()) < 1_000_000
    assert "http" not in HTML
    assert "url(" not in HTML
    assert "@import" not in HTML
    assert not {"src", "href"} & {name for name, _ in page.attributes}
    assert "prefers-color-scheme: dark" in HTML
    assert page.words.startswith("What is left of a prompt inside a language model")
    evaluated = f"{sum(r['evaluations'] for r in ROWS):,} tokens evaluated"
    for words in ("runs/llama/models/step-000300", "steps 500, rate 0.02", evaluated, "1,234,567"):
        assert words in page.words  # where it comes from, and what it cost


def test_missed_self_tokens_are_told_below_a_title():
    rows = [make_row(method="sweep", hidden=0, prompt=p, share=(1.0, 1.0)) for p in range(3)]
    rows[1]["self"] = rows[1]["self"] | {"top1": 14 / 16}
    html = render_page(rows, title="Mine & yours")
    assert "exact search misses 2 of 48 tokens" in Page(html).words
    assert "<title>Mine &amp; yours</title>" in html


def test_everything_from_rows_is_escaped_and_any_text_is_written(tmp_path):
    evil = "<script>alert('x')</script>\"><b onmouseover=x>"
    row = make_row(method="alternating", prompts=evil, slice=evil, settings={evil: evil})
    row = renamed(row, evil)
    row["checkpoint"] |= {"path": evil, "mixers": [evil], "weights_sha256": evil}
    row["truth_text"] = [evil] * 16
    row["found_text"] = [evil] * 16
    row["text"] = evil
    row["collisions"] = [{"position": 0, "tokens": [evil, evil]}]
    row["site"] = {"layer": 4, "part": evil}
    html = render_page([row, row | {"key": "other", "method": evil}], title=evil)
    page = Page(html)
    assert html.count("<script>") == 1  # our own
    assert "<script>alert" not in html
    assert not any(name.startswith("on") for name, _ in page.attributes)
    path = tmp_path / "deep" / "page.html"
    write_text(path, render_page([make_row(text="\ud800 lone")]))
    assert path.stat().st_size > 1000


def test_rows_of_which_there_is_nothing_to_say_are_one_clear_line():
    for function in (render_page, summary_table, terminal_table):
        with pytest.raises(RequestError, match=r"no rows: .* run `python -m eval invert` first"):
            function([])
    with pytest.raises(RequestError, match="1 rows, but none has a scored token"):
        render_page([make_row(self=None, nonself=None)])


PARTIAL = {
    "one row": [make_row()],
    "untrained only": make_rows(steps=(0,), count=1),
    "trained only": make_rows(steps=(300,), count=1),
    "sweep only": [make_row(method="sweep", hidden=0, prompt=p) for p in range(2)],
    "gradient only, one hidden": [make_row(hidden=1, method="descent")],
    "no margin": [
        make_row(method="alternating", margin=None, margin_floor=None, margin_bits=None)
    ],
    "no floor": [make_row(method="alternating", floor=0.0)],
    "margin under the floor": [make_row(method="alternating", margin=0.0, margin_bits=0.0)],
    "not a number": [make_row(residual=float("nan"))],
    "a method of tomorrow": [make_row(method="adam"), make_row() | {"method": "beam", "key": "b"}],
    "both exact methods": [make_row(method="alternating"), make_row(method="sweep")],
    "another part": [make_row(site={"layer": 2, "part": "mixer"})],
    "last position only": [make_row(slice="[:, -1, :]", hidden=15)],
    "a channel slice": [make_row(slice="[:, :, :8]", hidden=0)],
    "prompt sets": make_rows(models=("flat",), count=2, prompts=("random", "story", "mine")),
    "long prompt": [make_row(length=200)],
    "several seeds": [make_row(seed=seed) for seed in range(3)],
    "all hidden": [make_row(hidden=16, length=16)],
    "four steps": make_rows(steps=(0, 10, 100, 300), layers=(4,), count=1),
}  # fmt: skip


@pytest.mark.parametrize("rows", PARTIAL.values(), ids=PARTIAL)
def test_partial_input_gives_a_whole_page(rows):
    page = Page(render_page(rows))
    assert "Token by token" in page.words
    assert terminal_table(rows)


def test_steps_between_are_a_curve_and_not_the_after(page):
    rows = PARTIAL["four steps"]
    assert {r["step"] for r in summary_table(rows)} == {0, 300}
    html = render_page(rows)
    assert "During training" in Page(html).words
    assert "During training" not in page.words
    share = expected_share(rows, "nonself", 3, model="llama", step=100, layer=4, method="adam")
    assert f"Adam at the model's scale, step 100: {percent(share)} %" in html


def test_strips_line_up_with_the_prompt():
    row = make_row(method="descent", length=5, hidden=2)
    row |= {
        "truth": [1, 2, 3, 4, 5],
        "found": [1, 9, 3, 8, 5],
        "truth_text": ["Once", " upon", "\n", "\x07", ""],
        "found_text": ["Once", " cat", "\n", " dog", ""],
        "verdict": ["recovered", "not found", "ambiguous", "not found", "recovered"],
    }
    html = render_page([row])
    strips = [t for t in Page(html).tables if t[0][0] == "the prompt"][-1]
    assert strips[0] == ["the prompt", "", "Once", "·upon", "⏎", "\\x07", "∅"]
    assert strips[1] == ["descent, after", "3/5", "Once", "·cat", "⏎", "·dog", "∅"]
    line = html[html.rindex("descent, <em>after</em>") :].split("</tr>")[0]
    classes = re.findall(r"<td(?: class=\"([^\"]*)\")?>", line)
    assert classes == ["score", "k", "w k", "a", "w", ""]
    html = render_page([make_row(length=4, slice="[:, :2, :]", hidden=2, share=(1.0, 1.0))])
    line = html[html.rindex('<tr class="truth">') :].split("</tr>")[0]
    assert re.findall(r"<td(?: class=\"([^\"]*)\")?>", line) == ["", "", "", "k", "k"]


def test_long_prompts_are_broken_and_those_that_do_not_fit_are_told():
    row = make_row(length=200, method="adam")
    page = Page(render_page([row]))
    lines = [r for t in page.tables for r in t if r and r[0] in ("the prompt", "… goes on")]
    assert len(lines) > 1
    assert [c for line in lines for c in line[2:]] == [visible(t) for t in row["truth_text"]]
    html = render_page([make_row(length=256, prompt=p, method="adam") for p in range(80)])
    drawn = html.count("4: 3 of 256 positions hidden")
    assert 2 < drawn < 80
    assert f"{80 - drawn} more prompts are not drawn" in html
    assert len(html) < 1_000_000


def test_collisions_are_listed_or_denied(page):
    count = sum(r["method"] in ("sweep", "alternating") for r in ROWS)
    tried = sum(r["certificate"] == "enumerated" for r in ROWS)
    assert 0 < tried < count
    assert f"{tried} of {count} exact searches ran every other choice" in page.words
    row = make_row(method="alternating", prompt=4)
    row["collisions"] = [{"position": 4, "tokens": ["a", " b"]}, {"position": 0, "tokens": ["\n"]}]
    shown = Page(render_page([row]))
    table = next(t for t in shown.tables if "tokens" in t[0])
    assert [r for r in table[1:] if r] == [
        ["llama", "300", "4", "[:, 3:, :]", "story 5", "5", "a ·b "],
        ["llama", "300", "4", "[:, 3:, :]", "story 5", "1, hidden", "⏎ "],
    ]


def test_curves_and_margins_carry_their_numbers():
    share = expected_share(ROWS, "nonself", 1, model="llama", step=0, layer=2, method="adam")
    assert f"Adam at the model's scale, layer 2, before training: {percent(share)} %" in HTML
    own = [r for r in ROWS if r["margin"] and r["site"]["layer"] == 4 and r["hidden"] == 3
           and (r["checkpoint"]["name"], r["checkpoint"]["step"]) == ("flat", 300)]  # fmt: skip
    row = min(own, key=lambda r: r["margin_bits"])
    worst = f"nearest wrong answer {text(row['margin'])}, floor {text(row['margin_floor'])}, "
    assert f"layer 4, after training: {worst}{row['margin_bits']:.1f} bits apart, 8 prompts" in HTML


def test_before_is_dashed_and_hollow_and_after_is_neither():
    hollow, dashed = ' fill="#ffffff"', ' stroke-dasharray="4,3"'
    trained, untrained = (
        render_page(PARTIAL[f"{which} only"]) for which in ("trained", "untrained")
    )
    assert hollow not in trained
    assert dashed not in trained
    assert untrained.count(hollow) == untrained.count("before training: ") > 0
    assert dashed in untrained
