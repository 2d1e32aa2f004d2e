"""Every command's work goes on after an interruption, and is shared out over processes."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch

from eval import RequestError, tasks
from eval.__main__ import SHARED, command_function, main
from eval.models import device_of
from eval.rows import ROWS, Results, read_rows

ROOT = Path(__file__).parents[2]
TEXT = ["--corpus", "toy:1000"]
FEW = [*TEXT, "--count", "2", "--length", "6"]
SLICE = ["--slices", "[:, 0:, :]"]
COMMANDS = {
    "loss": [*TEXT, "--stories", "3"],
    "invert": [*FEW, "--layers", "1", "2", *SLICE, "--methods", "propose", "sweep", "chance"],
    "probe": [*TEXT, "--length", "8", "--train-tokens", "800", "--valid-tokens", "80", "--steps",
              "2", "--offsets", "0"],
    "geometry": [*FEW, "--hidden", "1"],
    "bits": [*TEXT, "--count", "2", "--before", "2", "--distances", "1", "--tokens", "800"],
    "lens": ["--lens", "residual", "logit", "--text", "Tom had a red ball."],
}  # fmt: skip
"""What each of them is asked, of two models where they are given."""
ASIDE = ("schema", "seconds", "tokens_per_second", "batch")
"""Fields that say how a row was made: what is left of a batch is a smaller one."""


@pytest.fixture
def ask(model_directory, tmp_path):
    """The words of a command that asks two models, and writes into a directory."""
    models = [str(model_directory("flat", step, d_model=16)) for step in (0, 5)]

    def words(name, out):
        return [name, *models, *COMMANDS[name], "--out", str(out)]

    return words


def content(out: Path) -> dict:
    rows = read_rows([out])
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: {k: v for k, v in row.items() if k not in ASIDE} for row in rows}


def test_all_that_torchrun_shares_is_asked_here():
    assert {*COMMANDS} == set(SHARED)


class Stopped(BaseException):
    """As an interruption by the keyboard."""


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupted_command_goes_on_where_it_was(ask, tmp_path, monkeypatch, capsys, name):
    whole, out = tmp_path / "whole", tmp_path / "out"
    real, calls = Results.append, []

    def append(self, rows):
        rows = list(rows)
        calls.append(rows)
        real(self, rows)
        if len(calls) == stop:
            raise Stopped

    monkeypatch.setattr(Results, "append", append)
    stop = 0
    assert main(ask(name, whole)) == 0
    total, stop = len(calls), 1
    assert total > 1
    calls.clear()
    with pytest.raises(Stopped):
        main(ask(name, out))
    before, first = (out / ROWS).read_text(), calls[0]
    assert before
    (out / ROWS).write_text(before + '{"schema": 1, "key": "to')  # torn
    calls.clear()
    stop = 0
    capsys.readouterr()
    assert main(ask(name, out)) == 0
    assert (out / ROWS).read_text().startswith(before)
    assert content(out) == content(whole)
    again = {row["key"] for rows in calls for row in rows}
    if name != "lens":  # whose rows are made of documents once more
        assert not again & {row["key"] for row in first}
        calls.clear()
        capsys.readouterr()
        assert main(ask(name, out)) == 0
        assert "every row is there already" in capsys.readouterr().err
        assert not [rows for rows in calls if rows]


@pytest.mark.parametrize("name", COMMANDS)
def test_two_processes_make_the_rows_of_one(ask, tmp_path, monkeypatch, name):
    """Each in its turn, with the environment that torchrun gives it, and no wait for the other."""
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(ask(name, one)) == 0
    monkeypatch.setattr(tasks, "_joined", nullcontext)
    monkeypatch.setattr(tasks, "_wait", lambda: None)
    monkeypatch.setattr(Results, "merge", lambda self: None)
    Results(two)
    for rank in range(2):
        start(monkeypatch, rank, 2)
        with suppress(KeyError):  # the loss of the other's model, as nothing is merged yet
            assert main(ask(name, two)) == 0
        assert read_rows([two / f"rows.{rank}.jsonl"])
    monkeypatch.undo()
    Results(two).merge()
    assert content(two) == content(one)


def test_torchrun_s_processes_wait_for_each_other(ask, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(ask("invert", one)) == 0
    two.mkdir()
    whole = read_rows([one])
    # what an interrupted run of two left behind: a row each, one of them torn at the end
    for rank in (0, 1):
        torn = '{"schema": 1, "key"' * rank
        (two / f"rows.{rank}.jsonl").write_text(json.dumps(whole[rank * 4]) + "\n" + torn)
    done = by_two(ask("invert", two))
    assert done.returncode == 0, done.stderr
    assert content(two) == content(one)
    assert read_rows([two])[:2] == [whole[0], whole[4]]
    assert [path.name for path in two.iterdir()] == [ROWS]
    assert done.stdout.count("rows:") == 1  # the first process alone says what there is


@pytest.mark.slow
def test_a_wrong_wish_writes_nothing(ask, tmp_path):
    done = by_two([*ask("invert", tmp_path / "o"), "--parts", "x"])
    assert done.returncode != 0
    assert "error: " in done.stderr
    assert "part 'x' does not exist" in done.stderr
    assert not (tmp_path / "o").exists()


def by_two(words: list[str]) -> subprocess.CompletedProcess[str]:
    """As torchrun starts it."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, *launch, "-m", "eval", *words],
        cwd=ROOT,
        env=os.environ | quiet,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said, complained = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.terminate()  # which ends its processes too, as a kill would not
        process.communicate()
        raise
    return subprocess.CompletedProcess(words, process.returncode, said, complained)


