"""Runs in Weights & Biases, read back from its own offline files; what goes wrong ends no run."""

import contextlib
import json
import re
import shutil
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import wandb
import wandb.errors

from arch import load_model
from tests.eval.views.test_tracking import logged, offline_records
from tests.train.cases import fail, fit
from train.record.loggers import TolerantWandbLogger, open_wandb
from train.settings import RunSettings


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """No account, no network, and nothing that wandb's process remembers of the tests before."""
    wandb.teardown()
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody answers


def test_a_copy_of_a_run_is_another_run_in_wandb(tmp_path, monkeypatch):
    """Its figures joined those of the first, as both had one id."""
    begun: list[str] = []
    monkeypatch.setattr("wandb.init", lambda **given: begun.append(given["id"]) or MagicMock())
    lines: list[str] = []
    first, config = tmp_path / "first", {"model": {"mixers": ["flat"], "d_model": 8, "n_layers": 1}}
    first.mkdir()
    for name in ("first", "copy", "copy", "first"):
        if not (tmp_path / name).is_dir():
            shutil.copytree(first, tmp_path / name)
        open_wandb(tmp_path / name, RunSettings(), config, lines.append)
    assert begun[0] == begun[3] != begun[1] == begun[2]
    assert lines == [f"{tmp_path}/copy is a copy of {first}: it begins a run of its own in W&B"]


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_a_later_start_goes_on_with_the_earlier(tmp_path, monkeypatch, mode):
    """What it wrote offline was written over that when it was uploaded."""
    begun = []
    monkeypatch.setattr("wandb.init", lambda **given: begun.append(given) or MagicMock())
    config = {"model": {"mixers": ["flat"], "d_model": 8, "n_layers": 1}}
    for _ in range(2):
        open_wandb(tmp_path, RunSettings(wandb=mode), config, print)
    assert [given["resume"] for given in begun] == [None, "allow"]


@pytest.mark.slow
def test_a_run_offline_stays_in_its_directory_and_keeps_its_id(data, tmp_path, capsys):
    run = tmp_path / "run"
    mixers = "attention(heads=8, kv_heads=2, qk_norm=true)+parallel(branches=2, activation=gelu)"
    flags = ["--wandb", "offline", "--wandb_tags", f"[{'x' * 70}]", "--model.mixers"]
    flags.append(f"[{mixers!r}]")  # W&B takes 64 characters of a tag
    assert fit(data, run, *flags) == 0
    name = (run / "wandb_id").read_text()
    run = run.rename(tmp_path / "moved")
    more = [*flags, "--resume", "auto", "--trainer.max_steps", "8"]
    capsys.readouterr()
    assert fit(data, run, *more, "--wandb_group", "mine") == 0
    assert (run / "wandb_id").read_text() == name
    files = sorted((run / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2  # of two runs in one second, wandb numbers the second: -1
    (uploaded,) = re.findall(r"wandb sync (\S+)\n", capsys.readouterr().out)
    folders = tmp_path.glob(str(Path(uploaded).relative_to(tmp_path)))
    assert sorted(folders) == [file.parent for file in files]
    assert all(
        re.fullmatch(rf"offline-run-\d+_\d+-{name}(-\d+)?", each.parent.name) for each in files
    )
    first, second = (offline_records(each) for each in files)
    (about,), (later,) = first["run"], second["run"]
    assert (about.run_id, about.project, about.display_name) == (name, "remnant", "run")
    assert (about.job_type, about.run_group) == ("train", f"{mixers} d16 n2")
    assert list(about.tags) == ["attention", "parallel", "x" * 64]
    assert (later.run_id, later.run_group) == (name, "mine")
    assert (about.resume, later.resume) == (False, True)
    assert "artifact" not in first  # only online: offline they would be copies
    steps: dict[int, dict[str, Any]] = {step: {} for step in range(7)}
    for row in logged(first):
        steps[row["trainer/global_step"]] |= row
    recorded = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in recorded[:-3]:
        for key, value in row.items():
            assert key == "step" or steps[row["step"]][key] == pytest.approx(value)
    axes = {"_step", "_runtime", "_timestamp", "trainer/global_step"}
    known = {key for row in recorded for key in row} - {"step"}
    assert {key for row in steps.values() for key in row} - axes == known
    config = {item.key: json.loads(item.value_json) for item in about.config.update}
    saved = load_model(run / "models" / "step-000006").meta
    assert config["model_id"] == saved["model_id"]
    assert config["data_sha256"] == saved["data_sha256"]
    assert config["optimizer"]["lr"] == 1e-3
    assert config["parameters"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "reason"),
    [(None, "No API key configured"), ("a" * 40, "refused")],
)
def test_without_login_or_network_training_goes_on_offline(
    data, tmp_path, key, reason, monkeypatch, capfd
):
    if key is not None:
        monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    assert fit(data, tmp_path / "run", "--wandb", "online") == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if "--wandb" in line]
    assert len(lines) == 1
    assert re.fullmatch(rf"--wandb online: .*{reason}.*; going on offline", lines[0])
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "variable",
    ["WANDB_MODE=sometimes", "WANDB_SILENT=perhaps", "WANDB_DIR=/dev/null/x", "WANDB_TAGS=",
     "WANDB_API_KEY=short", "WANDB_BASE_URL=nowhere", "WANDB_CONSOLE=loud", "WANDB_RUN_ID=a/b",
     "WANDB_CACHE_DIR=/dev/null/x", "WANDB_DATA_DIR=/dev/null/x", "WANDB_CONFIG_DIR=/dev/null/x",
     "WANDB_PROJECT=a/b", "WANDB_RESUME=must", "HOME=/dev/null/x", "WANDB_DISABLED=true"],
)  # fmt: skip
def test_variables_of_wandb_end_nothing(tmp_path, variable, monkeypatch, capfd):
    monkeypatch.setenv(*variable.split("="))
    lines, config = [], {"model": {"mixers": ["flat"], "d_model": 16, "n_layers": 2}}
    if logger := open_wandb(tmp_path, RunSettings(wandb="offline"), config, lines.append):
        logger.log_metrics({"loss": 3.0}, 1)
        logger.close(failed=False)
    assert sum(line.startswith("--wandb offline: ") for line in lines) <= 1
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("WANDB_MODE=disabled", ("disabled", "remnant")),
        ("WANDB_MODE=sometimes", ("offline", "remnant")),
        ("WANDB_PROJECT=mine", ("offline", "mine")),
    ],
)
def test_variables_of_wandb_hold_where_no_flag_says_otherwise(variable, expected, monkeypatch):
    """They had no effect: a run that was to be disabled wrote its log."""
    monkeypatch.setenv(*variable.split("="))
    run = RunSettings()
    assert (run.wandb, run.wandb_project) == expected


