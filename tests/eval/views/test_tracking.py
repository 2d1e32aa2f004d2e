"""The W&B view of rows of every kind, read back from its offline files."""

import json
import re
import struct
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import wandb
import wandb.errors
import yaml
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

from eval.__main__ import main
from eval.analysis.frame import frame
from eval.analysis.summary import summarise_rows
from eval.lenses.lens import lenses
from eval.messages import RequestError
from eval.rows.store import Results
from eval.views.comparison.table import FIGURES, checkpoint_records
from eval.views.tracking import (
    STEP,
    TOKENS,
    _link,
    every_figure,
    history,
    models_used,
    track_results,
    training_config,
)
from tests.eval.views.page.cases import (
    about,
    bits_row,
    control_of,
    every_kind,
    lens,
    make_row,
    make_rows,
    renamed,
)

FLAT = [*make_rows(models=("flat",), steps=(0, 100, 300), layers=(2, 4), count=3),
        *every_kind(about(0)), *every_kind(about(100))]  # fmt: skip
LLAMA = make_rows(models=("llama",), steps=(0, 300), layers=(4,), count=2)
BLOCK, HEADER = 32768, 7
DOCS = Path(__file__).parents[3] / "docs"


def offline_records(path: Path) -> dict[str, list]:
    """The records of a W&B offline file, by kind.

    It is a LevelDB log: seven bytes of W&B, then blocks of checksummed pieces of records.
    """
    wandb.teardown()  # its process has written all when it has ended
    raw, at, piece = path.read_bytes(), 7, b""
    assert raw[:4] == b":W&B"
    found = defaultdict(list)
    while at + HEADER <= len(raw):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", raw[at : at + HEADER])
        piece += raw[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = Record.FromString(piece)
            name = record.WhichOneof("record_type")
            found[name].append(getattr(record, name))
            piece = b""
    return found


def logged(records: dict[str, list]) -> list[dict]:
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in h.item}
        for h in records["history"]
    ]


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory):
    """W&B's own files lie apart."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A results directory reported to W&B, by the command."""
    directory = tmp_path_factory.mktemp("track")
    results, page = directory / "results", directory / "page.html"
    Results(results).append([*FLAT, *LLAMA])
    arguments = ["report", str(results), "--out", str(page), "--wandb", "offline"]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            patch.setenv(name, "http://127.0.0.1:9")  # a request would fail
        assert main([*arguments, "--wandb-project", "mine"]) == 0
    return directory


def files_of(results: Path) -> list[Path]:
    return sorted((results / "wandb").glob("offline-run-*/run-*.wandb"))


@pytest.fixture(scope="module")
def runs_of_two(tracked):
    """What the report's command logged of two models: the file and the records of each run."""
    found = {}
    for file in files_of(tracked / "results"):
        records = offline_records(file)
        found[records["run"][0].display_name] = file, records
    return found


@pytest.mark.parametrize(
    ("mode", "ends", "left"),
    [("offline", None, True), ("online", None, False), ("online", TimeoutError, True)],
)
def test_a_report_says_what_is_left_to_upload(mode, ends, left, tmp_path, monkeypatch, capsys):
    """Not the earlier reports of a run; online, what has not arrived when the network is gone."""
    run = MagicMock(id="ab", **{"finish.side_effect": ends, "settings.sync_dir": "my results/ab"})
    monkeypatch.setattr(wandb, "init", lambda **_: run)
    Results(tmp_path / "results").append([make_row()])
    words = [tmp_path / "results", "--out", tmp_path / "page.html", "--wandb", mode]
    assert main(["report", *map(str, words)]) == 0
    assert ("wandb sync 'my results/ab'\n" in capsys.readouterr().out) == left


@pytest.mark.slow
def test_each_model_is_a_run_whose_figures_are_logged_by_training_step(runs_of_two):
    assert set(runs_of_two) == {"flat", "llama"}
    for name, expected in (("flat", FLAT), ("llama", LLAMA)):
        _, records = runs_of_two[name]
        rows = [row for row in logged(records) if STEP in row]
        steps = {row["checkpoint"]["step"] for row in expected}
        assert [row[STEP] for row in rows] == sorted(steps)
        known = history(expected, checkpoint_records([], expected))
        for row, figures in zip(rows, known, strict=True):
            assert {k: v for k, v in row.items() if not k.startswith("_")} == pytest.approx(figures)
        axes = {(m.glob_name, m.step_metric) for m in records["metric"] if m.glob_name}
        assert axes == {("eval/*", STEP), ("lens/*", STEP)}
        undrawn = {metric.name for metric in records["metric"] if metric.options.hidden}
        counts = {name for row in rows for name in row if name.endswith("_n")}
        assert {STEP, TOKENS} | counts <= undrawn  # a count is no curve
        assert not undrawn & {"eval/shown", "lens/residual"}