def start(monkeypatch, rank: int, world: int) -> None:
    """The environment that torchrun gives a process."""
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", world)):
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize("name", ["cuda", "auto"])
def test_processes_take_a_gpu_each(monkeypatch, name):
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert device_of(name) == torch.device("cuda")
    assert taken == []
    for rank in range(3):
        start(monkeypatch, rank, 3)
        assert device_of(name) == torch.device("cuda")
        assert device_of("cpu") == torch.device("cpu")
    assert taken == [0, 1, 0]


@pytest.mark.parametrize(("rank", "process"), [(0, ""), (1, "process 1: ")])
def test_whichever_process_fails_says_so(monkeypatch, capsys, rank, process):
    start(monkeypatch, rank, 2)
    assert main(["invert", "nowhere", "--out", "out"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{process}error: nowhere: no such model directory")


def test_what_is_not_shared_refuses_several_processes(monkeypatch, capsys):
    start(monkeypatch, 0, 2)
    for words in ("report nowhere --out page.html", "lenses", "summary nowhere"):
        name = words.partition(" nowhere")[0]
        assert main([*words.split()]) == 2
        assert capsys.readouterr().err == (
            f"error: WORLD_SIZE 2: {name} is of one process, several share {', '.join(SHARED)} "
            "alone; start it without torchrun\n"
        )
    with pytest.raises(RequestError, match="--out: several processes need one results directory"):
        command_function("loss")([])


def test_each_process_appends_to_a_file_of_its_own(tmp_path):
    whole = Results(tmp_path)
    a, b, c = ({"key": key, "kind": "loss"} for key in "abc")
    whole.append([a])
    first, second = Results(tmp_path, 0), Results(tmp_path, 1)
    assert first.keys == second.keys == {"a"}
    first.append([a, b])
    second.append([c])
    assert [row["key"] for row in read_rows([tmp_path])] == ["a"]
    for _ in range(2):
        whole.merge()
        assert [row["key"] for row in read_rows([tmp_path])] == ["a", "b", "c"]
        assert [path.name for path in tmp_path.iterdir()] == [ROWS]


def test_a_row_is_on_the_disk_before_its_task_computes_the_next(tmp_path):
    class Slow:
        checkpoint, keys, cost = None, ("a", "b"), 1.0

        def run(self, results):
            yield {"key": "a", "kind": "loss"}
            assert [row["key"] for row in read_rows([tmp_path])] == ["a"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tasks.run_tasks([Slow()], Results(tmp_path), "asking")
    assert Results(tmp_path).keys == {"a"}