class Online:
    """Stands for a W&B run that is online."""

    def __init__(self, id: str) -> None:
        self.id, self.settings = id, types.SimpleNamespace(mode="online", sync_dir="logs")
        self.artifacts: list[tuple[wandb.Artifact, list[str]]] = []
        self.ended: int | None = None

    def define_metric(self, *_: object, **__: object) -> None:
        pass

    def log(self, figures: dict[str, object]) -> None:
        pass

    def log_artifact(self, artifact: wandb.Artifact, aliases: list[str]) -> None:
        self.artifacts.append((artifact, aliases))

    def finish(self, exit_code: int = 0) -> None:
        self.ended = exit_code


@pytest.fixture
def online(monkeypatch, tmp_path):
    begun: list[Online] = []

    def init(id, **_):
        begun.append(Online(id))
        return begun[-1]

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    return begun


def test_online_model_directories_are_versions_of_one_artifact(data, tmp_path, online):
    assert fit(data, tmp_path / "run", "--wandb", "online", "--save_steps", "[3]") == 0
    (run,) = online
    assert run.ended == 0
    assert [aliases for _, aliases in run.artifacts] == [
        ["latest", f"step-{step:06d}"] for step in (0, 3, 6)
    ]
    for artifact, _ in run.artifacts:
        assert (artifact.name, artifact.type) == (f"model-{run.id}", "model")
        assert sorted(artifact.manifest.entries) == [
            "config.json", "meta.json", "model.safetensors", "tokenizer.json"
        ]  # fmt: skip
    assert run.artifacts[-1][0].metadata["step"] == 6
    assert run.artifacts[-1][0].metadata["val_loss"] > 0


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("owner", "part", "error", "mode"),
    [
        (Online, "log", wandb.errors.CommError("gone"), "online"),
        (Online, "log", BrokenPipeError("gone"), "offline"),
        (Online, "log", EOFError("gone"), "offline"),
        (wandb.Artifact, "add_dir", OSError("gone"), "online"),  # as of a full disk
    ],
)
def test_a_view_that_breaks_ends_no_training(
    data, tmp_path, online, owner, part, error, mode, monkeypatch, capsys
):
    def breaks(*_):
        raise error

    monkeypatch.setattr(owner, part, breaks)
    assert fit(data, tmp_path / "run", "--wandb", mode) == 0
    assert capsys.readouterr().out.count(f"--wandb {mode}: gone; going on without it") == 1
    assert (tmp_path / "run" / "models" / "step-000006").is_dir()