@pytest.mark.slow
def test_table_and_page_are_logged(tracked, runs_of_two):
    file, records = runs_of_two["flat"]
    rows, files = logged(records), file.parent / "files"
    page = next(row for row in rows if "page/path" in row)
    assert (files / page["page/path"]).read_text() == (tracked / "page.html").read_text()
    path = next(row["figures/path"] for row in rows if "figures/path" in row)
    table = json.loads((files / path).read_text())
    lines = [dict(zip(table["columns"], line, strict=True)) for line in table["data"]]
    assert {line["kind"] for line in lines} == {row["kind"] for row in FLAT}
    for record in summarise_rows(FLAT):
        where = {n: record[n] for n in ("step", "layer", "slice", "solver", "settings")}
        (line,) = [
            line for line in lines if line["quantity"] == "self" and where.items() <= line.items()
        ]
        assert line["value"] == pytest.approx(record["self"])
    artifact = next(a for a in records["artifact"] if a.type == "results")
    assert {entry.path for entry in artifact.manifest.contents} == {"summary.csv", "page.html"}
    for entry in artifact.manifest.contents:  # what `wandb sync` uploads lies with the results
        assert Path(entry.local_path).is_relative_to(tracked / "results")
        assert Path(entry.local_path).is_file()


def test_again_is_the_same_run(monkeypatch, tmp_path):
    """Runs are begun with what they were begun with before, and replaced: every report is whole."""
    begin = MagicMock(side_effect=lambda **asked: MagicMock(id=asked["id"]))
    monkeypatch.setattr(wandb, "init", begin)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    rows = [make_row(), renamed(make_row("flat"), "n" * 140)]
    rows[0]["checkpoint"]["mixers"] = ["attention"] * 20
    first = track_results(tmp_path, rows)
    assert len(first) == 2
    assert track_results(tmp_path, rows, mode="online", project="other").keys() == first.keys()
    assert track_results(tmp_path / "other", rows).keys().isdisjoint(first)
    asked = [call.kwargs for call in begin.call_args_list]
    assert [each["name"] for each in asked] == ["llama", "n" * 128] * 3  # W&B refuses longer ones
    assert {len(each["group"]) for each in asked[::2]} == {128}
    assert [each["mode"] for each in asked[::2]] == ["offline", "online", "offline"]
    assert not any(each.get("resume") for each in asked)


