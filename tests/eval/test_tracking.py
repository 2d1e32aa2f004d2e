"""The W&B view of rows of every kind, read back from its offline files."""

import json
import re
import struct
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import vl_convert
import wandb
import wandb.errors
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

from eval.__main__ import main
from eval.rows import Results
from eval.summary import sum_up
from eval.tracking import STEP, _link, history, models_used, track_results
from tests.eval.report.cases import about, checkpoint_of, every_kind, lens, make_row, make_rows
from tests.train.cases import fit, pack_toy
from train.log import architecture

ROWS = [*make_rows(models=("flat",), steps=(0, 100, 300), layers=(2, 4), count=3),
        *every_kind(about(0)), *every_kind(about(100))]  # fmt: skip
BLOCK, HEADER = 32768, 7


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
    Results(results).append(ROWS)
    arguments = ["report", str(results), "--out", str(page), "--wandb", "offline"]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            patch.setenv(name, "http://127.0.0.1:9")  # a request would fail
        assert main([*arguments, "--wandb-project", "mine"]) == 0
    return directory


def file_of(results: Path) -> Path:
    (file,) = (results / "wandb").glob("offline-run-*/run-*.wandb")
    return file


@pytest.fixture(scope="module")
def records(tracked):
    """What the report's command logged, by kind."""
    return offline_records(file_of(tracked / "results"))


def test_figures_are_logged_by_training_step(records):
    rows = [row for row in logged(records) if STEP in row]
    assert [row[STEP] for row in rows] == [0, 100, 300]
    for row, expected in zip(rows, history(ROWS), strict=True):
        assert {k: v for k, v in row.items() if not k.startswith("_")} == pytest.approx(expected)
    axes = {(m.glob_name, m.step_metric) for m in records["metric"] if m.glob_name}
    kinds = ("geometry", "invert", "lens", "loss", "probe")
    assert axes == {(f"{kind}/*", STEP) for kind in kinds}


def test_table_and_page_are_logged(tracked, records):
    rows = logged(records)
    files = file_of(tracked / "results").parent / "files"
    page = next(row for row in rows if "page/path" in row)
    assert (files / page["page/path"]).read_text() == (tracked / "page.html").read_text()
    path = next(row["summary/path"] for row in rows if "summary/path" in row)
    table = json.loads((files / path).read_text())
    summed = sum_up(ROWS)
    assert table["columns"] == list(summed[0])
    assert len(table["data"]) == len(summed)
    artifact = next(a for a in records["artifact"] if a.type == "results")
    assert {entry.path for entry in artifact.manifest.contents} == {"summary.csv", "page.html"}
    for entry in artifact.manifest.contents:  # what `wandb sync` uploads lies with the results
        assert Path(entry.local_path).is_relative_to(tracked / "results")
        assert Path(entry.local_path).is_file()


def test_the_run_belongs_to_the_results(tracked, records):
    (run,) = records["run"]
    assert run.run_id == (tracked / "results" / "wandb_id").read_text()
    assert (run.project, run.display_name, run.job_type) == ("mine", "results", "invert")
    assert run.run_group == architecture(ROWS[0]["checkpoint"])


class Quiet:
    """Stands for a W&B run."""

    def __init__(self, **arguments):
        self.arguments, self.id, self.logged, self.ended = arguments, arguments["id"], [], None

    def define_metric(self, *_, **__):
        pass

    def log(self, figures):
        self.logged.append(figures)

    def log_artifact(self, artifact):
        pass

    def finish(self, exit_code=0):
        self.ended = exit_code


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Runs begun, without W&B's processes."""
    begun = []

    def init(**arguments):
        begun.append(Quiet(**arguments))
        return begun[-1]

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    return begun


def test_again_is_the_same_run(runs, tmp_path):
    rows = [make_row()]
    first = track_results(tmp_path, rows)
    assert track_results(tmp_path, rows, mode="online", project="other") == first
    assert track_results(tmp_path / "other", rows) != first
    assert [run.arguments["mode"] for run in runs] == ["offline", "online", "offline"]
    assert [run.arguments["resume"] for run in runs] == [None, "allow", None]
    assert [run.ended for run in runs] == [0, 0, 0]


def test_a_run_that_fails_says_so(runs, tmp_path):
    with pytest.raises(OSError, match=r"no\.html"):
        track_results(tmp_path, [make_row()], page=tmp_path / "no.html")
    assert runs[0].ended == 1


