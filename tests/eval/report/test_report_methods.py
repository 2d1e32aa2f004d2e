"""The page where many methods, training seeds and variations meet, and where rows are many."""

import re

import pytest

from eval.report.evidence import column_order, headline, place_rows, plain_questions
from eval.report.page import render_page
from eval.report.strips import sample
from eval.report.tables import summary_table, terminal_table
from eval.statistics import clustered
from eval.tables import percent
from tests.eval.report.cases import Page, make_row, make_rows

GRADIENT = ("descent", "adam", "gcg", "pez")


def odd_row(method, family="gradient", **place):
    """A row of a method that the words of the report do not know."""
    row = make_row(method="adam" if family != "search" else "alternating", **place)
    return row | {
        "method": method,
        "family": family,
        "key": f"{row['key']} {method} {family}",
        "settings": {},
    }


def many(count=4, **place):
    """Four gradient methods, PEZ the best of them, and two searches."""
    shares = {"descent": (0.5, 0.0), "adam": (0.6, 0.0), "gcg": (0.7, 0.1), "pez": (0.8, 0.4)}
    rows = []
    for p in range(count):
        rows += [odd_row(m, share=shares[m], prompt=p, **place) for m in GRADIENT]
        rows.append(make_row(method="alternating", prompt=p, **place))
        rows.append(odd_row("beam", "search", share=(1.0, 0.5), prompt=p, **place))
    return rows


def columns(rows):
    return {r["column"] for r in summary_table(rows)}


def test_few_methods_have_a_column_each_and_of_many_the_best_other_has_one():
    few = [make_row(method="adam"), make_row(), odd_row("gcg"), make_row(method="alternating")]
    assert columns(few) == {"descent", "adam", "gcg", "exact"}
    rows = many()
    records = {(r["column"], r["task"].nonself): r for r in summary_table(rows)}
    assert columns(rows) == {"descent", "best", "exact"}
    hits = [sum(rank == 0 for rank in r["rank"][:3]) for r in rows if r["method"] == "pez"]
    assert records["best", True]["method"] == "pez"
    assert records["best", True]["top1"] == pytest.approx(sum(hits) / 12)
    assert records["exact", True]["method"] == "alternating"
    assert "best" in terminal_table(rows)
    (alone,) = headline(place_rows([odd_row("beam", "search", hidden=0, share=(1.0, 1.0))]))
    assert (alone.column, alone.method) == ("exact", "beam")
    rows += [odd_row("gcg", share=(1.0, 1.0), prompt=p, step=0) for p in range(4)]
    rows += [odd_row("pez", share=(0.0, 0.0), prompt=p, step=0) for p in range(4)]
    best = {r["phase"]: r["method"] for r in summary_table(rows) if r["column"] == "best"}
    assert best == {"after": "pez", "before": "gcg"}  # it is chosen in each cell


def test_chance_keeps_its_column_and_has_no_strips():
    chance = odd_row("chance", "control", share=(0.0, 0.0))
    rows = [*many(), chance, odd_row("expected", "prior")]
    assert columns(rows) == {"descent", "best", "exact", "chance"}
    page = Page(render_page(rows))
    assert [row[0] for row in page.table("method")[2:] if row][-1] == "chancecontrol"
    assert not any("chance" in row[0] for t in page.tables if t[0][0] == "the prompt" for row in t)
    assert render_page([chance])


def test_methods_are_read_gradient_first_and_search_last():
    names = {"sweep", "zeta", "adam", "alternating", "descent", "exact", "best", "gcg"}
    assert column_order(names) == [
        "descent", "adam", "best", "gcg", "zeta", "exact", "sweep", "alternating",
    ]  # fmt: skip


def test_every_method_has_its_line():
    page = Page(render_page(many()))
    table = page.table("method")
    lines = {row[0]: row for row in table[2:] if row}
    assert list(lines) == [
        "gradient descent (the published protocol)gradient",
        "Adam at the model's scalegradient",
        "GCGgradient",
        "PEZgradient",
        "beamsearch",
        "exact search, alternatingsearch",
    ]
    records = {r["column"]: r for r in summary_table(many()) if r["task"].nonself}
    assert lines["PEZgradient"][-1].split()[0] == percent(records["best"]["top1"])
    assert "Method by method" not in Page(render_page([make_row()])).words


def outcome_lines(html):
    """The lines of the table of verdicts: percentages by verdict in words, of each phase."""
    table = next(t for t in Page(html).tables if t[0][0] == "model" and "prompts" not in t[0])
    return [[dict(re.findall(r"([a-z][a-z ]*[a-z]) ([<>]?\d+) \(", cell)) for cell in row
             if "(" in cell] for row in table[1:] if row]  # fmt: skip


def test_verdicts_of_all_methods_are_counted_and_end_the_strips():
    descent = make_row(method="descent", share=(1.0, 0.0))
    # the first of three hidden tokens, and all shown ones but the last
    descent["found"] = [descent["truth"][0], *descent["found"][1:15], 999]
    search = make_row(method="alternating", share=(1.0, 1.0))
    search["found"] = [*search["truth"][:15], 998]
    search["verdict"] = ["recovered"] * 2 + ["ambiguous"] + ["recovered"] * 12 + ["not found"]
    html = render_page([descent, search])
    page = Page(html)
    assert outcome_lines(html)[-1] == [
        {"by gradient": "33", "only by search": "33", "ambiguous": "33"}
    ]
    assert "Lost, or only hard to find?" in page.words
    strips = [t for t in page.tables if t[0][0] == "the prompt"]
    letters = ["g", "s", "≈", *"g" * 12, "–"]
    assert strips[-1][-1] == ["all methods, after", "14/16", *letters]


