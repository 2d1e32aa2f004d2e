"""What a run shows while it trains, and when it stops because it has gone wrong."""

import math
import re
import sys
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
    assert re.search(r"3/6 \[00:\d\d<00:\d\d, .*loss=\d\.\d+, bits_per_byte=\d\.\d+", shown)
    valid = r"step 6  valid loss \d\.\d{3}  bits/byte \d\.\d{3} over 320 tokens  -> "
    place = re.escape(f"{tmp_path}/run/models/")
    assert re.search(valid + place, shown)  # longer than the terminal is wide, and not cut


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


@pytest.fixture
def watch(tmp_path):
    """A watch over a run that has checkpoints of steps 100, 200 and 300."""
    (tmp_path / "checkpoints").mkdir()
    for step in (100, 200, 300):
        (tmp_path / "checkpoints" / f"step-{step:06d}.ckpt").touch()
    return lambda limit=2.0, after=0, start=0: Watch(RunDirectory(tmp_path), limit, after, start)


def feed(watch, losses, first=1):
    for step, loss in enumerate(losses, start=first):
        watch.see(step, 1, loss, 1.0)


def noisy():
    """Twenty times as noisy as batches of 2,048 tokens are; and single batches that are odd."""
    chance = np.random.default_rng(0)
    losses = 2.5 + 6 * np.exp(-np.arange(5000) / 300) + chance.normal(0, 0.6, 5000)
    losses[chance.integers(0, 5000, 20)] += 8
    return losses.tolist()


@pytest.mark.parametrize(
    ("limit", "after", "losses"),
    [
        (2.0, 0, noisy()),
        (2.0, 50, [3.0] * 20 + [9.0] * 50),  # in the warm-up, and level after it
        (None, 0, [3.0] * 50 + [300.0] * 50),
    ],
)
def test_a_training_as_it_should_be_is_never_stopped(watch, limit, after, losses):
    seeing = watch(limit, after)
    feed(seeing, losses)
    assert seeing.lowest <= max(losses[after:])


@pytest.mark.parametrize(
    ("calm", "after", "message"),
    [
        (250, [8.0] * 100, r"the loss jumped: .* \(--stop_on_spike 2\); the last good"),
        (250, [3.0 + 0.05 * i for i in range(100)], "the loss jumped: "),
        (250, [4.0 + 3 * (i % 2) for i in range(100)], "the loss jumped: "),
        (297, [5.5] * 50, r"good checkpoint is \S+step-000200\.ckpt; go on from it w"),
    ],
)
def test_a_jump_or_a_slow_climb_is_a_reason_to_stop(watch, calm, after, message):
    seeing = watch()
    feed(seeing, [3.0] * calm)
    with pytest.raises(RunError, match=message):
        feed(seeing, after, first=calm + 1)


def test_a_resumed_run_remembers_the_lowest_and_starts_from_a_good_checkpoint(watch):
    first, second = watch(), watch(start=200)
    feed(first, [3.0] * 20)
    second.lowest = first.lowest
    message = r"over steps 201 to 210, 3\.000 above its lowest .* good checkpoint is \S+step-000200"
    with pytest.raises(RunError, match=message):
        feed(second, [6.0] * 20, first=201)


def test_a_checkpoint_is_not_taken_while_the_loss_may_be_jumping(watch):
    seeing = watch()
    assert not seeing.rising(3, 1e9)  # nothing is known yet
    feed(seeing, [3.0] * 20)
    rising = [seeing.rising(*each) for each in ((0, 0.0), (3, 3.9), (3, 4.1), (1, math.nan))]
    assert rising == [False, False, True, True]
    feed(seeing, [4.5], first=21)
    assert seeing.rising(0, 0.0)
    assert not watch(limit=None).rising(1, math.nan)  # checkpoints are taken as ever