def test_online_without_an_account_is_one_line(tmp_path, monkeypatch, capsys):
    def unknown(**_):
        raise wandb.errors.UsageError("No API key\nconfigured.")

    monkeypatch.setattr(wandb, "init", unknown)
    Results(tmp_path / "results").append([make_row()])
    page = tmp_path / "page.html"
    arguments = ["report", str(tmp_path / "results"), "--out", str(page), "--wandb", "online"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --wandb online: No API key configured.")
    assert error.count("\n") == 1
    assert page.is_file()  # which needs no account


def names(rows):
    return {key for figures in history(rows) for key in figures}


def test_names_tell_apart_only_what_differs():
    plain = make_row()
    changes = {
        "layer4/[:, 3:, :]/13 observed": {},
        "layer4/[:, 3:, :]/13 observed/random": {"prompts": "random"},
        "layer4/[:, 3:, :]/13 observed/noise 0.5": {"noise": 0.5},
        "layer4/[:, 3:, :]/13 observed/shuffled": {"control": "shuffled"},
        "layer4 mixer/[:, 3:, :]/13 observed/without norm": {
            "site": {"layer": 4, "part": "mixer", "without": ["norm"]}
        },
        "layer4/[:, 3:, :]/61 observed/padded": {"padded": True, "observed": 61},
    }
    assert "invert/layer4/[:, 3:, :]/descent/self" in names([plain])
    assert "invert/flat/layer4/[:, 3:, :]/descent/self" in names([plain, make_row("flat")])
    other = {"key": "s", "settings": {"steps": 9, "rate": 2}}
    found = names([plain | {"key": name} | own for name, own in changes.items()] + [plain | other])
    assert len([name for name in found if name.endswith("/self")]) == 7
    for middle in changes:
        assert f"invert/{middle}/descent steps=500 rate=0.02/self" in found
    assert not any("margin_bits" in name for name in names([make_row(method="adam")]))


def test_every_kind_of_row_is_a_series_over_the_steps():
    first, last = history([*every_kind(about(100)), *every_kind(about(0))])
    assert (first[STEP], last[STEP]) == (0, 100)
    assert set(first) == set(last)  # one name for all checkpoints
    assert last["lens/norm/layer 1/lens residual/prompts 4/prompt_kind story"] == 102.0
    assert last["geometry/sigma min/layer last/part block/hidden 0"] == 0.5


def test_two_seeds_of_one_name_are_pooled_and_other_models_told_apart():
    name = "norm/layer 1/lens residual/prompts 4/prompt_kind story"
    seeds = [lens(about(0, "a"), 1.0), lens(about(0, "b"), 3.0)]
    (figures,) = history(seeds)
    assert figures[f"lens/{name}"] == 2.0
    wide = checkpoint_of(about(0, "c"), d_model=512)
    (figures,) = history([*seeds, lens(wide, 9.0)])
    assert figures[f"lens/flat (d_model 128)/{name}"] == 2.0
    assert figures[f"lens/flat (d_model 512)/{name}"] == 9.0


def test_the_group_of_a_training_is_that_of_its_evaluations(tmp_path, small_tokenizer):
    data, run = pack_toy(small_tokenizer, tmp_path / "packed", 200).path, tmp_path / "run"
    assert fit(data, run, "--wandb", "offline", "--trainer.max_steps", "2") == 0
    records = offline_records(file_of(run))
    assert {"val_bits_per_byte", "tokens_seen"} <= {key for row in logged(records) for key in row}
    assert records["run"][0].run_group == "flat d16 n2"


def test_the_chart_is_drawn_of_columns_of_the_summary():
    chart = (Path(__file__).parents[2] / "docs" / "wandb-recovery.vl.json").read_text()
    records = sum_up(make_rows(count=2))
    fields = set(re.findall(r"datum\['(\w+)'\]", chart))
    assert {"nonself"} <= fields <= records[0].keys()
    assert "alternating" in vl_convert.vegalite_to_svg(
        json.loads(chart) | {"data": {"values": records}}
    )


def test_several_architectures_have_no_group(tmp_path):
    rows = make_rows(steps=(0,), layers=(4,), count=1)
    track_results(tmp_path, rows)
    (run,) = offline_records(file_of(tmp_path))["run"]
    assert run.run_group == ""


def test_models_are_linked_by_their_run_and_one_that_is_not_there_is_said(tmp_path, capsys):
    def asked(path):
        row = make_row()
        return row | {"checkpoint": row["checkpoint"] | {"path": str(path)}}

    first = tmp_path / "run" / "models" / "step-000100"
    other = tmp_path / "moved" / "step-000200"
    for path in (first, other):
        path.mkdir(parents=True)
    (tmp_path / "run" / "wandb_id").write_text("abc123\n")
    rows = [asked(first), asked(first), asked(other), asked(tmp_path / "gone")]
    used: list[str] = []
    _link(SimpleNamespace(use_artifact=used.append), rows)
    assert used == models_used(rows) == ["model-abc123:step-000100"]

    def missing(name):
        raise wandb.errors.CommError("no such artifact")

    _link(SimpleNamespace(use_artifact=missing), rows)
    assert "model-abc123:step-000100 is not there" in capsys.readouterr().err
