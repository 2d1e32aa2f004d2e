"""The comparison: what it finds, what it pools, what it says, and what it draws."""

import csv
import io
import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from scipy import stats

from arch import ModelConfig, describe, load_model
from eval.__main__ import main
from eval.checkpoints import open_checkpoint
from eval.compare.entries import enter
from eval.compare.evidence import gather
from eval.compare.figures import FLOPS, SECONDS, TOKENS, VALID_BITS, Figure, measure
from eval.compare.plot import AXES, draw_data
from eval.compare.table import cell, compare, find_column, lines
from eval.inversion.summary import summarise
from eval.language import PARTS, bits_per_byte, measure_loss
from eval.results import Results, read_rows
from eval.statistics import clustered, over_seeds
from tests.report_cases import make_row, make_rows
from tokenizer import load_tokenizer

Make = Callable[..., Path]
SIZES = {"vocab_size": 400, "context": 32, "d_model": 32, "n_layers": 2}


@pytest.fixture
def make_run(tmp_path: Path) -> Make:
    """A run directory without weights: `make_run("flat-s0", seed=0, bits=1.2, lr=1e-3)`."""

    def make(
        name: str, seed: int = 0, bits: float = 1.2, lr: float = 1e-3, speed: float = 100.0
    ) -> Path:
        path = tmp_path / "runs" / name
        path.mkdir(parents=True)
        settings = {"run": str(path), "seed": seed, "optimizer": {"lr": lr}, "model": SIZES}
        (path / "config.yaml").write_text(yaml.safe_dump(settings))
        rows: list[dict[str, Any]] = []
        for step in (0, 50, 100):
            tokens = 10 * step
            if step:
                rows.append({"step": step, "tokens_seen": tokens, "loss": bits * 3 + 1 / step,
                             "tokens_per_second": speed})  # fmt: skip
            own = bits + (100 - step) / 50
            rows.append(
                {"step": step, "tokens_seen": tokens, "val_loss": 3 * own, "val_bits_per_byte": own}
            )
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return make


def add_model(directory: Path, run: Path, step: int, source: Path) -> Path:
    """A model directory of a run, its weights those of another one."""
    path = run / "models" / f"step-{step:06d}"
    path.mkdir(parents=True)
    for file in source.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    meta = {"name": run.name, "step": step, "tokens_seen": 10 * step, "val_loss": 3.0 + step,
            "val_bits_per_byte": 1.0 + step}  # fmt: skip
    known = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(known | meta))
    return path


def lens_row(value: float, **changes: Any) -> dict[str, Any]:
    row = {"key": f"lens {value} {changes}", "kind": "lens", "lens": "logit", "figure": "entropy",
           "layer": 2, "value": value, "low": value - 1, "high": value + 1, "n": 7}  # fmt: skip
    return row | {"checkpoint": make_row()["checkpoint"]} | changes


def columns(*places: Path, chosen: tuple[str, ...] = ("all",), every: bool = False) -> Any:
    return compare(enter(gather(places), every), list(chosen))


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    assert said[0].startswith("error: ")
    return said[0]


# What is found.


def test_models_runs_and_rows_come_together(
    make_run: Make, model_directory: Make, tmp_path: Path
) -> None:
    run = make_run("flat-s0")
    models = [add_model(tmp_path, run, step, model_directory("any", step)) for step in (0, 100)]
    row = make_row("flat-s0", 100, method="sweep", hidden=0)
    row["checkpoint"] |= open_checkpoint(models[1]).provenance
    row |= {"site": {"layer": 2, "part": "block"}}
    Results(tmp_path / "results").append([row])
    found = gather([tmp_path, run, models[0], tmp_path / "results"])  # each thing once
    found = [c for c in found if c.name == "flat-s0"]
    assert [(c.step, len(c.rows)) for c in found] == [(0, 0), (100, 1)]
    assert all(c.run is not None and c.run.path == run for c in found)
    (alone,) = gather([models[1]])
    assert alone.run is not None  # its own run is found above it
    assert alone.about["parameters"] == open_checkpoint(models[1]).provenance["parameters"]


