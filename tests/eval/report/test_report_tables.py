"""The tables of the report and its words, on made-up rows."""

import re

import pytest

from eval.report.evidence import headline, place_rows
from eval.report.page import render_page
from eval.report.tables import summary_table, terminal_table
from eval.statistics import wilson
from eval.summary import sum_up
from eval.tables import PIPE, percent
from tests.eval.report.cases import (
    Page,
    checkpoint_of,
    expected_lines,
    expected_share,
    make_row,
    make_rows,
    renamed,
)

ROWS = make_rows()


def test_summary_records_are_counted_from_ranks():
    records = {
        (r["model"], r["task"].nonself, r["task"].hidden, r["step"], r["column"]): r
        for r in summary_table(ROWS)
    }
    assert len(records) == 2 * 3 * 2 * 3
    for (model, nonself, k, step, column), record in records.items():
        method = ("alternating" if k else "sweep") if column == "exact" else column
        kind = "nonself" if nonself else "self"
        place = {"model": model, "step": step, "layer": 4, "method": method}
        assert record["top1"] == pytest.approx(expected_share(ROWS, kind, k, **place))
        assert record["count"] == 8
        assert record["tokens"] == 8 * (k if nonself else 16)
        assert record["low"] <= record["top1"] <= record["high"]
        if record["top1"] == 1:  # of prompts, not of tokens
            assert (record["low"], record["high"]) == pytest.approx(wilson(8, 8)[1:])
        assert record["phase"] == ("after" if step else "before")


@pytest.mark.parametrize(("few", "layers"), [(24, (1, 2, 4)), (17, (4,))])
def test_terminal_table_has_the_same_numbers(monkeypatch, few, layers):
    """At every layer where these are few lines, at the last one where they are not."""
    monkeypatch.setattr("eval.report.tables.FEW", few)
    text = terminal_table(ROWS)
    lines = [line.split() for line in text.splitlines() if re.search(r"\d\s*$", line)]
    expected = zip(*(expected_lines(ROWS, layer) for layer in layers), strict=True)
    assert [line[-7:] for line in lines] == [
        [percent(s) for s in line] + ["8"] for question in expected for line in question
    ]
    assert max(map(len, text.splitlines())) <= PIPE
    assert "hidden tokens" in text
    assert "descent" in text
    assert "[b]flat" in terminal_table([renamed(make_row("flat"), "[b]flat")])


def test_a_question_has_the_search_made_for_it_and_self_tokens_the_most_shown():
    rows = [make_row(method="alternating"), make_row(method="sweep", share=(1.0, 0.0))]
    cells = {r["task"].nonself: r for r in summary_table(rows) if r["column"] == "exact"}
    assert cells[True]["top1"] == 1
    assert {s.method for s in headline(place_rows(rows)) if s.task.nonself} == {"alternating"}
    assert {s.method for s in headline(place_rows(rows)) if not s.task.nonself} == {"sweep"}
    tasks = {r["task"] for r in summary_table(make_rows(count=1, hidden=(1, 3)))}
    assert {(t.nonself, t.hidden) for t in tasks} == {(False, 1), (True, 1), (True, 3)}


UNTRAINED = make_row(step=7)
UNTRAINED["checkpoint"]["trained"] = False
EARLIER = make_row(step=290)
EARLIER["checkpoint"] |= {"path": "other/models/step-000290"}


@pytest.mark.parametrize(
    ("rows", "fields", "expected"),
    [
        ([UNTRAINED], "phase", {("before",)}),
        ([make_row(step=300), EARLIER], "phase", {("after",)}),
        (
            [make_row("flat", layer=2), make_row("flat", layer=8), make_row("llama", layer=4)],
            "model layer",
            {("flat", 8), ("llama", 4)},
        ),
        (
            [make_row(step=0, layer=2), make_row(step=300, layer=2), make_row(step=0, layer=4)],
            "layer phase",
            {(2, "before"), (2, "after")},
        ),
        (
            [make_row(share=(0.0, 0.0)), make_row(share=(1.0, 1.0))],
            "top1 tokens",
            {(1.0, 13), (1.0, 3)},
        ),
    ],
    ids=["untrained", "a seed that stopped earlier", "the deepest layer of each model",
         "a layer with both over a deeper one", "of equal keys the last"],
)  # fmt: skip
def test_the_summary_takes(monkeypatch, rows, fields, expected):
    monkeypatch.setattr("eval.report.tables.FEW", 0)
    found = {tuple(r[name] for name in fields.split()) for r in summary_table(rows)}
    assert found == expected


def test_training_seeds_are_pooled_whatever_their_folder():
    one, two = make_row(), make_row(share=(0.0, 0.0))
    two["key"] = "two"
    two["checkpoint"] |= {"path": "other/models/step-000300", "weights_sha256": "ff"}
    for rows in ([one, two], [one, renamed(two, "llama-s1")]):
        records = summary_table(rows)
        assert {(r["count"], r["models"]) for r in records} == {(1, 2)}
        assert {r["tokens"] for r in records} == {26, 6}
    assert {r["model"] for r in summary_table([renamed(one, "a-s0"), renamed(two, "a-s1")])} == {
        "a"
    }
    assert "step 300, 2 seeds" in Page(render_page([one, two])).words
    wide = two | {"checkpoint": checkpoint_of(two["checkpoint"], d_model=512)}
    apart = {r["model"] for r in summary_table([one, wide])}
    assert len(apart) == 2
    assert all(label.startswith("llama (") for label in apart)


def test_margin_of_a_search_that_did_not_arrive_is_left_out():
    def row(margin, bits, prompt=0, **changes):
        figures = {"margin": margin, "margin_floor": margin / 2**bits, "margin_bits": bits}
        return make_row(method="alternating", prompt=prompt, **figures, **changes)

    arrived = row(8.0, 3.0)
    lost = row(0.5, 1.0, 1, verdict=["not found"] * 16)
    collided = row(20.0, 2.0, 2, verdict=["ambiguous"] * 16)
    assert {(r["margin"], r["margin_bits"]) for r in summary_table([arrived, lost])} == {(8.0, 3.0)}
    (table,) = {(r["margin"], r["margin_bits"]) for r in summary_table([arrived, collided])}
    assert table == (20.0, 2.0)  # the fewest bits, not the smallest distance
    (record,) = sum_up([arrived, collided])
    assert record["margin_bits"] == 2.0  # the summary and the page agree