@pytest.mark.parametrize(
    ("begin", "says"),
    [
        (MagicMock(side_effect=wandb.errors.UsageError("No API key\nset.")), "No API key set."),
        (lambda **_: wandb.Settings(base_url="wandb.company.com"), "base_url"),
    ],
)
def test_online_without_a_server_is_one_line(begin, says, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wandb, "init", begin)
    Results(tmp_path / "results").append([make_row()])
    page = tmp_path / "page.html"
    words = [tmp_path / "results", "--out", page, "--wandb", "online"]
    assert main(["report", *map(str, words)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --wandb online: ")
    assert says in error
    assert error.count("\n") == 1
    assert page.is_file()  # which needs no account


def test_few_keys_are_logged_by_names_that_can_be_sorted():
    """Whatever one model is asked: at most 40."""
    whole = [*FLAT, bits_row(about(0), 0, 2.0)]
    whole += [
        lens(about(100), 1.0) | {"key": f"{name} {figure}", "lens": name, "figure": figure, **where}
        for name, entry in lenses().items()
        for figure, where in entry.main
    ]
    keys = set().union(*history(whole, checkpoint_records([], whole)))
    assert len(keys) <= 40
    assert all(re.fullmatch(r"(?:[a-z]+/)?[_a-zA-Z][_a-zA-Z0-9]*", key) for key in keys)
    assert {f"lens/{name}" for name in lenses()} <= keys
    columns = {"bits_per_byte", "shown", "hidden_1", "hidden_3", "bits_at_4"}
    assert {f"eval/{n}" for n in columns} | {f"eval/{n}_n" for n in columns} | {STEP} == {
        key for key in keys if not key.startswith("lens/")
    } - {TOKENS}


def test_a_table_is_strict_json():
    """W&B writes its file of a table as it is: -Infinity could not be read."""
    row = bits_row(about(100), 0, 4.0) | {"margin_bits": {"alone": [9.0, None]}}
    records = every_figure([row], frame([row]))
    assert "-inf" in [record["value"] for record in records]
    json.dumps(records, allow_nan=False)


def test_a_bar_of_the_pasted_chart_is_one_plain_figure_of_the_last_layer():
    import vl_convert

    others = [{"noise": 0.5}, {"padded": True}, {"control": "shuffled"},
              {"site": {"layer": 4, "part": "block", "without": ["norms"]}},
              {"site": {"layer": 4, "part": "mixer"}}]  # fmt: skip
    plain = [make_row(hidden=3, solver="adam", prompt=n, seed=n // 4) for n in range(8)]
    changes = [{}, {"prompts": "inside"}, {"settings": {"steps": 9}}]
    bars = [row | change | {"key": f"{row['key']} {change}"} for change in changes for row in plain]
    rows = [*bars, *(make_row(layer=2, hidden=3, solver="adam", prompt=n) for n in range(8))]
    rows += [row | other | {"key": f"{row['key']} {other}"} for row in plain for other in others]
    chart = json.loads((DOCS / "wandb-recovery.vl.json").read_text())
    chart["data"] = {"values": every_figure(rows, frame(rows))}
    svg = vl_convert.vegalite_to_svg(chart)
    for name, end in ("recovered, %", ""), ("lowest", "_low"), ("highest", "_high"):
        drawn = [float(value) for value in re.findall(rf'"solver: [^"]*{name}: ([\d.]+)', svg)]
        assert drawn == pytest.approx([100 * r[f"nonself{end}"] for r in summarise_rows(bars)])


def tracked_runs(monkeypatch, directory, rows):
    """What W&B's runs of rows are begun with, and what is logged to each, by its name."""
    runs: dict[str, Any] = {}

    def begin(**asked):
        run = MagicMock(id=asked["id"])
        runs[asked["name"]] = asked, run
        return run

    monkeypatch.setattr(wandb, "init", begin)
    monkeypatch.setattr(wandb, "Table", lambda columns, data, **_: [columns, *data])
    track_results(directory, rows)
    return {name: (asked, [call.args[0] for call in run.log.call_args_list])
            for name, (asked, run) in runs.items()}  # fmt: skip


def test_a_control_is_no_checkpoint_of_its_model(monkeypatch, tmp_path):
    """But its figures stand in the table."""
    plain = make_row("flat")
    plain["checkpoint"] |= {"name": "flat-s0", "tokens_seen": 9}
    identity = {"step": 0, "tokens_seen": 9, "mixers": ["identity"], "parameters": 1}
    fresh = control_of(plain, "scale=1", model_id="fresh")  # of a model without an id of training
    rows = [plain, control_of(plain, "identity", **identity), fresh]
    runs = tracked_runs(monkeypatch, tmp_path, rows)
    assert runs.keys() == {"flat-s0", "flat-s0 [scale=1]"}
    asked, logged = runs["flat-s0"]
    assert [asked["config"][n] for n in ("mixers", "parameters")] == [["flat"], 1_234_567]
    assert [(line[STEP], line[TOKENS]) for line in logged if STEP in line] == [(300, 9)]
    columns, *lines = next(line["figures"] for line in logged if "figures" in line)
    about = [columns.index(name) for name in ("control", "step", TOKENS)]
    found = {tuple(line[i] for i in about) for line in lines}
    assert found == {("", 300, 9), ("identity", 0, None)}


def test_a_key_is_one_question_of_all_models_as_a_column_of_compare_is(monkeypatch, tmp_path):
    """By itself each model had the figures of its own search, or of its own prompts."""
    rows = [make_row("flat", 300, 4, 0, "sweep"), make_row("llama", 300, 4, 0, "sweep", length=17)]
    rows[1]["solver"] = "propose"
    logged = {name: lines for name, (_, lines) in tracked_runs(monkeypatch, tmp_path, rows).items()}
    for record in checkpoint_records([], rows):
        (figures,) = (each for each in logged[record["model"]] if STEP in each)
        assert figures.get("eval/shown") == record["shown"]
    kinds = set()
    for each in logged.values():
        columns, *lines = next(line["figures"] for line in each if "figures" in line)
        kinds |= {line[columns.index("prompt_kind")] for line in lines}
    assert kinds == {f"story of {row['length']} tokens" for row in rows}


@pytest.mark.parametrize("row", [*every_kind(about(0)), bits_row(about(0), 0, 2.0)],
                         ids=lambda row: f"{row['key']}")  # fmt: skip
def test_results_without_recoveries_are_logged_or_refused_in_a_line(row, monkeypatch, tmp_path):
    run, tables = MagicMock(id="a"), []
    monkeypatch.setattr(wandb, "init", lambda **_: run)
    monkeypatch.setattr(wandb, "Table", lambda columns, data, **_: tables.append(data))
    if frame([row]).empty:
        with pytest.raises(RequestError, match="no figures: there is nothing to log"):
            track_results(tmp_path, [row])
    else:
        assert list(track_results(tmp_path, [row])) == ["a"]
        assert [len(data) > 0 for data in tables] == [True]


def test_an_evaluation_has_the_config_of_the_training(tmp_path):
    path = tmp_path / "run" / "models" / "step-000100"
    path.mkdir(parents=True)
    (path / "meta.json").write_text(json.dumps({"data_sha256": "abc"}))
    settings = {"run": "there", "recipe": "flat", "optimizer": {"lr": 0.1}, "wandb": "online"}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "run" / "metrics.jsonl").touch()
    row = make_row()
    there = row | {"checkpoint": row["checkpoint"] | {"path": str(path), "parameters": 7}}
    identity = row["checkpoint"]["model_id"]
    assert training_config([there]) == {
        "recipe": "flat", "optimizer": {"lr": 0.1}, "data_sha256": "abc", "parameters": 7,
        "model_id": identity,
    }  # fmt: skip
    (tmp_path / "run" / "config.yaml").write_text("- no settings")
    with pytest.raises(RequestError, match=r"config\.yaml"):
        training_config([there])
    gone = training_config([row])
    assert (gone["model_id"], gone["d_model"]) == (identity, row["checkpoint"]["d_model"])
    (tmp_path / "run" / "wandb_id").write_text("new")
    (path / "meta.json").write_text(json.dumps({"data_sha256": "new", "model_id": "llama-new"}))
    assert models_used([there]) == []  # it was asked of what lay there before
    assert training_config([there]) == gone | {"parameters": 7}


@pytest.mark.parametrize(("name", "record"), [("m", "metrics.jsonl"), ("models/m", "other")])
def test_the_config_of_another_project_around_a_model_is_not_read(name, record, tmp_path):
    """It was uploaded whole, with its passwords."""
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "meta.json").write_text('{"step": 0}')
    (tmp_path / "config.yaml").write_text("password: x")
    (tmp_path / record).touch()
    (tmp_path / "wandb_id").write_text("theirs")
    row = make_row()
    row["checkpoint"]["path"] = str(tmp_path / name)
    assert "password" not in training_config([row])
    assert name != "m" or models_used([row]) == []


def test_the_keys_that_the_docs_list_are_logged():
    page = (DOCS / "wandb.md").read_text()
    listed = set(re.findall(r"^\| `((?:eval|lens)/\w+)` \|", page, re.M))
    logged = {f"eval/{figure.name}" for figure in FIGURES} | {f"lens/{name}" for name in lenses()}
    assert listed == logged


def test_models_are_linked_by_their_run_and_one_that_is_not_there_is_said(tmp_path, capsys):
    def asked(path):
        row = make_row()
        return row | {"checkpoint": row["checkpoint"] | {"path": str(path)}}

    first = tmp_path / "run" / "models" / "step-000100"
    best, other = tmp_path / "run" / "best", tmp_path / "moved" / "step-000200"
    for path in (first, best, other):
        path.mkdir(parents=True)
    (tmp_path / "run" / "wandb_id").write_text("abc123\n")
    put_together = make_row()
    del put_together["checkpoint"]["path"]
    rows = [*map(asked, (first, first, best, other, tmp_path / "x" / "gone")), put_together]
    used: list[str] = []
    _link(SimpleNamespace(use_artifact=used.append), rows)
    assert used == models_used(rows) == ["model-abc123:step-000100", "model-abc123:best"]

    def missing(name):
        raise wandb.errors.CommError("no such artifact")

    _link(SimpleNamespace(use_artifact=missing), rows)
    assert "model-abc123:step-000100 is not linked" in capsys.readouterr().err