def test_counts_and_axes_have_no_panel(monkeypatch):
    """Of 20 keys of a run that is evaluated on the way, 8 were panels that show nothing."""
    defined = {}
    run = Online("id")
    monkeypatch.setattr(run, "define_metric", lambda name, **how: defined.update({name: how}))
    figures = {"loss": 1.0, "seconds": 2.0, "val_tokens": 9, "eval/shown": 1.0, "eval/shown_n": 8.0}
    TolerantWandbLogger(run, print, "--wandb online").log_metrics(figures, 1)
    undrawn = {"step_metric": "trainer/global_step", "hidden": True}
    assert defined == dict.fromkeys(("seconds", "val_tokens", "eval/shown_n"), undrawn)


@pytest.mark.parametrize(("rate", "first"), [("1e-3", 3), ("1e-4", 1)])
def test_a_run_that_begins_again_with_other_settings_logs_all_its_steps(
    data, tmp_path, online, at_step, monkeypatch, rate, first
):
    """It had no checkpoint yet: the rows of its first steps were taken for those of before."""
    rows = []
    monkeypatch.setattr(Online, "log", lambda self, row: rows.append(row))
    at_step(3, lambda loss: loss * torch.nan)
    flags = ["--wandb", "online", "--resume", "auto", "--optimizer.lr"]
    assert fit(data, tmp_path / "run", *flags, "1e-3") == 2
    at_step(0, fail)
    rows.clear()
    assert fit(data, tmp_path / "run", *flags, rate) == 0
    steps = [row["trainer/global_step"] for row in rows if "loss" in row]
    assert steps == list(range(first, 7))


@pytest.mark.first(1)
@pytest.mark.parametrize("every", ["400", "500"])
def test_steps_are_logged_once_whatever_is_interrupted(
    data, tmp_path, online, at_step, monkeypatch, every
):
    """They stood twice after two interruptions, and after any change of a setting."""
    rows = []
    monkeypatch.setattr(Online, "log", lambda self, row: rows.append(row))
    flags = ["--wandb", "online", "--resume", "auto", "--checkpoint_every", "3"]
    for step, value in ((6, "500"), (5, every), (0, "500")):
        at_step(step, fail)
        with pytest.raises(ZeroDivisionError) if step else contextlib.nullcontext():
            fit(data, tmp_path / "run", *flags, "--validate_every", value)
    for name, steps in (("loss", [1, 2, 3, 4, 5, 6]), ("val_loss", [0, 6])):
        assert [row["trainer/global_step"] for row in rows if name in row] == steps


@pytest.mark.parametrize(("given", "seconds"), [(None, 60.0), ("4", 0.0)])  # wandb reads the second
def test_the_end_of_a_run_does_not_wait_for_ever(tmp_path, monkeypatch, given, seconds):
    """It waited for a network that had gone, and held its GPU."""
    begun = []
    monkeypatch.setattr("wandb.init", lambda **given: begun.append(given) or MagicMock())
    monkeypatch.delenv("WANDB_FINISH_TIMEOUT", raising=False)
    if given:
        monkeypatch.setenv("WANDB_FINISH_TIMEOUT", given)
    config = {"model": {"mixers": ["flat" * 40], "d_model": 8, "n_layers": 1}}
    (tmp_path / ("run" * 50)).mkdir()
    open_wandb(tmp_path / ("run" * 50), RunSettings(wandb="online"), config, print)
    assert begun[0]["settings"].finish_timeout == seconds
    assert begun[0]["settings"].finish_timeout_raises
    assert [len(begun[0][name]) for name in ("name", "group")] == [128, 128]


def test_what_wandb_has_not_got_in_time_is_left_to_be_uploaded(
    data, tmp_path, online, monkeypatch, capsys
):
    def breaks(self, exit_code):
        raise TimeoutError("Timed out finishing run.")

    monkeypatch.setattr(Online, "finish", breaks)
    assert fit(data, tmp_path / "run", "--wandb", "online") == 0
    said = capsys.readouterr().out
    assert "--wandb online: Timed out" in said
    assert "wandb sync --include-online logs" in said  # else wandb leaves it out


def test_the_command_that_uploads_a_run_can_be_pasted():
    """A path with a blank was two."""
    lines, run = [], Online("ab")
    run.settings = types.SimpleNamespace(
        mode="offline", sync_dir="my runs/wandb/offline-run-1-ab", run_id="ab"
    )
    TolerantWandbLogger(run, lines.append, "--wandb offline").close(failed=False)
    assert lines == ["W&B, offline: wandb sync 'my runs/wandb'/offline-run-*-ab*"]


def test_a_mistake_of_ours_is_not_taken_for_one_of_the_view(data, tmp_path, online, monkeypatch):
    monkeypatch.setattr(Online, "log", lambda self, figures: {}["missing"])
    with pytest.raises(KeyError):
        fit(data, tmp_path / "run", "--wandb", "online")
    assert online[0].ended == 1
