"""What a run shows while it trains, and when it stops because it has gone wrong."""

import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.train.cases import fit, rows, weights
from train import progress
from train.module import LanguageModule
from train.progress import Watch
from train.rundir import RunDirectory
from train.settings import RunError


def test_a_pipe_shows_a_line_every_so_many_steps(data, tmp_path, capsys):
    assert fit(data, tmp_path / "run", "--log_every", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    steps = [found[1] for line in lines if (found := re.match(r"step (\d)/6  loss", line))]
    assert steps == ["1", "2", "4", "6"]
    pattern = (
        r"step 2/6  loss \d\.\d{3}  bits/byte \d\.\d{3}  lr \S+  [\d,]+ tokens/s  \d:\d\d left"
    )
    assert any(re.fullmatch(pattern, line) for line in lines)


def test_the_time_left_leaves_the_compiling_out(data, tmp_path, monkeypatch, capsys):
    """A clock on which the first step takes ten minutes and any other a second."""
    now, original = 0.0, LanguageModule.training_step

    def training_step(self, batch, batch_idx):
        nonlocal now
        now += 600 if self.trainer.global_step == 0 else 1
        return original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModule, "training_step", training_step)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now))
    assert fit(data, tmp_path / "run") == 0
    shown = capsys.readouterr().out
    assert re.findall(r"step (\d)/6 .*  (\S+) left\n", shown) == [
        *(("2", "0:04"), ("3", "0:03"), ("4", "0:02"), ("5", "0:01"), ("6", "0:00"))
    ]
    assert re.search(r"step 1/6 .*  time left not known yet\n", shown)


def test_a_terminal_shows_a_bar_below_the_lines(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    assert fit(data, tmp_path / "run") == 0
    shown = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", capsys.readouterr().out)
    assert re.search(r"step 3/6 \S* *0:\d\d left  loss \d\.\d{3}  bits/byte", shown)
    valid = f"step 6  valid loss 6.167  bits/byte 4.702 over 320 tokens  -> {tmp_path}/run/models/"
    assert valid in shown  # longer than the terminal is wide, and not cut


def test_samples_are_shown_kept_and_change_no_weight(data, tmp_path, capsys):
    assert fit(data, tmp_path / "with", "--sample_prompts", "[Tom, Once upon]") == 0
    shown = capsys.readouterr().out
    assert fit(data, tmp_path / "without", "--sample_prompts", "[]") == 0
    samples = rows(tmp_path / "with", file="samples")
    assert [(row["step"], row["prompt"]) for row in samples] == [
        (step, prompt) for step in (0, 6) for prompt in ("Tom", "Once upon")
    ]
    assert "step 6  Tom" in shown
    assert all(row["text"] for row in samples)
    assert (tmp_path / "without" / "samples.jsonl").read_text() == ""
    assert weights(tmp_path / "with") == weights(tmp_path / "without")


def make(tmp_path: Path, limit: float | None = 2.0, after: int = 0) -> Watch:
    (tmp_path / "checkpoints").mkdir()
    for step in (100, 200, 300):
        (tmp_path / "checkpoints" / f"step-{step:06d}.ckpt").touch()
    return Watch(RunDirectory(tmp_path), limit, after)


def feed(watch: Watch, losses: list[float], first: int = 1) -> None:
    for step, loss in enumerate(losses, start=first):
        watch.see(step, 1, loss, 1.0)


def test_a_training_as_it_should_be_is_never_stopped(tmp_path):
    """Twenty times as noisy as batches of 2,048 tokens are; and single batches that are odd."""
    chance = np.random.default_rng(0)
    steps = np.arange(5000)
    losses = 2.5 + 6 * np.exp(-steps / 300) + chance.normal(0, 0.6, 5000)
    losses[chance.integers(0, 5000, 20)] += 8
    feed(make(tmp_path), losses.tolist())


def test_the_warm_up_may_do_anything(tmp_path):
    watch = make(tmp_path, after=50)
    feed(watch, [3.0] * 20 + [9.0] * 30)
    feed(watch, [9.0] * 20, first=51)


@pytest.mark.parametrize("shape", [lambda i: 5.0, lambda i: 0.05 * i, lambda i: 3.0 * (i % 2) + 1])
def test_a_jump_or_a_slow_climb_is_a_reason_to_stop(tmp_path, shape):
    watch = make(tmp_path)
    feed(watch, [3.0] * 250)
    with pytest.raises(RunError, match=r"the loss jumped: .* \(--stop_on_spike 2\); the last good"):
        feed(watch, [3.0 + shape(i) for i in range(100)], first=251)


def test_the_checkpoint_named_is_the_one_before_the_jump(tmp_path):
    watch = make(tmp_path)
    feed(watch, [3.0] * 297)
    with pytest.raises(RunError, match=r"good checkpoint is \S+step-000200\.ckpt; go on from it w"):
        feed(watch, [5.5] * 50, first=298)


def test_the_checkpoint_that_a_run_goes_on_from_is_good(tmp_path):
    make(tmp_path)
    watch = Watch(RunDirectory(tmp_path), 2.0, 0, 200)
    watch.lowest = 3.0
    with pytest.raises(RunError, match=r"the last good checkpoint is \S+step-000200\.ckpt"):
        feed(watch, [6.0] * 20, first=201)


def test_a_checkpoint_is_not_taken_while_the_loss_may_be_jumping(tmp_path):
    watch = make(tmp_path)
    assert not watch.rising(3, 1e9)  # nothing is known yet
    feed(watch, [3.0] * 20)
    assert not watch.rising(0, 0.0)
    assert not watch.rising(3, 3.9)
    assert watch.rising(3, 4.1)
    assert watch.rising(1, math.nan)
    feed(watch, [4.5], first=21)
    assert watch.rising(0, 0.0)


def test_a_jump_is_warned_of_once_where_nobody_asked_to_stop(tmp_path):
    watch = make(tmp_path, limit=None)
    losses = [3.0] * 250 + [6.0] * 50 + [3.0] * 50 + [5.5] * 20
    said = {step: watch.see(step, 1, loss, 1.0) for step, loss in enumerate(losses, start=1)}
    warnings = {step: line for step, line in said.items() if line}
    assert list(warnings) == [260, 360]
    assert warnings[260].startswith("the loss jumped: 6.000 over steps 251 to 260, 3.000 above its")
    assert warnings[260].endswith("step-000200.ckpt; going on")
    assert not watch.rising(1, 9.0)  # checkpoints are taken as ever


def test_zero_never_stops(tmp_path):
    watch = make(tmp_path, limit=0)
    feed(watch, [3.0] * 50 + [300.0] * 50)
    assert not watch.rising(1, 1e9)


def test_a_resumed_run_remembers_the_lowest(tmp_path):
    first = make(tmp_path)
    feed(first, [3.0] * 20)
    watch = Watch(RunDirectory(tmp_path), 2.0, 0)
    watch.lowest = first.lowest
    with pytest.raises(RunError, match=r"over steps 201 to 210, 3\.000 above its lowest"):
        feed(watch, [6.0] * 20, first=201)
