"""The summary of rows: what is pooled and counted, verdicts across methods, how it is written."""

import math
from pathlib import Path
from statistics import median

import pytest

from eval import RequestError
from eval.__main__ import main
from eval.analysis.accepts import hidden_positions, is_false_accept
from eval.analysis.frame import coordinates, frame
from eval.analysis.statistics import at_most, clustered, wilson
from eval.analysis.summary import summarise, summarise_rows, summary_records
from eval.analysis.verdicts import QUANTITIES, accepts, verdict_lines
from eval.commands.views import summary
from eval.drawing.tables import (
    duration_text,
    interval_text,
    number_text,
    percent_text,
    whole_percent,
)
from eval.rows.store import Results, read_rows
from eval.views.page.numbers import number_tables
from eval.views.page.page import render_page
from tests.eval.views.page.cases import (
    about,
    bits_row,
    every_kind,
    lens,
    loss_row,
    make_row,
    make_rows,
)

ROWS = make_rows(count=6)
RESULTS = Path(__file__).parents[3] / "docs" / "results"


def seeds(count, **place):
    """Rows of three training seeds of one model, each with its own weights."""
    rows = []
    for seed in range(3):
        for prompt in range(count):
            row = make_row(prompt=prompt, **place)
            row["checkpoint"] |= {"name": f"llama-s{seed}", "weights_sha256": f"seed {seed}"}
            rows.append(row | {"key": f"{row['key']} {seed}"})
    return rows


def only(records, **place):
    found = [r for r in records if place.items() <= r.items()]
    assert len(found) == 1, (place, len(found))
    return found[0]


def test_accuracy_is_counted_from_ranks_and_clustered_on_prompts():
    question = {"model": "llama", "step": 300, "layer": 4, "hidden": 3, "solver": "adam"}
    record = only(summarise_rows(ROWS), **question)
    rows = make_rows(("llama",), (300,), (4,), (3,), count=6)
    ranks = [row["rank"] for row in rows if row["solver"] == "adam"]
    hits = [sum(rank == 0 for rank in own[3:]) for own in ranks]
    expected = clustered(hits, [13] * 6, range(6), [0] * 6)
    assert (record["self"], record["self_low"], record["self_high"]) == pytest.approx(expected)
    assert record["self_tokens"] == 6 * 13
    shown, hidden = (
        [rank for own in ranks for rank in own[part]] for part in (slice(3, None), slice(3))
    )
    assert record["nonself"] == pytest.approx(sum(rank == 0 for rank in hidden) / 18)
    assert record["self_top5"] == pytest.approx(sum(rank < 5 for rank in shown) / 78)
    assert record["nonself_rank"] == median(median(own[:3]) for own in ranks)
    assert record["exact"] == sum(not any(own) for own in ranks) / 6
    assert record["evaluations"] == 3 * 500 * 16


def test_prompts_that_are_all_alike_have_no_interval():
    rows = make_rows(("llama",), (300,), (4,), (3,), count=2)
    tally = {"count": 13, "top1": 6 / 13, "top5": 1.0, "median_rank": 1.0}
    (record,) = summarise_rows([row | {"self": tally} for row in rows if row["solver"] == "adam"])
    assert 0 < record["self"] < 1
    assert (record["self_low"], record["self_high"]) == (None, None)


def test_seeds_are_pooled_and_those_of_solvers_are_no_trials():
    (record,) = summarise_rows(seeds(4, solver="adam"))
    assert (record["model"], record["rows"], record["prompts"], record["models"]) == (
        "llama", 12, 4, 3,
    )  # fmt: skip
    both = summarise_rows([*seeds(4, solver="adam"), *seeds(4, solver="adam", step=0)])
    assert [(r["step"], r["trained"], r["models"]) for r in both] == [(0, False, 3), (300, True, 3)]
    rows = [make_row(solver="alternating", prompt=p, seed=s) for p in range(5) for s in range(4)]
    (record,) = summarise_rows(rows)
    assert (record["rows"], record["prompts"], record["models"]) == (20, 5, 1)
    assert record["exact_low"] == wilson(5, 5).low


def test_figures_of_the_protocols():
    cases = [(True, True), (True, False), (True, False), (False, True), (False, False)]
    rows = [make_row(prompt=p, criterion=c, exact=e) for p, (c, e) in enumerate(cases)]
    record = only(summarise_rows(rows))
    assert record["criterion"] == 0.6
    counts = [record[f"{a}_{b}"] for a in ("criterion", "failed") for b in ("exact", "wrong")]
    assert counts == [1, 2, 1, 1]
    first = make_row() | {"set_recall": 1.0, "permuted": True}
    second = first | {"key": "b", "set_recall": 1 / 3, "permuted": False}
    (record,) = summarise_rows([first, second])
    assert record["set_recall"] == pytest.approx((1 + 1 / 3) / 2)
    assert record["permuted"] == 0.5
    other = only(summarise_rows([make_row(solver="adam")]))
    assert other["criterion_exact"] is other["margin_bits"] is None


