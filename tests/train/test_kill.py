"""A run that is killed at any moment, or whose disk fills up, ends like one that was left alone.

The kills are SIGKILL: half of them at a random operation on files (before a file is opened,
renamed, removed, ...), half at a random time, and as every step saves everything, most of both fall
into a save. The disk is a small real one.
"""

import random
import signal
from pathlib import Path

import pytest

from arch import load_model
from tests.train.cases import TINY, names, rows, weights
from tests.train.forked import (
    assert_nothing_is_half,
    train_on_small_disk,
    train_until_killed,
)

KILLS = 50
STEPS = 15


def words(data: Path, run: Path) -> list[str]:
    flags = f"fit --data {data} --run {run} {TINY} --trainer.max_steps {STEPS} --resume auto"
    flags += " --checkpoint_every 1 --save_every 1 --validate_tokens 64"
    return flags.split()


@pytest.fixture(scope="module")
def attempt(data, forked):
    """Goes on with a run in a process of its own; returns its exit code, -9 where it was killed."""

    def run(path, fatal=None, after=None):
        saving = forked.Event()
        process = forked.Process(target=train_until_killed, args=(words(data, path), fatal, saving))
        process.start()
        if after is not None:
            saving.wait(60)
            process.join(after)
            process.kill()
        process.join(120)
        return process.exitcode

    return run


def assert_same(a, b):
    assert names(a) == names(b)
    assert names(a / "models") == names(b / "models")
    for step, name in enumerate(names(a / "models")):
        assert weights(a, step) == weights(b, step)
        metas = [load_model(run / "models" / name).meta for run in (a, b)]
        for meta in metas:  # named after the run, which has another name
            meta |= {"name": "", "model_id": meta["model_id"].rpartition("-")[2]}
        assert metas[0] == metas[1]
    assert rows(a) == rows(b)


@pytest.mark.slow
def test_a_run_killed_at_any_moment_ends_as_if_it_were_not(attempt, tmp_path):
    chance = random.Random(0)
    whole = tmp_path / "whole"
    assert attempt(whole) == 0
    kills = runs = torn = 0
    while kills < KILLS:
        runs += 1
        run = tmp_path / f"run-{runs}"
        while not (run / "models" / f"step-{STEPS:06d}").exists():
            if kills % 2:
                code = attempt(run, fatal=chance.randint(1, 120))
            else:
                code = attempt(run, after=chance.uniform(0, 0.3))
            assert code in (-signal.SIGKILL, 0)
            kills += code == -signal.SIGKILL
            torn += bool(list(run.rglob(".*.tmp")))
            assert_nothing_is_half(run)
        assert attempt(run) == 0
        assert_same(run, whole)
        assert not list(run.rglob("*.tmp"))
    assert torn  # or the kills were not where they hurt
    print(f"{kills} kills in {runs} runs, {torn} in the middle of a file")


@pytest.mark.slow
def test_a_run_on_a_full_disk_ends_as_if_it_were_not(attempt, data, forked, tmp_path):
    whole, run, copy = (tmp_path / name for name in ("whole", "run", "copy"))
    assert attempt(whole) == 0
    size = 2 * sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    chance = random.Random(0)
    free = [int(size * chance.random() ** 3) for _ in range(20)]
    mine, its = forked.Pipe()
    arguments = (words(data, run), run, size, sorted(free), copy, its)
    process = forked.Process(target=train_on_small_disk, args=arguments)
    process.start()
    its.close()
    tries = mine.recv()  # EOFError: it did not end well
    process.join()
    if tries is None:
        pytest.skip("no disk in memory for who is not root")
    assert [code for code, _ in tries][-1] == 0
    failed = [error for code, error in tries if code]
    assert len(failed) > 5
    for error in failed:
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert "No space left on device" in error
    assert_same(copy, whole)
