"""When a training is stopped because it has gone wrong, and when it is not."""

import math
from pathlib import Path

import numpy as np
import pytest

from train.progress import Watch
from train.rundir import RunDirectory
from train.settings import RunError


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