def wrong(at, **changes):
    """A row at the floor that is wrong at one position of six."""
    truth = [1, 2, 3, 4, 5, 6]
    found = [9 if t == at else token for t, token in enumerate(truth)]
    row = make_row(solver="alternating", length=6, truth=truth, found=found)
    own = {"at_floor": True, "exact": False, "truth_at_floor": False, "certificate": "residual"}
    return row | own | changes


def test_a_wrong_answer_is_a_false_accept_where_the_truth_does_not_fit_too():
    told = [{"position": 1, "tokens": ["a", "b"]}]
    cases = {
        True: [
            wrong(1),
            wrong(4),
            wrong(2, collisions=told),
            # every other choice is said to be ruled out, the true one among them
            wrong(1, truth_at_floor=True, certificate="enumerated"),
        ],
        False: [
            wrong(1, truth_at_floor=True),
            {name: value for name, value in wrong(1).items() if name != "truth_at_floor"},
            wrong(1, collisions=told),
            wrong(1, truth_at_floor=True, certificate="enumerated", collisions=told),
            wrong(1, at_floor=False),
            wrong(None, exact=True),
            wrong(1, control="shuffled"),
        ],
    }
    for expected, rows in cases.items():
        assert [is_false_accept(row) for row in rows] == [expected] * len(rows)
    rows = [wrong(1), wrong(None, exact=True, key="b"), wrong(1, truth_at_floor=True, key="c")]
    record = only(summarise_rows(rows))
    assert (record["at_floor"], record["false_accepts"], record["tokens_accepted"]) == (3, 1, 18)


def test_no_coordinate_is_pooled_unasked():
    lines = frame([make_row(), make_row(noise=0.5, key="b"), make_row("flat", layer=2)])
    pooled = {("model",): "noise", ("model", "layer"): "noise", ("noise",): "model"}
    for by, first in pooled.items():
        with pytest.raises(RequestError, match=f"a figure would pool {first} ") as refused:
            summarise(lines, list(by))
        assert "\n" not in str(refused.value)
    exact = summarise(lines, ["model"], pool=["noise"])
    assert set(exact["model"]) == {"flat", "llama"}
    everything = [name for name in lines if name not in ("noise", "model")]
    pooled = summarise(lines, ["noise"], pool=["model", *everything]).set_index("quantity")
    assert set(pooled.loc["self_tokens", "value"]) == {26, 13}
    with pytest.raises(RequestError, match="no rows"):
        summarise(lines[:0], ["model"])


def test_a_frame_has_a_line_for_each_row_and_quantity():
    row = make_row(solver="adam")
    lines = frame([row, row]).set_index("quantity")
    assert lines.index.is_unique
    assert lines.loc["self", ["hits", "n"]].tolist() == [sum(r == 0 for r in row["rank"][3:]), 13]
    assert lines.loc["seconds", "value"] == row["seconds"]
    assert coordinates(row).items() <= lines.loc["self"].to_dict().items()
    mixed = frame([row, *every_kind(about(100))])
    assert set(mixed["kind"]) == {"recovery", "lens", "loss", "probe", "geometry"}
    bits = mixed[mixed["quantity"] == "bits_per_byte"]
    assert bits["n"].tolist() == [2, 2]


def test_a_bound_on_false_accepts_counts_pairs_of_prompt_and_model():
    rows = make_rows(models=("flat",), count=5)  # layers, methods and seeds are no trials
    right = [row for row in rows if row["at_floor"]]
    pairs = {(str(row["truth"]), row["checkpoint"]["weights_sha256"]) for row in right}
    found = accepts(rows)
    assert found == (0, len(right), 16 * len(right), 0, len(pairs), 0)
    assert len(pairs) < len(right) / 3
    assert found.bound == at_most(0, len(pairs))
    other = {"found": [9] * 16, "exact": False, "truth_at_floor": False}
    one = right[0] | other  # the same pair, at two layers
    several = [*rows, one | {"key": "x"}, one | {"key": "y", "site": {"layer": 3, "part": "block"}}]
    assert accepts(several)[::3] == (2, 1)
    halved = [row | {"uncertified": "weights in float16"} for row in rows]
    assert accepts(halved).answers == 0
    cut = [r | {"key": f"{r['key']} cut", "truth": r["truth"][:8], "length": 8} for r in rows]
    assert accepts([*rows, *cut])[3:5] == (0, len(pairs))  # what a slice leaves is no other prompt


