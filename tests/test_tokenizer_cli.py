"""The commands: what they write and say, and one line for what they cannot do."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokenizer import PackedData, load_tokenizer, open_corpus
from tokenizer.__main__ import main
from tokenizer.progress import Progress


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "new" / "tokenizer.json"
    assert main(["train", "toy:200", "--out", str(path), "--vocab-size", "800"]) == 0
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run a command that must fail; return its one line."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def run(*arguments: str, **settings) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tokenizer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, **settings)


def test_train_is_deterministic_to_the_byte(file: Path, tmp_path: Path, capsys):
    again = tmp_path / "again.json"
    assert main(["train", "toy:200", "--out", str(again), "--vocab-size", "800"]) == 0
    assert again.read_bytes() == file.read_bytes()
    assert "800 entries, sha256 " in capsys.readouterr().out
    assert [path.name for path in file.parent.iterdir()] == ["tokenizer.json"]
    assert again.stat().st_mode & 0o777 == 0o644


def test_pack_is_independent_of_the_number_of_workers(file: Path, tmp_path: Path):
    for workers in ("1", "2"):
        out = str(tmp_path / workers)
        options = ["--tokenizer", str(file), "--out", out, "--workers", workers]
        result = run("pack", "toy:300", *options, check=True)
        assert f"{out}/train: 300 stories, " in result.stdout
        assert result.stderr == ""
    one, two = (PackedData(tmp_path / workers) for workers in "12")
    assert one.hash == two.hash
    assert one.meta == two.meta


def test_pack_takes_a_layout_and_a_share(file: Path, tmp_path: Path):
    source = tmp_path / "stories.txt"
    stories = open_corpus("toy:100", "train")
    source.write_text("".join(f"{story}\n<|endoftext|>\n" for story in stories))
    options = ["--tokenizer", str(file), "--out", str(tmp_path / "data"), "--valid-fraction", "0.3"]
    options += ["--layout", "rows", "--context", "64", "--pad-side", "left", "--limit", "50"]
    assert main(["pack", str(source), *options]) == 0
    data = PackedData(tmp_path / "data")
    assert data.tokens("train").shape == (50, 64)
    assert 10 < len(data.tokens("valid")) < 50
    assert data.meta["pad_side"] == "left"
    assert main(["pack", "toy:10", *options[:4], "--force"]) == 0
    assert PackedData(tmp_path / "data").meta["layout"] == "packed"


def test_inspect_shows_what_was_learnt(file: Path, capsys):
    text = "Once upon a time,\nZoë <|endoftext|>"
    assert main(["inspect", str(file), "--corpus", "toy:400", "--text", text]) == 0
    shown = capsys.readouterr().out
    assert "800 (2 special, 256 bytes, 542 merges)" in shown
    assert "toy:400, valid: 20 stories" in shown
    stories = list(open_corpus("toy:400", "valid"))
    tokens = sum(len(load_tokenizer(file).encode(story).ids) + 1 for story in stories)
    ratio = sum(len(story.encode()) for story in stories) / tokens
    assert f"bytes per token  {ratio:.3f}\n" in shown
    assert "longest tokens" in shown
    assert "rarest tokens" in shown
    assert "<0xc3> <0xab> · <|endoftext|>\n" in shown
    assert "↵" in shown
    assert f" tokens, {len(text.encode())} bytes, " in shown
    assert all(len(line) <= 100 for line in shown.splitlines())


def test_inspect_takes_an_empty_text(file: Path, capsys):
    assert main(["inspect", str(file), "--corpus", "toy:40", "--text", ""]) == 0
    assert capsys.readouterr().out.endswith("\n0 tokens, 0 bytes\n")


def test_sample_prints_stories_that_are_a_corpus_again(tmp_path: Path, capsys):
    assert main(["sample", "--count", "5", "--seed", "3"]) == 0
    path = tmp_path / "stories.txt"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert list(open_corpus(str(path), "train")) == list(open_corpus("toy:5:3", "train"))


def test_a_pipe_that_closes_early_is_no_error():
    command = (
        f"{sys.executable} -m tokenizer sample --count 2000 | head -n 1; echo ${{PIPESTATUS[0]}}"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=env, check=True
    )
    assert result.stderr == ""
    assert result.stdout.endswith("\n0\n")


@pytest.mark.parametrize("command", ["train", "pack", "inspect", "sample"])
def test_help_has_examples_to_copy(command: str, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert f"  python -m tokenizer {command} " in shown
    assert "hub:roneneldan/TinyStories" in shown


def test_train_refuses_what_it_cannot_do(tmp_path: Path, capsys):
    (tmp_path / "file").write_text("")
    out = tmp_path / "t.json"
    assert "no such file or directory" in refused(capsys, "train", "nowhere", "--out", out)
    line = refused(capsys, "train", "toy:10", "--out", tmp_path / "file" / "t.json")
    assert "file/t.json: cannot be written (" in line
    assert "is a directory" in refused(capsys, "train", "toy:10", "--out", tmp_path)
    line = refused(capsys, "train", "toy:10", "--out", out, "--vocab-size", "9999")
    assert "entries only; give more stories" in line
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_train_on_a_full_disk_leaves_the_old_file_whole(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "tokenizer.json"
    out.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    line = refused(capsys, "train", "toy:50", "--out", out, "--vocab-size", "300")
    assert "tokenizer.json: the disk is full, nothing was written" in line
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_pack_refuses_what_it_cannot_do(file: Path, tmp_path: Path, capsys):
    out = tmp_path / "data"
    missing = tmp_path / "t.json"
    line = refused(capsys, "pack", "toy:10", "--tokenizer", missing, "--out", out)
    assert "t.json: no such file; make one with" in line
    line = refused(capsys, "pack", "toy:10", "--tokenizer", file, "--out", out, "--context", "8")
    assert "need --layout rows" in line
    line = refused(capsys, "pack", "toy:10", "--tokenizer", file, "--out", tmp_path)
    assert "already exists" in line
    line = refused(capsys, "pack", "toy:10", "--tokenizer", file, "--out", out, "--workers", "0")
    assert "--workers 0: must be 1 or more" in line
    assert list(tmp_path.iterdir()) == []


def test_sample_and_inspect_refuse_what_they_cannot_do(tmp_path: Path, capsys):
    assert "--count 0: must be 1 or more" in refused(capsys, "sample", "--count", "0")
    assert "no such file; make one with" in refused(capsys, "inspect", tmp_path)


def test_bad_usage_exits_with_2(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", "toy"])
    assert caught.value.code == 2
    assert "--out" in capsys.readouterr().err


class Stream:
    """A stream that remembers."""

    def __init__(self, terminal: bool):
        self.terminal, self.text = terminal, ""

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_tells_the_time_left_now_and_then(terminal: bool, monkeypatch: pytest.MonkeyPatch):
    clock = iter([0.0, 0.0, 0.01, 20.0, 20.1, 40.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    stream = Stream(terminal)
    progress = Progress(stream)  # type: ignore[arg-type]
    for done in (1, 2, 200, 201, 400):
        progress("train", done, lambda: 1000)
    progress.close()
    lines = [line.strip("\033[K") for line in stream.text.replace("\r", "\n").split("\n") if line]
    assert lines[:2] == [
        "train: 200 of about 1,000, 80 s left",
        "train: 400 of about 1,000, 60 s left",
    ]
    assert ("\r" in stream.text) == terminal
