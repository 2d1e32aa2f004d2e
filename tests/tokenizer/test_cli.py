"""The commands: what they write and say, and one line for what they cannot do."""

import errno
import fcntl
import json
import os
import stat
import subprocess
import sys

import pytest

from tokenizer import (
    PackedData,
    load_tokenizer,
    open_corpus,
    pack,
    tokenizer_hash,
    train_tokenizer,
)
from tokenizer.__main__ import main


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "new" / "tokenizer.json"
    assert main(["train", "toy:100", "--out", str(path), "--vocab-size", "600"]) == 0
    return path


def run(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run commands of a shell."""
    paths = os.pathsep.join(filter(None, sys.path))
    env = os.environ | {"PYTHONPATH": paths} | environment
    return subprocess.run(["bash", "-c", words], capture_output=True, text=True, env=env)


def test_train_writes_a_whole_file_or_leaves_the_old_one(file, capsys, full_disk):
    before = file.read_bytes()
    words = ["train", "toy:100", "--out", str(file), "--vocab-size", "600"]
    assert main(words) == 0
    sha256 = tokenizer_hash(load_tokenizer(file))
    assert f"600 entries, sha256 {sha256}" in capsys.readouterr().out
    full_disk()
    assert main(words) == 2
    assert "tokenizer.json: the disk is full; free space" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["tokenizer.json"]
    assert file.stat().st_mode & 0o777 == 0o644


def test_train_leaves_another_file_alone_and_its_own_beside_it(file, tmp_path, capsys):
    """What it had learnt, perhaps for hours, was lost."""
    out = tmp_path / "t.json"
    out.write_text("mine")
    assert main(["train", "toy:100", "--out", str(out), "--vocab-size", "600"]) == 2
    assert f"--out {out}: another file is there already; the new" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert (tmp_path / "t.json.new").read_bytes() == file.read_bytes()


def test_train_leaves_out_what_pack_holds_out_and_inspect_is_measured_on_it(tmp_path, capsys):
    source, out = tmp_path / "stories.jsonl", tmp_path / "t.json"
    rows = (json.dumps({"text": f"Story {number**3} of it."}) for number in range(200))
    source.write_text("\n".join(rows))
    assert main(["train", str(source), "--out", str(out), "--vocab-size", "300"]) == 0
    data = pack(source, out, tmp_path / "data")
    learnt = train_tokenizer(data.stories("train"), 300)
    assert tokenizer_hash(load_tokenizer(out)) == tokenizer_hash(learnt)
    every = train_tokenizer(open_corpus(source, "train"), 300)
    assert tokenizer_hash(learnt) != tokenizer_hash(every)
    assert main(["inspect", str(out), "--corpus", str(source)]) == 0
    held_out = data.meta["splits"]["valid"]["stories"]
    assert f"{source}, valid: {held_out} stories" in capsys.readouterr().out


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_file_system_that_flushes_no_directory_is_written(file, tmp_path, monkeypatch, code):
    """As those of networks and clouds; and one without locks."""

    def refuse(handle, *_):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(fcntl, "flock", refuse)
    expected = 2 if code == errno.EIO else 0
    for words in ("train toy:60 --vocab-size 300", f"pack toy:20 --tokenizer {file}"):
        assert main([*words.split(), "--out", str(tmp_path / words[:4])]) == expected


def test_pack_takes_a_layout_and_a_share_and_any_number_of_threads(file, tmp_path):
    source, datas = tmp_path / "stories.txt", []
    stories = open_corpus("toy:100", "train")
    source.write_text("".join(f"{story}\n<|endoftext|>\n" for story in stories))
    options = f"pack {source} --tokenizer {file} --valid-fraction 0.3 --limit 50 --layout rows"
    options += " --context 64 --pad-side left --out "
    assert main([*options.split(), str(tmp_path / "data")]) == 0
    words = f"{sys.executable} -m tokenizer {options} {tmp_path}/one"
    done = run(words, RAYON_NUM_THREADS="1")
    assert f"{tmp_path}/one/train: 50 stories, " in done.stdout
    datas = [PackedData(tmp_path / name) for name in ("data", "one")]
    assert datas[0].meta == datas[1].meta
    for split, line in zip(("train", "valid"), done.stderr.splitlines(), strict=True):
        counts = datas[0].meta["splits"][split]
        assert counts["cut"] > 0
        assert f"{split}: {counts['cut']} of {counts['rows']} stories are longer" in line
    assert datas[0].tokens("train").shape == (50, 64)
    assert 10 < len(datas[0].tokens("valid")) < 50
    assert datas[0].meta["pad_side"] == "left"


def test_inspect_shows_what_was_learnt(file, tmp_path, capsys):
    text = "Once upon a time,\nZoë <|endoftext|>"
    assert main(["inspect", str(file), "--corpus", "toy:400", "--text", text]) == 0
    shown = capsys.readouterr().out
    assert "600 (2 special, 256 bytes, 342 merges)" in shown
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
    other = load_tokenizer(file)
    other.add_special_tokens(["<|user|>"])
    other.save(str(tmp_path / "other.json"))
    assert main(["inspect", str(tmp_path / "other.json"), "--corpus", "toy:40"]) == 0
    assert "601 (3 special, 256 bytes, 342 merges)" in capsys.readouterr().out


def test_closed_streams_are_no_error(file, tmp_path, monkeypatch):
    for words in (
        f"train toy:100 --vocab-size 300 --out {tmp_path}/t.json",
        f"pack toy:40 --tokenizer {file} --out {tmp_path}/data",
        f"inspect {file} --corpus toy:40",
    ):
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, None)
        assert main(words.split()) == 0
        sys.stdout.close()
        sys.stderr.close()
    assert PackedData(tmp_path / "data").meta["source"] == "toy:40"


def test_what_was_not_written_before_a_pipe_closed_is_an_error(file, tmp_path, monkeypatch):
    def unheard(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr("tokenizer.__main__.pack", unheard)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    assert main(["pack", "toy:40", "--tokenizer", str(file), "--out", str(tmp_path / "data")]) == 2


def test_a_pipe_that_closes_early_is_no_error(file):
    words = f"{sys.executable} -m tokenizer inspect {file} --corpus toy:40"
    done = run(f"{words} | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == ("0\n", "")