def test_verdicts_are_summed_up_beside_the_methods():
    rows = make_rows(models=("flat",), steps=(300,), layers=(4,), count=12)
    records = summary_records(verdict_lines(frame(rows), rows), QUANTITIES)
    assert [(r["hidden"], r["prompts"]) for r in records] == [(0, 12), (1, 12), (3, 12)]
    record = records[-1]
    tried = [r for r in rows if r["hidden"] == 3 and r["solver"] in ("descent", "adam")]
    found = {(r["prompt"], t) for r in tried for t in range(3) if r["rank"][t] == 0}
    assert record["nonself_gradient"] == pytest.approx(len(found) / 36)
    assert record["nonself_search"] == pytest.approx(1 - len(found) / 36)
    assert record["nonself_search_low"] < record["nonself_search"] < 1
    assert record["nonself_not_found"] == 0
    assert record["nonself_not_found_high"] == pytest.approx(wilson(0, 12).high)
    assert records[0]["nonself_gradient"] is None
    assert not {"solver", "settings"} & record.keys()
    gradients = [make_row(solver="adam"), make_row(solver="descent")]
    assert verdict_lines(frame(gradients), gradients).empty


def test_words_for_shares_and_numbers():
    assert [percent_text(s) for s in (0, 0.0001, 0.5, 0.9999, 1)] == [
        "0", "<0.1", "50.0", ">99.9", "100",
    ]  # fmt: skip
    assert [whole_percent(s) for s in (0, 0.001, 0.005, 0.42, 0.996, 1)] == [
        "0", "<1", "<1", "42", ">99", "100",
    ]  # fmt: skip
    assert [duration_text(s) for s in (1.25, 72, 3725)] == ["1.25 s", "1 min 12 s", "1 h 2 min"]
    assert interval_text(0.5, 0.25, 1.0, percent=True) == "50.0 (25.0–100)"
    assert interval_text(-9.5, -10.8, -8.7) == "-9.5 (-10.8 to -8.7)"
    assert interval_text(None, None, None) == "–"
    assert [number_text(n) for n in (0, 3, 3.14159, 999.6, 12345.6, float("inf"))] == [
        "0", "3", "3.142", "1,000", "12,346", "inf",
    ]  # fmt: skip


def test_command_prints_and_writes(tmp_path, capsys):
    Results(tmp_path / "results").append(make_rows(models=("flat",), count=2))
    files = tmp_path / "new" / "table.csv", tmp_path / "table.md"
    arguments = ["summary", str(tmp_path / "results"), "--csv", str(files[0])]
    assert main([*arguments, "--markdown", str(files[1])]) == 0
    printed = capsys.readouterr().out
    assert "Verdicts across solvers" in printed
    assert printed.count("\n") <= 25
    for count in ("0 of 36 answers", "(576 tokens)", "0 of 4 pairs", "52.7 %"):
        assert count in printed.splitlines()[-1]
    assert len(files[0].read_text().splitlines()) == 1 + 2 * 3 * 3 * 3
    assert files[1].read_text().count("\n| flat |") == 2 * 3 * 3 * 3 + 2 * 3 * 3
    wrongly = [wrong(1), wrong(None, exact=True, key="b"), wrong(1, key="c", noise=0.1)]
    Results(tmp_path / "wrong").append(wrongly)
    assert main(["summary", str(tmp_path / "wrong")]) == 0
    printed = capsys.readouterr().out
    for count in ("1 of 2 answers", "(12 tokens)", "1 of 1 pairs", "100 %"):
        assert count in printed.splitlines()[-1]
    assert "Verdicts" not in printed


def test_other_prompts_with_the_same_outputs_are_counted_beside():
    """Identity networks with a hidden token: nothing shown depends on it."""
    rows = read_rows([RESULTS / "experiments" / "e4b.parquet"])
    found = accepts(rows)
    assert (found.wrong, found.answers, found.ambiguous) == (0, 107, 72)
    assert sum(record["false_accepts"] for record in summarise_rows(rows)) == 0


def test_positions_that_padding_hides():
    own = {"length": 4, "slice": "[:, -1, :]"}
    assert hidden_positions(make_row(**own, hidden=3)) == {0, 1, 2}
    assert hidden_positions(make_row(**own, hidden=4, padded=True)) == {0, 1, 2, 3}


def test_margins_of_searches_that_arrived():
    kind: dict = {"solver": "alternating"}
    arrived = make_row(margin_bits=3.0, **kind)
    near = make_row(margin_bits=2.0, prompt=1, **kind)
    lost = make_row(margin_bits=0.0, prompt=2, verdict=["not found"] * 16, **kind)
    assert only(summarise_rows([arrived, near, lost]))["margin_bits"] == 2
    shuffled = make_row(margin_bits=0.0, verdict=None, control="shuffled", **kind)
    assert only(summarise_rows([shuffled]))["margin_bits"] is None
    assert render_page([shuffled])


