"""The W&B view of rows of every kind, read back from its offline files."""

import json
import re
import struct
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import wandb
import wandb.errors
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

from eval.__main__ import main
from eval.analysis.summary import sum_up
from eval.rows.store import Results
from eval.views.tracking import STEP, _link, history, models_used, track_results
from tests.eval.views.page.cases import about, bits_row, every_kind, make_row, make_rows

FLAT = [*make_rows(models=("flat",), steps=(0, 100, 300), layers=(2, 4), count=3),
        *every_kind(about(0)), *every_kind(about(100))]  # fmt: skip
LLAMA = make_rows(models=("llama",), steps=(0, 300), layers=(4,), count=2)
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


def test_each_model_is_a_run_whose_figures_are_logged_by_training_step(runs_of_two):
    assert set(runs_of_two) == {"flat", "llama"}
    for (_, records), expected in zip(
        (runs_of_two[name] for name in ("flat", "llama")), (FLAT, LLAMA), strict=True
    ):
        rows = [row for row in logged(records) if STEP in row]
        assert [row[STEP] for row in rows] == sorted(
            {row["checkpoint"]["step"] for row in expected}
        )
        for row, figures in zip(rows, history(expected), strict=True):
            assert {k: v for k, v in row.items() if not k.startswith("_")} == pytest.approx(figures)
        axes = {(m.glob_name, m.step_metric) for m in records["metric"] if m.glob_name}
        assert axes == {(f"{row['kind']}/*", STEP) for row in expected}


def test_table_and_page_are_logged(tracked, runs_of_two):
    file, records = runs_of_two["flat"]
    rows, files = logged(records), file.parent / "files"
    page = next(row for row in rows if "page/path" in row)
    assert (files / page["page/path"]).read_text() == (tracked / "page.html").read_text()
    path = next(row["summary/path"] for row in rows if "summary/path" in row)
    table = json.loads((files / path).read_text())
    summed = sum_up(FLAT)
    assert table["columns"] == list(summed[0])
    assert len(table["data"]) == len(summed)
    artifact = next(a for a in records["artifact"] if a.type == "results")
    assert {entry.path for entry in artifact.manifest.contents} == {"summary.csv", "page.html"}
    for entry in artifact.manifest.contents:  # what `wandb sync` uploads lies with the results
        assert Path(entry.local_path).is_relative_to(tracked / "results")
        assert Path(entry.local_path).is_file()


def test_again_is_the_same_run(monkeypatch, tmp_path):
    """Runs are begun with what they were begun with before; W&B's processes are left out."""
    begin = MagicMock(side_effect=lambda **asked: MagicMock(id=asked["id"]))
    monkeypatch.setattr(wandb, "init", begin)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    rows = [make_row(), make_row("flat")]
    first = track_results(tmp_path, rows)
    assert len(set(first)) == 2
    assert track_results(tmp_path, rows, mode="online", project="other") == first
    assert set(track_results(tmp_path / "other", rows)).isdisjoint(first)
    asked = [call.kwargs for call in begin.call_args_list]
    assert [each["name"] for each in asked] == ["llama", "flat"] * 3
    assert [each["mode"] for each in asked[::2]] == ["offline", "online", "offline"]
    assert [each["resume"] for each in asked[::2]] == [None, "allow", None]


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
    return {key for figures in history(rows) for key in figures} - {STEP}


def test_a_name_is_made_of_its_own_figure_alone():
    plain = make_row()
    changes = {
        "layer last/[:, 3:, :]": {},
        "layer last/[:, 3:, :]/random": {"prompts": "random"},
        "layer last/[:, 3:, :]/noise 0.5": {"noise": 0.5},
        "layer last/[:, 3:, :]/shuffled": {"control": "shuffled"},
        "layer 2 mixer/[:, 3:, :]/without norm": {
            "site": {"layer": 2, "part": "mixer", "without": ["norm"]}
        },
        "layer last/[:, 3:, :]/padded": {"padded": True, "observed": 61},
    }
    several = [plain | {"key": name} | own for name, own in changes.items()]
    several.append(plain | {"key": "s", "settings": {"steps": 9, "rate": 2}})
    found = names([*several, *every_kind(plain["checkpoint"])])
    for where, row in zip(changes, several, strict=False):
        assert f"recovery/{where}/descent steps=500 rate=0.02/self" in found
        assert names([row]) <= found  # whatever else is there
    assert "recovery/layer last/[:, 3:, :]/descent steps=9 rate=2/self" in found
    assert len([name for name in found if name.endswith("/self")]) == 7
    assert not any("margin_bits" in name for name in names([make_row(solver="adam")]))


def test_the_keys_that_the_docs_list_are_logged():
    page = (Path(__file__).parents[3] / "docs" / "wandb.md").read_text()
    listed = re.findall(
        r"^\| `((?:recovery|loss|probe|geometry|lens|bits)/[^`]+/[^`]+)` \|", page, re.M
    )
    logged = names([*FLAT, *(bits_row(about(0), 0, 2.0),)])
    assert {name.partition("/")[0] for name in listed} == {row["kind"] for row in FLAT} | {"bits"}
    for name in listed:
        pattern = re.sub(r"[A-Z]+", ".+", re.escape(name))
        assert any(re.fullmatch(pattern, key) for key in logged), name


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
