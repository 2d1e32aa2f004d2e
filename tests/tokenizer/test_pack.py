"""Packed data: what went in comes out, counted rightly, whole or not there."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.said import one_line
from tests.tokenizer.conftest import contents
from tokenizer import (
    END_OF_TEXT,
    PAD,
    CorpusError,
    PackedData,
    load_tokenizer,
    open_corpus,
    pack,
    tokenizer_hash,
)
from tokenizer.pack import Layout

KILLED = """
import os, pathlib, signal, sys
from tokenizer import pack
rename = pathlib.Path.rename
def fatal(path, target):
    if str(target) == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(path, target)
pathlib.Path.rename = fatal
pack("toy:6", sys.argv[1], sys.argv[2], shard_tokens=500, force=True)
"""
SOURCE = "toy:60"
CONTEXT = 400  # some stories of SOURCE are shorter, some longer
STORIES = ["Zoë said:\n\n“Hi 🙂”", f"A story that says {PAD}.", "The end."]


@pytest.fixture(scope="module")
def packed(tokenizer, tmp_path_factory):
    return pack(SOURCE, tokenizer, tmp_path_factory.mktemp("packed") / "data")


@pytest.fixture
def data(packed, tokenizer, tmp_path):
    """Return a fresh data directory, to be spoilt."""
    return pack("toy:4", tokenizer, tmp_path / "data").path


@pytest.mark.parametrize("split", ["train", "valid"])
def test_packed_tokens_are_the_stories_each_with_its_end(packed, split):
    stories = list(open_corpus(SOURCE, split))
    tokens = packed.tokens(split)
    assert not tokens.flags.owndata  # mapped, not copied
    assert tokens.dtype == np.uint16
    assert not tokens.flags.writeable
    text = load_tokenizer(packed.path).decode(tokens.tolist(), skip_special_tokens=False)
    assert text == "".join(story + END_OF_TEXT for story in stories)

    encode = load_tokenizer(packed.path).encode
    assert tokens.tolist() == [token for story in stories for token in (*encode(story).ids, 0)]

    counts = dict(packed.meta["splits"][split])
    (shard,) = counts.pop("shards")
    size = sum(len(story.encode()) for story in stories)
    content = (packed.path / f"{split}-00000.bin").read_bytes()
    assert counts == {
        "stories": len(stories),
        "tokens": len(tokens),
        "bytes": size,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert shard == counts | {"file": f"{split}-00000.bin"}
    assert content == tokens.astype("<u2").tobytes()
    assert packed.bytes_per_token(split) == size / len(tokens)


def test_meta_tells_where_the_data_comes_from(packed, tokenizer):
    meta = json.loads((packed.path / "meta.json").read_text())
    assert meta == packed.meta
    splits = meta.pop("splits")
    assert meta == {
        "schema": 1,
        "layout": "packed",
        "pad_side": None,
        "context": None,
        "vocab_size": 400,
        "tokenizer_sha256": tokenizer_hash(load_tokenizer(tokenizer)),
        "source": SOURCE,
        "valid_fraction": None,
    }
    assert (packed.path / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    assert tokenizer_hash(Tokenizer.from_str(packed.tokenizer_json)) == meta["tokenizer_sha256"]
    both = splits["train"]["sha256"] + splits["valid"]["sha256"]
    assert packed.hash == hashlib.sha256(both.encode()).hexdigest()


def test_packing_again_in_batches_of_another_size_gives_the_same_files(
    packed, tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setattr("tokenizer.bpe.BATCH", 7)
    assert contents(pack(SOURCE, tokenizer, tmp_path / "data").path) == contents(packed.path)
    assert pack("toy:60:1", tokenizer, tmp_path / "other").hash != packed.hash


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_are_what_transformers_makes_of_the_stories(tokenizer, tmp_path, side):
    data = pack(SOURCE, tokenizer, tmp_path / "data", Layout("rows", CONTEXT, side))
    stories = list(open_corpus(SOURCE, "train"))
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer), pad_token=PAD, padding_side=side, truncation_side="right"
    )
    expected = theirs(
        [story + END_OF_TEXT for story in stories],
        padding="max_length",
        truncation=True,
        max_length=CONTEXT,
        return_tensors="np",
    )
    tokens = data.tokens("train")
    assert tokens.shape == (len(stories), CONTEXT)
    np.testing.assert_array_equal(tokens, expected["input_ids"])

    counts = data.meta["splits"]["train"]
    real = np.asarray(expected["attention_mask"], bool)
    assert 0 < (~real).any(1).sum() < len(stories)
    assert counts["rows"] == counts["stories"] == len(stories)
    assert counts["tokens"] == real.sum()
    assert 0 < counts["cut"] == (~(tokens == 0).any(1)).sum() <= len(stories)
    kept = load_tokenizer(tokenizer).decode(tokens[real].tolist(), skip_special_tokens=True)
    assert counts["bytes"] == len(kept.encode())  # what was cut off is not counted
    assert (data.meta["context"], data.meta["pad_side"]) == (CONTEXT, side)


def test_a_story_that_spells_a_pad_is_only_text(tokenizer, tmp_path):
    source = tmp_path / "stories.jsonl"
    texts = [f"{number}: {text}" for number in range(20) for text in STORIES]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    data = pack(str(source), tokenizer, tmp_path / "data", valid_fraction=0.3)
    tokens = np.concatenate([data.tokens("train"), data.tokens("valid")])
    assert (tokens == 1).sum() == 0
    assert (tokens == 0).sum() == len(texts)
    told = load_tokenizer(tokenizer).decode(tokens.tolist(), skip_special_tokens=False)
    assert sorted(told.split(END_OF_TEXT)[:-1]) == sorted(texts)


def test_progress_is_reported(tokenizer, tmp_path):
    seen = []
    pack("toy:40", tokenizer, tmp_path / "d", report=lambda *done: seen.append(done))
    assert seen == [("train", 40), ("valid", 2)]


def test_what_is_there_is_not_replaced_unless_forced(data, tokenizer):
    before = contents(data)
    with pytest.raises(CorpusError, match=r"--out .*data: already exists; .*--force"):
        pack("toy:6", tokenizer, data)
    assert contents(data) == before
    pack("toy:6", data / "tokenizer.json", data, force=True)
    assert PackedData(data).meta["source"] == "toy:6"
    assert [path.name for path in data.parent.iterdir()] == ["data"]


@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk_leaves_nothing_behind(data, tokenizer, full_disk, force):
    out = data if force else data.parent / "other"
    before = contents(data)
    full_disk()
    with pytest.raises(CorpusError, match=r"--out .*: the disk is full; free"):
        pack("toy:6", tokenizer, out, force=force)
    assert contents(data) == before
    assert [path.name for path in data.parent.iterdir()] == ["data"]


def test_a_rename_that_fails_leaves_the_old_directory(data, tokenizer, monkeypatch):
    rename, before = Path.rename, contents(data)

    def failing(path, target):
        if path.suffix == ".partial":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with one_line(CorpusError, f"--out {data}: cannot be written (Input/output error); choose"):
        pack("toy:6", tokenizer, data, force=True)
    assert contents(data) == before
    monkeypatch.undo()
    pack("toy:6", tokenizer, data, force=True)
    assert [path.name for path in data.parent.iterdir()] == ["data"]


def test_a_replacement_that_is_killed_is_finished_by_the_same_command(data, tokenizer):
    before = contents(data)
    command = [sys.executable, "-c", KILLED, str(tokenizer), str(data)]
    root = Path(__file__).parents[2]
    assert subprocess.run(command, cwd=root, check=False).returncode == -signal.SIGKILL
    assert not data.exists()
    pack("toy:6", tokenizer, data, shard_tokens=500)
    assert contents(data) != before
    assert PackedData(data).meta["source"] == "toy:6"
    assert [path.name for path in data.parent.iterdir()] == ["data"]


def test_neighbours_are_joined_to_longer_stories(tokenizer, tmp_path, monkeypatch):
    """The splits stay as they are; and a packing that is interrupted goes on to the same files."""
    source, texts = tmp_path / "book.txt", [f"Paragraph {i} of a book." for i in range(90)]
    source.write_text("\n\n".join(texts))
    chosen = {"valid_fraction": 0.3, "story_tokens": 60, "shard_tokens": 150}
    data = pack(str(source), tokenizer, tmp_path / "data", **chosen)
    expected = {
        split: list(open_corpus(str(source), split, valid_fraction=0.3))
        for split in ("train", "valid")
    }
    for split, paragraphs in expected.items():
        stories = list(data.stories(split))
        assert "\n\n".join(stories).split("\n\n") == paragraphs
        *whole, _ = [len(load_tokenizer(tokenizer).encode(story).ids) for story in stories]
        assert min(whole) >= 60
    report = iter([None] * 7)
    monkeypatch.setattr("tokenizer.bpe.BATCH", 8)
    with pytest.raises(StopIteration):
        pack(str(source), tokenizer, tmp_path / "again", **chosen, report=lambda *_: next(report))
    assert list((tmp_path / ".again.partial").glob("*.bin"))
    again = pack(str(source), tokenizer, tmp_path / "again", **chosen)
    assert contents(again.path) == contents(data.path)