def test_figures_of_a_lens_at_one_place_are_not_pooled():
    figures = {"near": 1.0, "far": 3.0}
    rows = [lens(about(0), v) | {"key": name, "figure": name} for name, v in figures.items()]
    (record,) = summarise_rows(rows, kind="lens")
    assert (record["near"], record["far"]) == (1.0, 3.0)


def lines_of(rows, kind, figure):
    return [record[figure] for record in summarise_rows(rows, kind)]


def test_figures_of_unlike_questions_are_not_pooled():
    """Texts given to `loss`, fits of probes, passages and texts asked for bits."""
    texts = [loss_row(about(0), [3.0], corpus=None, texts=name, nats_per_token=nats)
             for name, nats in (("a", 2.0), ("b", 4.0))]  # fmt: skip
    earlier = [loss_row(about(0), [3.0], corpus=None, bytes=n, nats_per_token=n) for n in (2, 3)]
    probe = next(row for row in every_kind(about(0)) if row["kind"] == "probe")
    probes = [probe | {"settings": {"train": n, "corpus": "toy", "seed": n}, "top1": n / 8}
              for n in (1, 3)]  # fmt: skip
    for rows, kind, figure, expected in (
        (texts, "loss", "nats_per_token", [2, 4]),
        (earlier, "loss", "nats_per_token", [2, 3]),
        (probes, "probe", "top1", [1 / 8, 3 / 8]),
        ([probes[0], probe | {"settings": {"corpus": "x", "train": 1}}], "probe", "top1",
         [1 / 8, 1 / 4]),
        ([probes[0], probes[0] | {"settings": probes[0]["settings"] | {"seed": 9}}], "probe",
         "top1", [1 / 8]),
    ):  # fmt: skip
        rows = [row | {"key": str(i)} for i, row in enumerate(rows)]
        assert lines_of(rows, kind, figure) == expected
    geometry = every_kind(about(0))[-1]
    lengths = [geometry | {"length": n, "condition": n, "key": str(n)} for n in (8, 16)]
    assert lines_of(lengths, "geometry", "condition") == [8, 16]
    passage = bits_row(about(0), 0, 4.0)
    rows = [passage, *(bits_row(about(0), n, 2.0 * n) | {"prompts": "text"} for n in (1, 3))]
    found = [r for r in summarise_rows(rows, "bits") if r["bits"] is not None and r["distance"]]
    assert [(r["prompt_kind"].split()[0], r["bits"]) for r in found if r["shown"] == "alone"] == [
        ("inside", 4.0), ("text", 2.0), ("text", 6.0),
    ]  # fmt: skip
    (table,) = number_tables(frame([row | {"key": str(i)} for i, row in enumerate(probes)]))
    assert "settings" in table.brief.headings
    (table,) = number_tables(frame(probes[:1]))
    assert "settings" not in table.brief.headings


def test_n_of_a_loss_counts_the_parts_of_its_text():
    assert lines_of([loss_row(about(0), [3.0, 4.0, 5.0])], "loss", "prompts") == [3]


def test_a_margin_of_nothing_makes_the_mean_one_of_nothing():
    rows = [bits_row(about(0), n, 4.0) for n in range(3)]
    rows[1] = rows[1] | {"margin_bits": {"alone": [9.0, None]}}
    margins = lines_of(rows, "bits", "margin_bits")
    assert [margin for margin in margins if margin is not None] == [9.0, -math.inf]
    alone = lines_of([row | {"candidates": 1} for row in rows], "bits", "margin_bits")
    assert [margin for margin in alone if margin is not None] == [9.0, 3.0]  # no wrong candidate


def test_of_several_looks_of_a_lens_the_last_counts_as_on_the_page(capsys):
    rows = [lens(about(0), value) | {"key": look, "look": look}
            for look, value in (("first", 1.0), ("last", 3.0))]  # fmt: skip
    rows.append(rows[0] | {"key": "other", "look": "other", "lens": "logit", "value": 7.0})
    records = summarise_rows(rows, "lens")
    assert [record["norm"] for record in records] == [3.0, 7.0]
    assert "residual looked at flat more than once; its last look counts" in capsys.readouterr().err


def test_n_counts_the_prompts_whose_rows_have_the_figure():
    rows = [make_row(solver="adam", prompt=p, length=16 + p, seed=p) for p in range(10)]
    for p, row in enumerate(rows):
        row["set_recall"] = 0.5 if p < 3 else None
    figures = summarise(frame(rows), ["model"], ["observed"]).set_index("quantity")
    assert (figures["n"]["set_recall"], figures["n"]["exact"]) == (3, 10)


def test_lines_of_a_table_have_no_page(tmp_path):
    Results(tmp_path).append([make_row()])
    with pytest.raises(RequestError, match="no page"):
        summary(str(tmp_path)).page(str(tmp_path / "page.html"))
    assert not (tmp_path / "page.html").exists()
