"""W&B's runs of a report are its own and stay in its directory; what W&B refuses is one line."""

import os
from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest
import wandb
from wandb.sdk.lib.service.service_connection import WandbApiFailedError

from arch import ModelError
from eval import RequestError
from eval.views.tracking import track_results
from tests.eval.views.page.cases import make_row
from tests.said import one_line


@pytest.fixture
def begun(monkeypatch):
    """What runs were begun with; they take everything."""
    asked = []

    def begin(**given):
        asked.append(given)
        return MagicMock(id=given["id"])

    monkeypatch.setattr(wandb, "init", begin)
    return asked


@pytest.fixture
def of_run(tmp_path):
    """A row of a model that lies in a run, which W&B knows."""
    row, path = make_row("flat"), tmp_path / "run" / "models" / "step-000300"
    path.mkdir(parents=True)
    for name in ("wandb_id", "metrics.jsonl"):
        (tmp_path / "run" / name).write_text("")
    row["checkpoint"]["path"] = str(path)
    return row


def test_a_report_is_written_over_no_run_that_the_environment_names(monkeypatch, tmp_path):
    """Under `wandb agent` the reports of all models were that of the training."""
    of_agent = {"WANDB_SWEEP_ID": "s", "WANDB_SWEEP_PARAM_PATH": str(tmp_path / "p"),
                "WANDB_RUN_ID": "trained", "WANDB_RESUME": "allow",
                "WANDB_LAUNCH": "true"}  # fmt: skip
    for name, value in of_agent.items():
        monkeypatch.setenv(name, value)
    seen = []

    def begin(**asked):
        settings = wandb.Settings()
        settings.update_from_env_vars(dict(os.environ))
        seen.append([getattr(settings, name.removeprefix("WANDB_").lower()) for name in of_agent])
        return MagicMock(id=asked["id"])

    monkeypatch.setattr(wandb, "init", begin)
    rows = [make_row("flat"), make_row("llama")]
    assert len(track_results(tmp_path, rows)) == 2
    assert not any(map(any, seen))
    assert of_agent.items() <= os.environ.items()


@pytest.mark.parametrize("model", ["a/../../x-1", "n" * 300, "a\0b"])
def test_no_file_lies_outside_the_results_whatever_a_row_says(model, begun, tmp_path):
    """An id of a stranger's rows was the path of a file that was written, or read and sent."""
    row, results = make_row(), tmp_path / "in" / "results"
    row["checkpoint"]["model_id"] = model
    (tmp_path / "in" / "x-1").parent.mkdir()
    (tmp_path / "in" / "x-1").write_text("secret")
    for _ in range(2):
        track_results(results, [row])
    first, again = (asked["id"] for asked in begun)
    assert first == again != "secret"
    assert len(list(results.glob("wandb_id*"))) == 1
    assert (tmp_path / "in" / "x-1").read_text() == "secret"


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        ("log", one_line(RequestError, "--wandb online: permission denied")),
        ("log_artifact", one_line(RequestError, "--wandb online: permission denied")),
        ("use_artifact", nullcontext()),
    ],
)
def test_what_wandb_refuses_after_the_start_is_a_line(
    act, expected, of_run, monkeypatch, tmp_path, capsys
):
    failed = WandbApiFailedError("permission\ndenied")
    run = MagicMock(id="ab", **{f"{act}.side_effect": failed})
    monkeypatch.setattr(wandb, "init", lambda **_: run)
    with expected:
        track_results(tmp_path, [of_run], mode="online")
    assert ("not linked: permission denied" in capsys.readouterr().err) == (act == "use_artifact")
    assert run.finish.called


def test_a_key_that_a_version_does_not_know_is_a_line(of_run, monkeypatch, tmp_path):
    begin = MagicMock(side_effect=ValueError("API key must be 40 characters long, yours was 86"))
    monkeypatch.setattr(wandb, "init", begin)
    with one_line(RequestError, "--wandb online: API key must be 40"):
        track_results(tmp_path, [of_run], mode="online")


def test_settings_of_other_types_are_words_or_refused(of_run, begun, tmp_path):
    (tmp_path / "run" / "config.yaml").write_text("wandb_group: 5")
    meta = tmp_path / "run" / "models" / "step-000300" / "meta.json"
    meta.write_text('{"step": 300}')
    track_results(tmp_path, [of_run])
    assert begun[0]["group"] == "5"
    meta.write_text('{"recipe": "abc"}')
    with one_line(ModelError, "meta.json: recipe is 'abc'"):
        track_results(tmp_path, [of_run])
