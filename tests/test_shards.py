"""One evaluation over two processes: the rows that a single one makes, and no row twice."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eval import shards
from eval.__main__ import main
from eval.checkpoints import device_of
from eval.results import ROWS, Results, read_rows

Directory = Callable[..., Path]
ROOT = Path(__file__).parent.parent
ASKED = ["--count", "3", "--length", "6", "--layers", "1", "2", "--slices", "[:, 0:, :]",
         "--methods", "propose", "sweep", "chance"]  # fmt: skip


def by_two(*words: object) -> subprocess.CompletedProcess[str]:
    """As torchrun starts it."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launch, "-m", "eval", "invert", *map(str, words)]
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command,
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
    return subprocess.CompletedProcess(command, process.returncode, said, complained)


def content(out: Path) -> dict[str, Any]:
    rows = read_rows([out])
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: (row["method"], row["site"], row["found"], row["rank"]) for row in rows}


def test_two_processes_make_the_rows_of_one(model_directory: Directory, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    model = model_directory()
    assert main(["invert", str(model), "--out", str(one), *ASKED]) == 0
    two.mkdir()
    whole = read_rows([one])
    # what an interrupted run of two left behind: a row each, one of them torn at the end
    for rank in (0, 1):
        path = two / f"rows.{rank}.jsonl"
        path.write_text(json.dumps(whole[rank * 4]) + "\n" + '{"schema": 1, "key"' * rank)
    done = by_two(model, "--out", two, *ASKED)
    assert done.returncode == 0, done.stderr
    assert content(two) == content(one)
    assert read_rows([two])[:2] == [whole[0], whole[4]]
    assert [path.name for path in two.iterdir()] == [ROWS]
    assert done.stdout.count("rows:") == 1  # the first process alone says what there is


@pytest.mark.slow
def test_a_wrong_wish_writes_nothing(model_directory: Directory, tmp_path: Path) -> None:
    done = by_two(model_directory(), "--out", tmp_path / "out", *ASKED, "--parts", "heads")
    assert done.returncode != 0
    assert "error: " in done.stderr
    assert "part 'heads' does not exist" in done.stderr
    assert not (tmp_path / "out").exists()


def started(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    """The environment that torchrun gives a process."""
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", world)):
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize("name", ["cuda", "auto"])
def test_processes_take_a_gpu_each(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert device_of(name) == torch.device("cuda")
    assert taken == []
    for rank in range(3):
        started(monkeypatch, rank, 3)
        assert device_of(name) == torch.device("cuda")
        assert device_of("cpu") == torch.device("cpu")
    assert taken == [0, 1, 0]


@pytest.mark.parametrize(("rank", "process"), [(0, ""), (1, "process 1: ")])
def test_whichever_process_fails_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: int, process: str
) -> None:
    started(monkeypatch, rank, 2)
    assert main(["invert", "nowhere", "--out", "out"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{process}error: nowhere: no such model directory")


@pytest.mark.parametrize(
    ("words", "asked"),
    [("report nowhere --out page.html", "report"), ("claims list", "claims list"),
     ("curves nowhere --out out", "curves"), ("claims table nowhere", "claims table")],
)  # fmt: skip
def test_what_is_not_shared_refuses_several_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, asked: str
) -> None:
    started(monkeypatch, 0, 2)
    assert main(words.split()) == 2
    assert capsys.readouterr().err == (
        f"error: WORLD_SIZE 2: {asked} is of one process, several share invert and claims curves "
        "alone; start it without torchrun\n"
    )


@pytest.mark.parametrize("number", [0, 1, 2])
def test_items_are_dealt_like_cards(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv("RANK", str(number))
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert shards.share(list(range(8))) == list(range(8))[number::3]


def test_alone_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with shards.together():
        shards.wait()
        assert shards.share([1, 2, 3]) == [1, 2, 3]


def test_a_shard_left_behind_is_merged_by_the_next_run(
    model_directory: Directory, tmp_path: Path
) -> None:
    model, out = model_directory(), tmp_path / "out"
    assert main(["invert", str(model), "--out", str(out), *ASKED]) == 0
    rows = (out / ROWS).read_text().splitlines(keepends=True)
    expected = content(out)
    (out / ROWS).write_text("".join(rows[:5]))
    (out / "rows.1.jsonl").write_text("".join(rows[4:9]) + rows[9][:20])  # one is there already
    assert main(["invert", str(model), "--out", str(out), *ASKED]) == 0
    assert content(out) == expected
    assert (out / ROWS).read_text().startswith("".join(rows[:9]))
    assert not (out / "rows.1.jsonl").exists()


def test_each_process_appends_to_a_file_of_its_own(tmp_path: Path) -> None:
    whole = Results(tmp_path)
    whole.append([{"key": "a"}])
    first, second = Results(tmp_path, 0), Results(tmp_path, 1)
    assert first.keys == second.keys == {"a"}
    first.append([{"key": "a"}, {"key": "b"}])
    second.append([{"key": "c"}])
    assert [row["key"] for row in read_rows([tmp_path])] == ["a"]
    whole.merge()
    assert [row["key"] for row in read_rows([tmp_path])] == ["a", "b", "c"]
    whole.merge()
    assert [row["key"] for row in read_rows([tmp_path])] == ["a", "b", "c"]
    assert [path.name for path in tmp_path.iterdir()] == [ROWS]