def test_a_run_without_models_is_its_last_validation(make_run: Make) -> None:
    run = make_run("flat-s0", speed=50)
    (entry,) = enter(gather([run]))
    assert (entry.label, entry.step) == ("flat-s0", 100)
    assert entry.figures[VALID_BITS].value == pytest.approx(1.2)
    cost = describe(ModelConfig.from_json(json.dumps(SIZES), "here")).cost
    assert entry.figures[TOKENS].value == 1000
    assert entry.figures[FLOPS].value == cost.training_flops * 1000
    assert entry.figures[SECONDS].value == pytest.approx(1000 / 50)


def test_rows_of_other_weights_are_another_model(model_directory: Make, tmp_path: Path) -> None:
    path = model_directory("flat")
    row = make_row("flat", 0)
    Results(tmp_path / "out").append([row])
    found = gather([path, tmp_path / "out"])
    assert [len(c.rows) for c in found] == [0, 1]
    assert len({entry.label for entry in enter(found)}) == 2


def test_a_row_of_a_running_training_may_be_torn(make_run: Make) -> None:
    run = make_run("flat")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 150, "lo')
    assert enter(gather([run]))[0].step == 100


# What is pooled.


def test_seeds_are_pooled_with_students_interval(make_run: Make) -> None:
    bits = [1.2, 1.3, 1.25]
    runs = [make_run(f"flat-s{seed}", seed, b) for seed, b in enumerate(bits)]
    (entry,) = enter(gather(runs))
    assert (entry.label, len(entry.checkpoints)) == ("flat", 3)
    figure = entry.figures[VALID_BITS]
    low, high = stats.t.interval(0.95, 2, np.mean(bits), stats.sem(bits))
    assert figure == pytest.approx((np.mean(bits), low, high, 3))
    apart = enter(gather(runs), every_seed=True)
    assert [e.label for e in apart] == ["flat-s0", "flat-s1", "flat-s2"]
    assert [e.figures[VALID_BITS].value for e in apart] == pytest.approx(bits)
    assert all(e.figures[VALID_BITS].low is None for e in apart)


