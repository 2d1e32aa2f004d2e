"""The comparison: what it says, as a table, as files and as plots."""

import csv
import io
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from arch import ModelConfig, describe
from eval.comparison import enter, lay_side_by_side
from eval.comparison_plot import AXES, draw_data
from eval.gather import gather_models
from eval.plots import whole_ticks
from eval.rows import Results
from tests.eval.compare_cases import SIZES, columns, lens_row, make_run, run_compare
from tests.eval.report.cases import make_row, make_rows, tick_labels


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
