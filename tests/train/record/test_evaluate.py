"""Evaluations inside a training run, by the commands of `eval`; and a local board of figures."""

import contextlib
import csv
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import threading
from pathlib import Path

import pytest
import torch

from eval.__main__ import main as evaluate
from tests.train.cases import fail, fit, interrupt, names, processes_by
from train.record.evaluate import FIGURES, measure
from train.settings import REMNANT

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(stories):
    return stories.path


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs commands of `eval` here: what it imports takes a process seconds. The words of each."""
    commands = []

    def run(command, *, env, **_):
        assert command[1:3] == [REMNANT, "eval"]
        assert "REMNANT_KERNELS" not in env  # which was chosen for training
        assert env["CUDA_VISIBLE_DEVICES"] == ""  # the run is on the CPU
        commands.append(command[3:])
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = evaluate(command[3:])
        return subprocess.CompletedProcess(command, code, "", said.getvalue())

    here = processes_by(run)
    monkeypatch.setattr("train.record.evaluate.subprocess", here)
    return commands


def test_saved_models_are_evaluated_as_by_hand_and_the_run_has_the_figures(
    data, tmp_path, in_this_process, monkeypatch, capsys
):
    monkeypatch.setenv("REMNANT_KERNELS", "dense")
    run = tmp_path / "run"
    flags = ["--eval_every", "6", "--loggers", "[csv]", "--eval_wait", "false"]
    flags += ["--model.mixers", "[flat, tests.arch.leaks.ForwardOnly]"]
    suite = tmp_path / "own.yaml"
    suite.write_text("own: {layers: last, solvers: [propose], count: 2, length: 6}")
    assert fit(data, run, *flags, "--eval", str(suite)) == 0
    printed = capsys.readouterr().out
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluated = {row["step"]: row for row in rows if "eval/shown" in row}
    assert list(evaluated) == [0, 6]
    table = tmp_path / "table.csv"
    words = ["compare", str(run), str(run / "eval"), "--csv", str(table), "--trust_code"]
    assert evaluate(words) == 0
    for line in csv.DictReader(table.read_text().splitlines()):
        row = evaluated[int(line["step"])]
        known = {f"eval/{name}": float(line[name]) for name in FIGURES if line[name]}
        assert known == {name: row[name] for name in known}
        assert {"eval/shown", "eval/bits_per_byte"} <= set(known)
    assert re.search(r"^step 6  eval bits_per_byte [.\d]+, shown [.\d]+ %", printed, re.MULTILINE)
    assert "eval/shown" in (run / "csv" / "version_0" / "metrics.csv").read_text()
    assert names(run / "models") == ["step-000000", "step-000006"]
    assert len(in_this_process) == 8


@pytest.mark.parametrize("error", [None, OSError("no space left"), ValueError("no space left")])
def test_an_evaluation_that_fails_is_a_line(data, tmp_path, monkeypatch, capsys, error):
    """Training goes on; every third step and the last have an evaluation."""
    measured = []

    def fail(model, folder, suite, *_):
        assert model.is_dir()
        measured.append((model.name, folder, suite))
        if error:
            raise error
        return {}, "eval gave no figures; 0 s; eval invert failed: no suite"

    monkeypatch.setattr("train.record.evaluate.measure", fail)
    run = tmp_path / "run"
    flags = ["--eval_every", "3", "--eval", "standard", "--trainer.max_steps", "7"]
    assert fit(data, run, *flags) == 0
    reason = "eval failed: no space left" if error else "eval invert failed: no suite"
    said = [line for line in capsys.readouterr().out.splitlines() if reason in line]
    assert [line.split()[1] for line in said] == ["0", "3", "6", "7"]
    assert measured == [(name, run / "eval", "standard") for name in names(run / "models")]
    assert names(run / "models") == [f"step-{step:06d}" for step in (0, 3, 6, 7)]


def test_a_suite_that_is_not_there_is_refused_before_training(data, tmp_path, capsys):
    """It was said after the first evaluation, minutes later."""
    run = tmp_path / "run"
    flags = ["--eval_every", "3", "--eval", "slow"]
    assert fit(data, run, *flags) == 2
    said = "error: --eval slow: no such suite or file; use quick, solvers, sources, standard or a "
    assert capsys.readouterr().err == f"{said}YAML file\n"
    assert not run.exists()


@pytest.mark.first(1)
@pytest.mark.parametrize("wait", ["true", "false"])
def test_a_signal_ends_an_evaluation_which_is_done_when_the_run_goes_on(
    data, tmp_path, monkeypatch, at_step, wait
):
    """It was waited for: SLURM killed the run, and did not start it again."""
    begun, run, start = [], tmp_path / "run", subprocess.Popen
    sent = threading.Event()

    def send():
        os.kill(os.getpid(), signal.SIGUSR1)
        sent.set()

    def hang(command, **how):
        begun.append(command[4])
        threading.Timer(0.2, send).start()
        return start(["sleep", "100"], **how)

    def slow(loss):
        assert sent.wait(10)
        return loss

    flags = ["--eval_every", "2", "--eval_wait", wait, "--resume", "auto"]
    at_step(1, slow)  # or the signal comes after its end
    with monkeypatch.context() as patch:
        patch.setattr("train.record.evaluate.subprocess.Popen", hang)
        assert fit(data, run, *flags) == 128 + signal.SIGUSR1
    assert [Path(model).name for model in begun] == ["step-000000"]  # the first of four commands
    assert names(run / "checkpoints") == ["step-000001.ckpt"]
    measured = []

    def note(model, *_):
        measured.append(model.name)
        return {"shown": 1.0}, ""

    monkeypatch.setattr("train.record.evaluate.measure", note)
    assert fit(data, run, *flags) == 0
    assert measured == [f"step-00000{step}" for step in (0, 2, 4, 6)]


def test_evaluations_that_a_stop_left_out_are_made_up_for(data, tmp_path, monkeypatch, at_step):
    measured, run, flags = [], tmp_path / "run", ["--eval_every", "2", "--resume", "auto"]
    gives_figures = {"step-000000"}

    def note(model, *_):
        measured.append(model.name)
        return {"shown": 1.0} if model.name in gives_figures else {}, ""

    monkeypatch.setattr("train.record.evaluate.measure", note)
    at_step(5, interrupt(signal.SIGTERM))
    assert fit(data, run, *flags) == 128 + signal.SIGTERM
    assert measured == [f"step-00000{step}" for step in (0, 2, 4)]
    measured.clear()
    at_step(0, fail)
    assert fit(data, run, *flags) == 0
    assert measured == [f"step-00000{step}" for step in (2, 4, 6)]


def test_the_last_model_of_a_run_that_stops_early_is_evaluated(data, tmp_path, monkeypatch):
    measured = []

    def note(model, *_):
        measured.append(model.name)
        return {}, ""

    monkeypatch.setattr("train.record.evaluate.measure", note)
    flags = "--lr 90 --validate_every 1 --early_stopping 1 --eval_every 6"
    assert fit(data, tmp_path / "run", *flags.split()) == 0
    assert measured == names(tmp_path / "run" / "models")
    assert measured[-1] != "step-000006"


@pytest.mark.usefixtures("in_this_process")
def test_commands_that_fail_are_named_in_the_line(tmp_path):
    figures, line = measure(tmp_path / "step-000003", tmp_path / "out", "none", CPU)
    assert not figures
    assert all(f"eval {name} failed: " in line for name in ("loss", "invert", "bits"))


def test_a_command_is_a_process_from_whatever_folder(tmp_path, monkeypatch):
    """The last of four, which compares; the others are left out."""
    run, ended = subprocess.run, []

    def only_the_last(command, **how):
        if "compare" not in command:
            return subprocess.CompletedProcess(command, 0, "", "")
        ended.append(run(command, **how))
        return ended[0]

    monkeypatch.chdir(tmp_path)
    here = processes_by(only_the_last)
    monkeypatch.setattr("train.record.evaluate.subprocess", here)
    _, line = measure(tmp_path / "step-000003", tmp_path / "out", "none", CPU)
    assert ended[0].returncode == 2
    assert "eval compare failed: " in line
    assert "No module" not in line


@pytest.mark.parametrize(
    ("device", "listed", "visible"),
    [("cuda:1", "5,GPU-7", "GPU-7"), ("cuda:3", None, "3"), ("cpu", "5,7", "")],
)
def test_a_model_is_evaluated_where_it_is_trained(tmp_path, monkeypatch, device, listed, visible):
    """It was on the first GPU, whichever trained."""
    seen = []

    def note(command, *, env, **_):
        seen.append(env["CUDA_VISIBLE_DEVICES"])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    monkeypatch.setattr("train.record.evaluate.subprocess", processes_by(note))
    measure(tmp_path / "step-000003", tmp_path / "out", "none", torch.device(device))
    assert seen == [visible] * 4


def test_a_run_that_fails_ends_an_evaluation(data, tmp_path, monkeypatch, at_step):
    """Its process waited for that, and held its GPU."""
    begun, start, running = [], subprocess.Popen, threading.Event()

    def hang(command, **how):
        begun.append(start(["sleep", "100"], **how))
        running.set()
        return begun[-1]

    def break_down(loss):
        assert running.wait(10)
        return loss * torch.nan

    monkeypatch.setattr("train.record.evaluate.subprocess.Popen", hang)
    at_step(1, break_down)
    flags = ["--eval_every", "2", "--eval_wait", "false"]
    assert fit(data, tmp_path / "run", *flags) == 2
    assert [process.wait(10) for process in begun] == [-signal.SIGTERM]


@pytest.mark.parametrize("broken", ["init", "Run.log", "Run.finish"])
def test_an_error_of_trackio_is_a_line_and_ends_nothing(
    data, tmp_path, monkeypatch, capsys, broken
):
    pytest.importorskip("trackio")

    def fail(*_, **__):
        raise sqlite3.OperationalError("database is locked")

    for module in ("utils", "sqlite_storage"):
        monkeypatch.setattr(f"trackio.{module}.TRACKIO_DIR", tmp_path / "board")
    monkeypatch.setattr(f"trackio.{broken}", fail)
    assert fit(data, tmp_path / "run", "--loggers", "[trackio]") == 0
    line = "--loggers trackio: database is locked; going on without it"
    assert "".join(capsys.readouterr()).count(line) == 1


def test_trackio_keeps_the_figures_of_runs_of_one_name_and_of_their_resumes(
    data, tmp_path, monkeypatch, at_step
):
    """Each run's own, and those of a step that it repeats once."""
    pytest.importorskip("trackio")
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    for module in ("utils", "sqlite_storage"):
        monkeypatch.setattr(f"trackio.{module}.TRACKIO_DIR", tmp_path / "board")
    flags = ["--loggers", "[trackio]", "--wandb_project", "mine", "--checkpoint_every", "3"]
    runs = [tmp_path / folder / "run" for folder in ("a", "b")]
    for seed, run in enumerate(runs):
        at_step(6, fail)
        with pytest.raises(ZeroDivisionError):
            fit(data, run, *flags, "--seed", str(seed))
        at_step(0, fail)
        assert fit(data, run, *flags, "--seed", str(seed), "--resume", "auto") == 0
    with sqlite3.connect(tmp_path / "board" / "mine.db") as board:
        kept = board.execute("select run_name, step, metrics from metrics").fetchall()
    for run in runs:
        own = (run / "trackio_id").read_text()
        logged = [(step, json.loads(figures)) for name, step, figures in kept if name == own]
        losses = [(step, figures["loss"]) for step, figures in logged if "loss" in figures]
        rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        assert losses == [(row["step"], row["loss"]) for row in rows if "loss" in row]
    assert len({name for name, _, _ in kept}) == 2
