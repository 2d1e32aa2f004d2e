"""The report's template names what W&B's offline files hold; evaluations name their models."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vl_convert
import wandb
import wandb.errors

from eval.rows import Results
from eval.summary import summarise
from eval.tracking import STEP, _link, models_used, track_results
from tests.eval.report.cases import make_row, make_rows
from tests.eval.test_tracking import logged, offline_records
from tests.train.cases import fit, pack_toy
from train.log import architecture

DOCS = Path(__file__).resolve().parents[2] / "docs"
REPORT = (DOCS / "wandb-report.md").read_text()
CHART = json.loads((DOCS / "wandb-recovery.vl.json").read_text())
WANDB_OWN = {"Group", "train", "invert", "summary"}


def section(title: str) -> str:
    return REPORT.partition(f"## {title}")[2].partition("\n## ")[0]


def file_of(directory: Path) -> Path:
    (found,) = (directory / "wandb").glob("offline-run-*/run-*.wandb")
    return found


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


def test_training_logs_what_the_report_draws(tmp_path, small_tokenizer):
    data, run = pack_toy(small_tokenizer, tmp_path / "packed", 200).path, tmp_path / "run"
    assert fit(data, run, "--wandb", "offline", "--trainer.max_steps", "2") == 0
    wandb.teardown()  # its process has written all when it has ended
    records = offline_records(file_of(run))
    known = {key for row in logged(records) for key in row}
    named = set(re.findall(r"`([^`]+)`", section("Training"))) - WANDB_OWN
    assert {"val_bits_per_byte", "tokens_seen"} <= named
    assert named <= known
    assert records["run"][0].run_group == "flat d16 n2"


def test_evaluations_log_what_the_report_draws(tmp_path):
    rows = make_rows(models=("flat",), steps=(0, 300), layers=(4,), count=2)
    Results(tmp_path / "results").append(rows)
    track_results(tmp_path / "results", rows)
    records = offline_records(file_of(tmp_path / "results"))
    known = {key for row in logged(records) for key in row}
    text = section("What can be recovered, over training")
    patterns = re.findall(r"\| `(invert/[^`]+)` \|", text)
    assert len(patterns) == 4
    for pattern in patterns:
        assert any(re.fullmatch(pattern, key) for key in known), pattern
    assert f"`{STEP}`" in text
    assert STEP in known
    assert "summary/path" in known
    (run,) = records["run"]
    about = rows[0]["checkpoint"]
    assert (run.run_group, run.job_type) == (architecture(about), "invert")


def test_the_chart_is_over_columns_of_the_summary():
    text = json.dumps(CHART)
    columns = set(summarise([make_row()])[0])
    fields = set(re.findall(r"datum\['(\w+)'\]", text))
    fields |= set(re.findall(r'"field": "(\w+)"', text)) - {"share", "low", "high"}
    assert {"nonself", "nonself_low", "step", "method"} <= fields
    assert fields <= columns


def test_the_chart_can_be_drawn():
    records = summarise(make_rows(count=2))
    svg = vl_convert.vegalite_to_svg({**CHART, "data": {"values": records}})
    assert "alternating" in svg
    assert "hidden tokens recovered" in svg


def test_several_architectures_have_no_group(tmp_path):
    rows = make_rows(steps=(0,), layers=(4,), count=1)
    track_results(tmp_path, rows)
    (run,) = offline_records(file_of(tmp_path))["run"]
    assert run.run_group == ""


def asked(path: Path) -> dict[str, Any]:
    row = make_row()
    return row | {"checkpoint": row["checkpoint"] | {"path": str(path)}}


def test_models_are_named_by_their_run(tmp_path):
    first = tmp_path / "run" / "models" / "step-000100"
    other = tmp_path / "moved" / "step-000200"
    for path in (first, other):
        path.mkdir(parents=True)
    (tmp_path / "run" / "wandb_id").write_text("abc123\n")
    rows = [asked(first), asked(first), asked(other), asked(tmp_path / "gone")]
    assert models_used(rows) == ["model-abc123:step-000100"]


def test_a_model_that_is_not_there_is_said(tmp_path, capsys):
    path = tmp_path / "run" / "models" / "step-000100"
    path.mkdir(parents=True)
    (tmp_path / "run" / "wandb_id").write_text("abc123")
    used: list[str] = []
    _link(SimpleNamespace(use_artifact=used.append), [asked(path)])
    assert used == ["model-abc123:step-000100"]

    def missing(name):
        raise wandb.errors.CommError("no such artifact")

    _link(SimpleNamespace(use_artifact=missing), [asked(path)])
    said = capsys.readouterr().err
    assert said == "--wandb online: model-abc123:step-000100 is not there, and not linked\n"
