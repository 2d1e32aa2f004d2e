"""The comparison: what it finds and pools, what it says as a table, as files and as plots."""

import csv
import io
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from scipy import stats

from arch import ModelConfig, describe
from eval.comparison import (
    FLOPS,
    SECONDS,
    TOKENS,
    VALID_BITS,
    enter,
    find_column,
    lay_side_by_side,
)
from eval.comparison_plot import AXES, draw_data
from eval.gather import gather_models
from eval.models import open_checkpoint
from eval.plots import whole_ticks
from eval.rows import Results
from eval.summary import sum_up
from tests.eval.compare_cases import SIZES, add_model, columns, lens_row, make_run, run_compare
from tests.eval.report.cases import make_row, make_rows, tick_labels


def test_models_runs_and_rows_come_together(model_directory, tmp_path):
    run = make_run(tmp_path, "flat-s0")
    models = [add_model(run, step, model_directory("any", step)) for step in (0, 100)]
    row = make_row("flat-s0", 100, method="sweep", hidden=0)
    row["checkpoint"] |= open_checkpoint(models[1]).provenance
    row |= {"site": {"layer": 2, "part": "block"}}
    Results(tmp_path / "results").append([row])
    found = gather_models([tmp_path, run, models[0], tmp_path / "results"])  # each thing once
    found = [c for c in found if c.name == "flat-s0"]
    assert [(c.step, len(c.rows)) for c in found] == [(0, 0), (100, 1)]
    assert all(c.run is not None and c.run.path == run for c in found)
    (alone,) = gather_models([models[1]])
    assert alone.run is not None  # its own run is found above it
    assert alone.about["parameters"] == open_checkpoint(models[1]).provenance["parameters"]


def test_a_run_without_models_is_its_last_validation(tmp_path):
    run = make_run(tmp_path, "flat-s0", speed=50)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 150, "lo')  # of a running training
    (entry,) = enter(gather_models([run]))
    assert (entry.label, entry.step) == ("flat-s0", 100)
    assert entry.figures[VALID_BITS].value == pytest.approx(1.2)
    cost = describe(ModelConfig.from_json(json.dumps(SIZES), "here")).cost
    assert entry.figures[TOKENS].value == 1000
    assert entry.figures[FLOPS].value == cost.training_flops * 1000
    assert entry.figures[SECONDS].value == pytest.approx(1000 / 50)


def test_rows_of_other_weights_are_another_model(model_directory, tmp_path):
    path = model_directory("flat")
    row = make_row("flat", 0)
    Results(tmp_path / "out").append([row])
    found = gather_models([path, tmp_path / "out"])
    assert [len(c.rows) for c in found] == [0, 1]
    assert len({entry.label for entry in enter(found)}) == 2


def test_seeds_are_pooled_with_students_interval(tmp_path):
    bits = [1.2, 1.3, 1.25]
    runs = [make_run(tmp_path, f"flat-s{seed}", seed, b) for seed, b in enumerate(bits)]
    (entry,) = enter(gather_models(runs))
    assert (entry.label, len(entry.checkpoints)) == ("flat", 3)
    figure = entry.figures[VALID_BITS]
    low, high = stats.t.interval(0.95, 2, np.mean(bits), stats.sem(bits))
    assert figure[:4] == pytest.approx((np.mean(bits), low, high, 3))
    apart = enter(gather_models(runs), every_seed=True)
    assert [e.label for e in apart] == ["flat-s0", "flat-s1", "flat-s2"]
    assert [e.figures[VALID_BITS].value for e in apart] == pytest.approx(bits)
    assert all(e.figures[VALID_BITS].low is None for e in apart)


