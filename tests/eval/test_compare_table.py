"""The comparison: what it says, as a table and as files, and to bad input."""

import csv
import io

import numpy as np

from eval.comparison import enter, lay_side_by_side
from eval.gather import gather_models
from eval.rows import Results
from tests.eval.compare_cases import columns, lens_row, make_run, run_compare
from tests.eval.report.cases import make_row, make_rows

# What is said.


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
    for word in ("Training", "Loss", "Recovery", "non-self", "more columns: --columns all"):
        assert word in printed
    assert max(map(len, printed.splitlines())) <= 160
    text = files["md"].read_text()
    assert "### Recovery" in text
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 3
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table}) == 1
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


def test_sorting(tmp_path):
    runs = [
        make_run(tmp_path, "a", bits=1.2),
        make_run(tmp_path, "b", bits=1.1),
        make_run(tmp_path, "c", bits=1.3),
    ]
    entries = enter(gather_models(runs))

    def order(sort):
        return [entry.label for entry in lay_side_by_side(entries, None, sort).entries]

    assert order("validation bits/byte") == ["b", "a", "c"]
    assert order("-validation bits/byte") == ["c", "a", "b"]
    assert order("-model") == ["c", "b", "a"]


def test_last_step_alone(tmp_path, capsys):
    Results(tmp_path).append(make_rows(models=("flat",), steps=(0, 100, 300), count=1))
    file = tmp_path / "t.csv"
    assert run_compare(tmp_path, "--last", "--csv", file) == 0
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
