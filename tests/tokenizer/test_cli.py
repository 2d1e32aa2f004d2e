"""The commands: what they write and say, and one line for what they cannot do."""

import os
import subprocess
import sys

import pytest

from tokenizer import PackedData, load_tokenizer, open_corpus
from tokenizer.__main__ import main


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "new" / "tokenizer.json"
    assert main(["train", "toy:200", "--out", str(path), "--vocab-size", "800"]) == 0
    return path


def run(*arguments: str, **settings) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tokenizer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, **settings)


def test_train_is_deterministic_to_the_byte(file, tmp_path, capsys):
    again = tmp_path / "again.json"
    assert main(["train", "toy:200", "--out", str(again), "--vocab-size", "800"]) == 0
    assert again.read_bytes() == file.read_bytes()
    assert "800 entries, sha256 " in capsys.readouterr().out
    assert [path.name for path in file.parent.iterdir()] == ["tokenizer.json"]
    assert again.stat().st_mode & 0o777 == 0o644


def test_pack_is_independent_of_the_number_of_workers(file, tmp_path):
    for workers in ("1", "2"):
        out = str(tmp_path / workers)
        options = ["--tokenizer", str(file), "--out", out, "--workers", workers]
        result = run("pack", "toy:300", *options, check=True)
        assert f"{out}/train: 300 stories, " in result.stdout
        assert result.stderr == ""
    one, two = (PackedData(tmp_path / workers) for workers in "12")
    assert one.hash == two.hash
    assert one.meta == two.meta


def test_pack_takes_a_layout_and_a_share(file, tmp_path):
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


def test_inspect_shows_what_was_learnt(file, capsys):
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
    assert "Ċ" in shown
    assert "Ã « Ġ <|endoftext|>\n" in shown
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert main(["inspect", str(file), "--corpus", "toy:40", "--text", ""]) == 0
    assert capsys.readouterr().out.endswith("\n0 tokens, 0 bytes, 0.00 bytes per token\n")


def test_a_pipe_that_closes_early_is_no_error(file):
    words = f"{sys.executable} -m tokenizer inspect {file} --corpus toy:40"
    result = subprocess.run(
        ["bash", "-c", f"{words} | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert (result.stdout, result.stderr) == ("0\n", "")


def test_train_on_a_full_disk_leaves_the_old_file_whole(tmp_path, capsys, full_disk):
    out = tmp_path / "tokenizer.json"
    out.write_text("old")
    full_disk()
    assert main(["train", "toy:50", "--out", str(out), "--vocab-size", "300"]) == 2
    assert "tokenizer.json: the disk is full; free space" in capsys.readouterr().err
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
