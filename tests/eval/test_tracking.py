"""The W&B view of results, read back from W&B's own offline files."""

import json
import struct
from collections import defaultdict
from pathlib import Path

import pytest
import wandb
import wandb.errors
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

from eval.__main__ import main
from eval.rows import Results
from eval.summary import summarise
from eval.tracking import STEP, history, track_results
from tests.eval.report.cases import make_row, make_rows

ROWS = make_rows(models=("flat",), steps=(0, 100, 300), layers=(2, 4), count=3)
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


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A results directory reported to W&B, by the command."""
    directory = tmp_path_factory.mktemp("track")
    results, page = directory / "results", directory / "page.html"
    Results(results).append(ROWS)
    arguments = ["report", str(results), "--out", str(page), "--wandb", "offline"]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
            patch.setenv(name, str(directory / "home"))
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            patch.setenv(name, "http://127.0.0.1:9")  # a request would fail
        assert main([*arguments, "--wandb-project", "mine"]) == 0
    return directory


def the_file(tracked: Path) -> Path:
    (found,) = (tracked / "results" / "wandb").glob("offline-run-*/run-*.wandb")
    return found


def test_figures_are_logged_by_training_step(tracked):
    rows = [row for row in logged(offline_records(the_file(tracked))) if STEP in row]
    assert [row[STEP] for row in rows] == [0, 100, 300]
    expected = history(ROWS)
    for row, own in zip(rows, expected, strict=True):
        assert {k: v for k, v in row.items() if not k.startswith("_")} == pytest.approx(own)
    name = "invert/layer4/[:, 3:, :]/alternating/nonself"
    assert [row[name] for row in rows] == [1.0, 1.0, 1.0]
    assert rows[0]["invert/layer2/[:, 0:, :]/sweep/exact"] == 1


def test_the_training_step_is_the_axis(tracked):
    metrics = offline_records(the_file(tracked))["metric"]
    followed = [(m.glob_name, m.step_metric) for m in metrics if m.glob_name]
    assert followed == [("invert/*", STEP)]


def test_table_and_page_are_logged(tracked):
    records = offline_records(the_file(tracked))
    rows = logged(records)
    files = the_file(tracked).parent / "files"
    page = next(row for row in rows if "page/path" in row)
    assert page["page/_type"] == "html-file"
    assert (files / page["page/path"]).read_text() == (tracked / "page.html").read_text()
    path = next(row["summary/path"] for row in rows if "summary/path" in row)
    table = json.loads((files / path).read_text())
    records_ = summarise(ROWS)
    assert table["columns"] == list(records_[0])
    assert len(table["data"]) == len(records_)
    artifact = next(a for a in records["artifact"] if a.type == "results")
    assert {entry.path for entry in artifact.manifest.contents} == {"summary.csv", "page.html"}
    for entry in artifact.manifest.contents:  # what `wandb sync` uploads lies with the results
        assert Path(entry.local_path).is_relative_to(tracked / "results")
        assert Path(entry.local_path).is_file()


def test_the_run_belongs_to_the_results(tracked):
    (run,) = offline_records(the_file(tracked))["run"]
    assert run.run_id == (tracked / "results" / "wandb_id").read_text()
    assert (run.project, run.display_name, run.job_type) == ("mine", "results", "invert")


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
    assert error.startswith("error: --wandb online: No API key configured.; log in with `wandb")
    assert error.count("\n") == 1
    assert page.is_file()  # which needs no account


def names(rows):
    return {key for figures in history(rows) for key in figures}


def test_names_tell_apart_only_what_differs():
    assert "invert/layer4/[:, 3:, :]/descent/self" in names([make_row()])
    pair = [make_row(), make_row("flat")]
    assert "invert/flat/layer4/[:, 3:, :]/descent/self" in names(pair)
    others = [
        make_row(prompts="random"),
        make_row() | {"key": "n", "noise": 0.5},
        make_row() | {"key": "c", "control": "shuffled"},
        make_row() | {"key": "w", "site": {"layer": 4, "part": "mixer", "without": ["norm"]}},
        make_row() | {"key": "p", "padded": True, "observed": 61},
        make_row() | {"key": "s", "settings": {"steps": 9, "rate": 2}},
    ]
    found = names([make_row(), *others])
    assert len([name for name in found if name.endswith("/self")]) == 7
    settings = "descent steps=500 rate=0.02/self"
    for middle in (
        "layer4/[:, 3:, :]/13 observed",
        "layer4/[:, 3:, :]/13 observed/random",
        "layer4/[:, 3:, :]/13 observed/noise 0.5",
        "layer4/[:, 3:, :]/13 observed/shuffled",
        "layer4 mixer/[:, 3:, :]/13 observed/without norm",
        "layer4/[:, 3:, :]/61 observed/padded",
    ):
        assert f"invert/{middle}/{settings}" in found


def test_what_is_not_known_is_not_logged():
    assert not any("margin_bits" in name for name in names([make_row(method="adam")]))