def test_other_settings_are_no_seeds(tmp_path):
    runs = [
        make_run(tmp_path, f"flat-s{seed}", seed, lr=1e-3 * (1 + seed // 2)) for seed in range(4)
    ]
    labels = [(entry.label, len(entry.checkpoints)) for entry in enter(gather_models(runs))]
    assert labels == [("flat (lr 0.001)", 2), ("flat (lr 0.002)", 2)]


def test_recovery_is_that_of_the_summary(tmp_path):
    rows = make_rows(models=("flat",), steps=(0, 300), layers=(2, 4), count=3)
    Results(tmp_path).append(rows)
    (record,) = [
        r for r in sum_up(rows)
        if (r["step"], r["layer"], r["hidden"], r["method"]) == (300, 4, 3, "descent")
    ]  # fmt: skip
    table = columns(tmp_path)
    entry = table.entries[1]
    column = find_column(table.columns, "non-self [:, 3:, :] descent")
    assert entry.figures[column.quantity] == (
        record["nonself"], record["nonself_low"], record["nonself_high"], 3, (16, 16),
    )  # fmt: skip
    assert dict(column.quantity.places)["layer"] == "last"
    assert find_column(table.columns, "non-self layer 2 [:, 3:, :] descent")


def test_prompts_of_different_lengths_are_one_figure(tmp_path):
    rows = [
        make_row(hidden=k, method="adam", prompt=i, length=8 + i) for i in range(40) for k in (0, 3)
    ]
    last_alone = [
        make_row(hidden=7 + i, method="sweep", prompt=i, length=8 + i, slice="[:, -1, :]")
        for i in range(3)
    ]
    Results(tmp_path / "all").append(rows + last_alone)
    table = columns(tmp_path / "all")
    recovery = {c.heading.replace("\xa0", " "): c.quantity for c in table.sections["recovery"]}
    assert {name for name in recovery if name.startswith("self")} == {
        "self [:, 0:, :] adam, 8 to 47 tokens, %",
        "self [:, 3:, :] adam, 8 to 47 tokens, %",
        "self [:, -1, :] sweep, 8 to 10 tokens, %",
    }
    figure = table.entries[0].figures[recovery["non-self [:, 3:, :] adam, 8 to 47 tokens, %"]]
    ranks = [rank for row in rows if row["hidden"] for rank in row["rank"][:3]]
    assert figure.value == pytest.approx(sum(rank == 0 for rank in ranks) / len(ranks))
    assert (figure.n, figure.lengths) == (40, (8, 47))
    whole = recovery["non-self [:, -1, :] sweep, 8 to 10 tokens, %"]
    assert table.entries[0].figures[whole].n == 3
    Results(tmp_path / "alone").append(last_alone)
    alone = columns(tmp_path / "alone")
    assert alone.shared["recovery"].endswith(", 8 to 10 tokens")  # what all columns pool
    assert not any("tokens" in c.heading for c in alone.sections["recovery"])


def test_settings_tell_apart_what_nothing_else_does(tmp_path):
    other = make_row(settings={"steps": 900, "rate": 0.02}, key="other")
    Results(tmp_path).append([make_row(), make_row(method="adam"), other])
    names = [c.name.replace("\xa0", " ") for c in columns(tmp_path).columns]
    assert "non-self descent steps=500" in names
    assert "non-self descent steps=900" in names
    assert "non-self adam" in names


def test_a_figure_of_a_lens_needs_no_code(tmp_path):
    rows = [lens_row(3.0), lens_row(4.0, layer=4), lens_row(5.0, lens="tuned")]
    Results(tmp_path).append(rows)
    table = columns(tmp_path)
    names = {c.name: table.entries[0].figures[c.quantity][:4] for c in table.sections["lens"]}
    assert names == {
        "entropy layer 2 lens logit": (3.0, 2.0, 4.0, 7),
        "entropy lens logit": (4.0, 3.0, 5.0, 7),  # of the last layer
        "entropy layer 2 lens tuned": (5.0, 4.0, 6.0, 7),
    }


def test_probes_have_columns(tmp_path):
    about = {"checkpoint": make_row()["checkpoint"], "site": {"layer": 4, "part": "block"}}
    probe = {"kind": "probe", "key": "p", "method": "gaussian", "offset": -1, "top1": 0.25,
             "information": 0.1, "nats": 5.0, "count": 90}  # fmt: skip
    Results(tmp_path).append([about | probe])
    table = columns(tmp_path)
    found = {c.heading: table.entries[0].figures[c.quantity][:4] for c in table.columns}
    assert found["top-1, %"] == (0.25, None, None, 1)


def test_command_prints_and_writes(tmp_path, capsys):
    runs = [
        make_run(tmp_path, "conv-s0", 0, 1.2),
        make_run(tmp_path, "conv-s1", 1, 1.3),
        make_run(tmp_path, "other", 0, 1.1),
    ]
    Results(tmp_path / "results").append(make_rows(models=("flat",), count=2))
    files = {kind: tmp_path / "new" / f"table.{kind}" for kind in ("md", "csv", "svg")}
    words = ["--markdown", files["md"], "--csv", files["csv"], "--plot", files["svg"]]
    assert run_compare(*runs, tmp_path / "results", *words) == 0
    printed = capsys.readouterr().out
    for word in ("Training", "Loss", "Recovery"):
        assert word in printed
    assert max(map(len, printed.splitlines())) <= 160
    assert "### Recovery" in files["md"].read_text()
    (pooled,) = [r for r in csv.DictReader(io.StringIO(files["csv"].read_text()))
                 if (r["model"], r["quantity"]) == ("conv", "validation bits/byte")]  # fmt: skip
    assert float(pooled["value"]) == np.mean([1.2, 1.3])
    assert (pooled["seeds"], pooled["n"], pooled["step"]) == ("2", "2", "100")


def test_csv_holds_every_quantity_in_full(tmp_path):
    Results(tmp_path / "r").append([lens_row(1 / 3), lens_row(2 / 3, layer=4), make_row()])
    file = tmp_path / "t.csv"
    assert run_compare(tmp_path / "r", "--csv", file) == 0
    entry = enter(gather_models([tmp_path / "r"]))[0]
    read = list(csv.DictReader(io.StringIO(file.read_text())))
    assert len(read) == len(entry.figures)
    values = {figure.value for figure in entry.figures.values()}
    assert {float(line["value"]) for line in read} == values
    assert [line["layer"] for line in read if line["quantity"] == "entropy"] == ["2", "last"]


def test_columns_are_chosen_by_name_or_pattern(tmp_path):
    Results(tmp_path).append(make_rows(models=("flat",), count=2))

    def chosen(*words):
        return {c.name.replace("\xa0", " ") for c in columns(tmp_path, chosen=words).columns}

    everything = chosen("all")
    assert chosen("recovery") == {n for n in everything if "nats" not in n and "param" not in n}
    assert chosen("*descent*") == {name for name in everything if "descent" in name}
    assert chosen("margin bits layer 2 [:, 3:, :] alternating") <= chosen("margin bits")
    plain = {
        c.name.replace("\xa0", " ")
        for c in lay_side_by_side(enter(gather_models([tmp_path]))).columns
    }
    assert plain < everything
    assert "self [:, 0:, :] sweep" in plain


def test_sorting_and_the_last_step_alone(tmp_path):
    runs = [make_run(tmp_path, name, bits=b) for name, b in {"a": 1.2, "b": 1.1, "c": 1.3}.items()]
    entries = enter(gather_models(runs))
    orders = {"validation bits/byte": "bac", "-validation bits/byte": "cab", "-model": "cba"}
    for sort, order in orders.items():
        found = lay_side_by_side(entries, None, sort).entries
        assert "".join(entry.label for entry in found) == order
    Results(tmp_path / "r").append(make_rows(models=("flat",), steps=(0, 100, 300), count=1))
    file = tmp_path / "t.csv"
    assert run_compare(tmp_path / "r", "--last", "--csv", file) == 0
    assert {row["step"] for row in csv.DictReader(io.StringIO(file.read_text()))} == {"300"}


def test_wide_tables_are_cut_into_pages(tmp_path, capsys):
    Results(tmp_path).append(make_rows(count=2))
    assert run_compare(tmp_path, "--columns", "all") == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 160
    assert "…" not in printed
    table = columns(tmp_path)
    (recovery,) = [own for own in table.tables() if own.title.startswith("Recovery")]
    assert len(recovery.headings) == 2 + len(table.sections["recovery"])
    assert printed.count("\n flat ") >= len(recovery.lines) / 2


def test_curves_over_what_was_spent(tmp_path):
    runs = [
        make_run(tmp_path, "flat-s0", 0, 1.2),
        make_run(tmp_path, "flat-s1", 1, 1.4),
        make_run(tmp_path, "llama", bits=1.1),
    ]
    entries = enter(gather_models(runs))
    cost = describe(ModelConfig.from_json(json.dumps(SIZES), "here")).cost.training_flops
    expected = {"step": [50, 100], "tokens": [500, 1000], "flops": [500 * cost, 1000 * cost],
                "time": [5 / 3600, 10 / 3600]}  # fmt: skip
    assert set(expected) == set(AXES)
    for axis, xs in expected.items():
        points = draw_data(entries, axis)["validation bits/byte"]
        flat = [point for point in points if point["model"] == "flat"]
        assert [point["x"] for point in flat] == pytest.approx(xs), axis
        assert [point["value"] for point in flat] == pytest.approx([2.3, 1.3])
        assert all(p["low"] < p["value"] < p["high"] for p in flat)
        assert all(p["low"] == p["value"] for p in points if p["model"] == "llama")


def test_recovery_over_training(tmp_path):
    Results(tmp_path).append(make_rows(models=("flat",), steps=(0, 100, 300), count=3))
    panels = draw_data(enter(gather_models([tmp_path])))
    assert [p["x"] for p in panels["self [:, 0:, :] sweep, %"]] == [0, 100, 300]
    assert {p["value"] for p in panels["self [:, 0:, :] sweep, %"]} == {100}
    file = tmp_path / "plot.svg"
    assert run_compare(tmp_path, "--columns", "self", "--plot", file) == 0
    assert ["0", "100", "200", "300"] in tick_labels(file)


def test_only_whole_numbers_have_whole_ticks():
    assert whole_ticks([0, 1]) == [0, 1]
    assert whole_ticks([0, 24]) == list(range(0, 25, 2))
    assert whole_ticks([1, 8, 3]) == list(range(1, 9))
    assert whole_ticks([7]) == [7]
    assert whole_ticks([0, 99_999], 5) == [0, 20_000, 40_000, 60_000, 80_000]
    assert whole_ticks([0, 0.5]) is whole_ticks([]) is None


@pytest.mark.parametrize("kind", ["svg", "png", "html"])
def test_plots_need_no_network(tmp_path, kind):
    names = ["flat", "<llama> & co", *(f"m{c}" for c in "abcdef")]
    runs = [make_run(tmp_path, name, bits=1 + i / 10) for i, name in enumerate(names)]
    file = tmp_path / f"plot.{kind}"
    assert run_compare(*runs, "--plot", file) == 0
    if kind == "png":
        assert file.read_bytes().startswith(b"\x89PNG")
    elif kind == "svg":
        text = file.read_text()
        assert text.count("stroke-dasharray") >= 2  # where the colours begin anew
        assert "<llama> & co" in "".join(ET.fromstring(text).itertext())
    else:
        assert 'src="http' not in file.read_text()