def test_other_settings_are_no_seeds(make_run: Make) -> None:
    runs = [make_run(f"flat-s{seed}", seed, lr=1e-3 * (1 + seed // 2)) for seed in range(4)]
    labels = [(entry.label, len(entry.checkpoints)) for entry in enter(gather(runs))]
    assert labels == [("flat (lr 0.001)", 2), ("flat (lr 0.002)", 2)]


def test_seeds_need_two() -> None:
    assert over_seeds([1.0]) is None


def test_recovery_is_that_of_the_summary(tmp_path: Path) -> None:
    rows = make_rows(models=("flat",), steps=(0, 300), layers=(2, 4), count=3)
    Results(tmp_path).append(rows)
    (record,) = [
        r for r in summarise(rows)
        if (r["step"], r["layer"], r["hidden"], r["method"]) == (300, 4, 3, "descent")
    ]  # fmt: skip
    table = columns(tmp_path)
    entry = table.entries[1]
    column = find_column(table.columns, "non-self [:, 3:, :] descent", "--sort")
    assert entry.figures[column.quantity] == (
        record["nonself"], record["nonself_low"], record["nonself_high"], 3,
    )  # fmt: skip
    assert dict(column.quantity.places)["layer"] == "last"
    assert find_column(table.columns, "non-self layer 2 [:, 3:, :] descent", "--sort")


def test_settings_tell_apart_what_nothing_else_does(tmp_path: Path) -> None:
    other = make_row(settings={"steps": 900, "rate": 0.02}, key="other")
    Results(tmp_path).append([make_row(), make_row(method="adam"), other])
    names = [c.name.replace("\xa0", " ") for c in columns(tmp_path).columns]
    assert "non-self descent steps=500" in names
    assert "non-self descent steps=900" in names
    assert "non-self adam" in names


def test_a_new_kind_of_row_needs_no_code(tmp_path: Path) -> None:
    odd = {"key": "odd", "kind": "odd", "checkpoint": make_row()["checkpoint"], "layer": 1,
           "texture": "soft", "weight": 2.5, "nothing": None, "list": [1, 2]}  # fmt: skip
    rows = [lens_row(3.0), lens_row(4.0, layer=4), lens_row(5.0, lens="tuned"), odd]
    Results(tmp_path).append(rows)
    table = columns(tmp_path)
    names = {c.name: table.entries[0].figures[c.quantity] for c in table.columns}
    lens = {name: figure for name, figure in names.items() if name.startswith("entropy")}
    assert lens == {
        "entropy layer 2 lens logit": (3.0, 2.0, 4.0, 7),
        "entropy lens logit": (4.0, 3.0, 5.0, 7),  # of the last layer
        "entropy layer 2 lens tuned": (5.0, 4.0, 6.0, 7),
    }
    assert [(n, f.value) for n, f in names.items() if n.startswith("weight")] == [("weight", 2.5)]
    assert table.shared["odd"] == "layer 1, texture soft"


def test_rows_of_several_prompts_are_resampled(tmp_path: Path) -> None:
    values = [1.0, 2.0, 4.0, 7.0]
    rows = [lens_row(v, prompt=i, prompts="story") for i, v in enumerate(values)]
    Results(tmp_path).append(rows)
    (entry,) = enter(gather([tmp_path]))
    (figure,) = [own for quantity, own in entry.figures.items() if quantity.section == "lens"]
    assert figure == (*clustered(values, [1.0] * 4, range(4), [0] * 4), 4)


def test_curves_and_probes_have_columns(tmp_path: Path) -> None:
    about = {"checkpoint": make_row()["checkpoint"], "site": {"layer": 4, "part": "block"}}
    curve = {"kind": "curve", "length": 8, "method": "adam", "key": "c", "axis": "channels",
             "value": 63, "low": 56, "high": 76, "values": [1], "top1": [1.0]}  # fmt: skip
    noise = {**curve, "key": "n", "axis": "noise", "snr50": -9.5, "snr50_low": -10.8,
             "snr50_high": -8.7}  # fmt: skip
    probe = {"kind": "probe", "key": "p", "method": "ridge", "offset": -1, "top1": 0.25,
             "information": 0.1, "nats": 5.0, "count": 90}  # fmt: skip
    Results(tmp_path).append([about | row for row in (curve, noise, probe)])
    table = columns(tmp_path)
    found = {c.heading: table.entries[0].figures[c.quantity] for c in table.columns}
    assert found["channels for half"] == (63, 56, 76, 1)
    assert found["SNR50, dB"] == (-9.5, -10.8, -8.7, 1)
    assert found["top-1, %"] == (0.25, None, None, 1)
    column = find_column(table.columns, "SNR50, dB", "--sort")
    assert cell(column, found["SNR50, dB"]) == "-9.5 (-10.8 to -8.7)"


# Loss by story.


def test_loss_keeps_stories_apart(model_directory: Make, tmp_path: Path) -> None:
    path, corpus = model_directory(), tmp_path / "valid.txt"
    stories = ["Tom had a ball.", "Mia saw.\nIt ran.", "The end."]
    corpus.write_text("".join(f"{story}\n<|endoftext|>\n" for story in stories))
    loss = measure_loss(open_checkpoint(path), str(corpus))
    ids = [[*load_tokenizer(path).encode(story).ids, 0] for story in stories]
    flat = torch.tensor([[token for story in ids for token in story]])
    nats = F.cross_entropy(load_model(path).model(flat[:, :-1])[0], flat[0, 1:], reduction="none")
    counts = [len(ids[0]) - 1, len(ids[1]), len(ids[2])]  # the first token is not predicted
    expected = [float(part.sum()) for part in nats.detach().split(counts)]
    assert len(flat[0]) <= 33  # one window
    assert loss.parts["nats"] == pytest.approx(expected, abs=2e-4)
    assert loss.parts["tokens"] == counts
    assert loss.parts["bytes"] == [len(story.encode()) for story in stories]
    assert loss.stories == 3


def test_many_stories_make_few_parts(model_directory: Make, tmp_path: Path) -> None:
    file = tmp_path / "valid.txt"
    file.write_text("<|endoftext|>".join(f"Story {i}." for i in range(PARTS + 9)))
    loss = measure_loss(open_checkpoint(model_directory()), str(file), stories=PARTS + 7)
    assert loss.stories == PARTS + 7
    assert len(loss.parts["nats"]) == PARTS
    assert sum(loss.parts["tokens"]) == loss.tokens
    assert sum(loss.parts["bytes"]) == loss.bytes
    assert sum(loss.parts["nats"]) == pytest.approx(loss.nats_per_token * loss.tokens, rel=1e-5)


def test_bits_per_byte_between_limits() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, 200, 60)
    nats = sizes * rng.normal(0.8, 0.1, 60)
    parts = {"nats": nats.tolist(), "bytes": sizes.tolist(), "tokens": [1] * 60}
    found = bits_per_byte([parts], [0])
    assert found is not None
    assert found.estimate == pytest.approx(nats.sum() / sizes.sum() / math.log(2))

    def ratio(x: Any, y: Any, axis: int) -> Any:
        return x.sum(axis=axis) / y.sum(axis=axis) / math.log(2)

    theirs = stats.bootstrap((nats, sizes), ratio, paired=True, method="percentile", rng=rng)
    limits = theirs.confidence_interval
    assert found[1:] == pytest.approx((limits.low, limits.high), abs=0.004)
    assert bits_per_byte([{"nats": [1.0], "bytes": [9], "tokens": [3]}], [0]) is None


def test_loss_writes_rows_once(
    model_directory: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(model_directory("flat-s0")), str(model_directory("flat-s0", 5))]
    words = ["--corpus", "toy:100", "--stories", "5", "--out", str(tmp_path / "out")]
    assert main(["loss", *models, *words]) == 0
    content = (tmp_path / "out" / "rows.jsonl").read_text()
    assert main(["loss", *models, *words]) == 0
    assert (tmp_path / "out" / "rows.jsonl").read_text() == content
    rows = read_rows([tmp_path / "out"])
    assert [row["kind"] for row in rows] == ["loss", "loss"]
    figures = measure(gather([tmp_path / "out"])[:1])
    (bits,) = [figure for quantity, figure in figures.items() if quantity.name == "bits/byte"]
    assert bits.value == pytest.approx(rows[0]["bits_per_byte"], abs=1e-5)
    assert bits.low is not None
    assert bits.high is not None
    assert bits.low < bits.value < bits.high
    assert "95 %" in capsys.readouterr().out


# What is said.


def run_compare(*words: object) -> int:
    return main(["compare", *map(str, words)])


def test_command_prints_and_writes(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run("conv-s0", 0, 1.2), make_run("conv-s1", 1, 1.3), make_run("other", 0, 1.1)]
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


def test_csv_holds_every_quantity_in_full(tmp_path: Path) -> None:
    Results(tmp_path / "r").append([lens_row(1 / 3), lens_row(2 / 3, layer=4), make_row()])
    file = tmp_path / "t.csv"
    assert run_compare(tmp_path / "r", "--csv", file) == 0
    entry = enter(gather([tmp_path / "r"]))[0]
    read = list(csv.DictReader(io.StringIO(file.read_text())))
    assert len(read) == len(entry.figures)
    values = {figure.value for figure in entry.figures.values()}
    assert {float(line["value"]) for line in read} == values
    assert [line["layer"] for line in read if line["quantity"] == "entropy"] == ["2", "last"]


def test_columns_are_chosen_by_name_or_pattern(tmp_path: Path) -> None:
    Results(tmp_path).append(make_rows(models=("flat",), count=2))

    def chosen(*words: str) -> set[str]:
        return {c.name.replace("\xa0", " ") for c in columns(tmp_path, chosen=words).columns}

    everything = chosen("all")
    assert chosen("recovery") == {n for n in everything if "nats" not in n and "param" not in n}
    assert chosen("*descent*") == {name for name in everything if "descent" in name}
    assert chosen("margin bits layer 2 [:, 3:, :] alternating") <= chosen("margin bits")
    plain = {c.name.replace("\xa0", " ") for c in compare(enter(gather([tmp_path]))).columns}
    assert plain < everything
    assert "self [:, 0:, :] sweep" in plain


def test_sorting(make_run: Make) -> None:
    runs = [make_run("a", bits=1.2), make_run("b", bits=1.1), make_run("c", bits=1.3)]
    entries = enter(gather(runs))

    def order(sort: str) -> list[str]:
        return [entry.label for entry in compare(entries, None, sort).entries]

    assert order("validation bits/byte") == ["b", "a", "c"]
    assert order("-validation bits/byte") == ["c", "a", "b"]
    assert order("-model") == ["c", "b", "a"]


def test_last_step_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Results(tmp_path).append(make_rows(models=("flat",), steps=(0, 100, 300), count=1))
    file = tmp_path / "t.csv"
    assert run_compare(tmp_path, "--last", "--csv", file) == 0
    assert {row["step"] for row in csv.DictReader(io.StringIO(file.read_text()))} == {"300"}


def test_wide_tables_are_cut_into_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Results(tmp_path).append(make_rows(count=2))
    assert run_compare(tmp_path, "--columns", "all") == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 160
    assert "…" not in printed
    table = columns(tmp_path)
    headings, rows = lines(table, "recovery")
    assert len(headings) == 2 + len(table.sections["recovery"])
    assert printed.count("\n flat ") >= len(rows) / 2


# What is drawn.


def test_curves_over_what_was_spent(make_run: Make) -> None:
    runs = [make_run("flat-s0", 0, 1.2), make_run("flat-s1", 1, 1.4), make_run("llama", bits=1.1)]
    entries = enter(gather(runs))
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


def test_recovery_over_training(tmp_path: Path) -> None:
    Results(tmp_path).append(make_rows(models=("flat",), steps=(0, 100, 300), count=3))
    panels = draw_data(enter(gather([tmp_path])))
    assert [p["x"] for p in panels["self [:, 0:, :] sweep, %"]] == [0, 100, 300]
    assert {p["value"] for p in panels["self [:, 0:, :] sweep, %"]} == {100}


@pytest.mark.parametrize("kind", ["svg", "png", "html"])
def test_plots_need_no_network(make_run: Make, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"plot.{kind}"
    assert run_compare(make_run("flat"), make_run("<llama> & co"), "--plot", file) == 0
    content = file.read_bytes()
    if kind == "png":
        assert content.startswith(b"\x89PNG")
        return
    text = content.decode()
    assert "prefers-color-scheme: dark" in text
    if kind == "svg":
        root = ET.fromstring(text)
        assert "<llama> & co" in "".join(root.itertext())
    else:
        assert "src=" not in text.partition("<body")[2][:2000]
        assert 'src="http' not in text


def test_many_models_are_drawn(make_run: Make, tmp_path: Path) -> None:
    runs = [make_run(f"m{chr(97 + i)}", bits=1 + i / 10) for i in range(8)]
    assert run_compare(*runs, "--plot", tmp_path / "p.svg") == 0
    text = (tmp_path / "p.svg").read_text()
    assert text.count("stroke-dasharray") >= 2  # where the colours begin anew


# Bad input.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none"], "none: nothing to compare here; give a model directory, a run, results, or"),
        (["run", "--sort", "speed"], "--sort speed: there is no such column; there are: "),
        (["run", "--sort", "nats"], "--sort nats: fits 2 columns; there are: "),
        (["run", "--columns", "x*"], "--columns x*: fits none of"),
        (["run", "--plot", "p.gif"], "--plot p.gif: must end in .svg or .png or .html"),
        (["run", "--plot", "p.svg", "--columns", "tokens"], "--plot p.svg: nothing was measured"),
        (["broken"], "metrics.jsonl, line 1: not a row of a run's figures"),
        (["text"], "config.yaml: not YAML; is it the config of a run?"),
        (["empty"], "its runs have not reported anything yet"),
        (["rows"], "rows.jsonl, line 1: not a row of results"),
    ],
)
def test_wrong_requests_get_one_line(
    make_run: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    make_run("run")
    monkeypatch.chdir(tmp_path / "runs")
    for name in ("broken", "text", "empty", "rows"):
        Path(name).mkdir()
    Path("broken/metrics.jsonl").write_text("[1]\n")
    Path("text/metrics.jsonl").write_text("")
    Path("text/config.yaml").write_text("a: [")
    Path("empty/metrics.jsonl").write_text("")
    Path("rows/rows.jsonl").write_text("{}\n")
    assert run_compare(*words) == 2
    assert message in complaint(capsys)
    assert not list(Path().glob("p.*"))


def test_a_file_that_cannot_be_written(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run_compare(make_run("run"), "--csv", tmp_path / "file" / "t.csv") == 2
    complaint(capsys)


def test_cells() -> None:
    column = columns_of("self")
    assert cell(column, None) == "–"
    assert cell(column, Figure(0.5, 0.25, 1.0)) == "50.0 (25.0–100)"


def columns_of(name: str) -> Any:
    from eval.compare.figures import Quantity
    from eval.compare.table import Column

    return Column(Quantity("recovery", name, (), True), name)