def test_outcomes_carry_clustered_intervals():
    rows = make_rows(models=("flat",), steps=(300,), layers=(4,), hidden=(3,), count=6)
    hits = []
    for p in range(6):
        own = [r for r in rows if r["prompt"] == p and r["method"] in ("descent", "adam")]
        hits.append(sum(any(r["rank"][t] == 0 for r in own) for t in range(3)))
    expected = clustered(hits, [3] * 6, range(6), [0] * 6)
    shown = "by gradient <b>{}</b> ({}–{})".format(*map(percent, expected))
    assert shown in render_page(rows)


def test_verdicts_need_a_gradient_method_and_a_search():
    for method in ("adam", "alternating"):
        html = render_page([make_row(method=method)])
        assert "Lost, or only hard to find?" not in html
        assert ">all methods" not in html


def test_what_departs_from_the_plain_question_is_apart():
    plain_rows = make_rows(models=("flat",), steps=(300,), layers=(4,), hidden=(3,), count=3)
    odd = [
        r | {"key": f"{r['key']} {i}"} | change
        for i, change in enumerate(
            [{"noise": 0.5}, {"noise": 0.25}, {"control": "shuffled"}, {"padded": True}]
        )
        for r in make_rows(models=("flat",), steps=(300,), layers=(4,), hidden=(3,), count=3)
    ]
    assert summary_table([*odd, *plain_rows]) == summary_table(plain_rows)
    page = Page(render_page([*plain_rows, *odd]))
    table = page.table("departs in")
    assert [row[0] for row in table[1:] if row and row[0]] == [
        "control: shuffled", "padded", "noise 0.25", "noise 0.5",
    ]  # fmt: skip
    assert "Controls and variations" not in Page(render_page(plain_rows)).words
    alone = [row for row in odd if row.get("noise") == 0.5]
    assert "Token by token" in Page(render_page(alone)).words
    assert {s.variation for s in plain_questions(place_rows(odd))} == {(("noise", 0.5),)}


def test_several_layers_at_once_are_a_part_of_their_own():
    row = make_row(method="alternating", site={"layer": [1, 3], "part": "block"})
    assert {(r["layer"], r["part"]) for r in summary_table([row])} == {(3, "block 1+3")}
    assert "3 block 1+3" in Page(render_page([row])).words


def placed(rows):
    return [s for s in place_rows(rows) if s.task.nonself]


def test_many_models_take_turns_in_the_strips():
    rows = make_rows(hidden=(1, 3), layers=(2, 4), count=6)
    few = sample(placed(rows), {}, cells=1200)
    assert few.turns
    assert [p.sheets[0].model for p in few.prompts[:3]] == ["flat", "llama", "flat"]
    assert all(len({s.model for s in p.sheets}) == 1 and not p.others for p in few.prompts)
    all_of_them = sample(placed(rows), {}, cells=100_000)
    assert not all_of_them.turns
    assert (len(all_of_them.prompts), all_of_them.left_out) == (6, 0)
    assert all(p.others for p in all_of_them.prompts)


def test_many_rows_give_a_page_of_reasonable_size():
    rows = []
    for seed in range(2):
        for row in [r for k in (0, 1, 3) for layer in (1, 2, 3, 4) for step in (0, 100, 300)
                    for r in many(3, layer=layer, hidden=k, step=step)]:  # fmt: skip
            own = row["checkpoint"] | {"name": f"llama-s{seed}", "weights_sha256": f"{seed}"}
            rows.append(row | {"checkpoint": own, "key": f"{row['key']} {seed}"})
    html = render_page(rows)
    page = Page(html)
    assert len(html.encode()) < 1_500_000
    assert "step 0 → 300, 2 seeds" in page.words
    assert "During training" in page.words
    assert "3 prompts x 2 training seeds" in html


def test_the_table_of_every_number_ends_somewhere(monkeypatch):
    monkeypatch.setattr("eval.report.page.LINES", 10)
    html = render_page(make_rows(count=1))
    assert "the first 10 of" in Page(html).words
    assert "python -m eval summary --csv FILE" in Page(html).words


def test_noise_and_channels_are_curves_and_count_in_nothing_else():
    rows = make_rows(models=("flat",), layers=(4,), hidden=(0,), count=2)
    plain_rows = list(rows)
    for row in plain_rows:
        for noise in (0.01, 0.1, 1.0):
            rows.append(row | {"key": f"{row['key']} {noise}", "noise": noise})
        for channels in (8, 64):
            shown = f"[:, 0:, :{channels}]"
            rows.append(row | {"key": f"{row['key']} {shown}", "slice": shown})
    assert summary_table(rows) == summary_table(plain_rows)
    html = render_page(rows)
    words = Page(html).words
    assert "How much noise it stands" in words
    assert "How much of a vector is needed" in words
    for place in ("noise 0.01, after training: 100 %", "channels shown 64, before training: 100 %"):
        assert f"exact search, {place}" in html
    assert ">128</text>" in html  # all channels, at the right
    assert "channels :8" in words
    few = [row for row in rows if row.get("noise", 0) in (0, 1.0)]
    assert "How much noise it stands" not in Page(render_page(few)).words
