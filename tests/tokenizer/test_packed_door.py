"""Packed data that is not what was packed is refused in one line, and never read from the past."""

import copy
import json
import os
import shutil

import numpy as np
import pytest

from tests.said import one_line
from tokenizer import CorpusError, PackedData, pack
from tokenizer.pack import Layout


@pytest.fixture(scope="module")
def made(tokenizer, tmp_path_factory):
    at = tmp_path_factory.mktemp("door")
    pack("toy:30", tokenizer, at / "rows", Layout("rows", 64))
    pack("toy:30", tokenizer, at / "packed")
    return at


@pytest.fixture
def data(made, tmp_path):
    return shutil.copytree(made / "packed", tmp_path / "data")


def test_data_packed_again_at_the_same_place_is_read_anew(tokenizer, tmp_path):
    for source in ("toy:30", "toy:30:7"):  # as many rows, other tokens
        data = pack(source, tokenizer, tmp_path / "data", Layout("rows", 64))
        written = np.fromfile(data.path / "train-00000.bin", "<u2")
        np.testing.assert_array_equal(data.tokens("train").ravel(), written)
        line = data.line("train")
        np.testing.assert_array_equal(line.windows(np.array([0, 64]), 64).ravel(), written[:128])
        shutil.rmtree(data.path)


def test_tokens_stay_what_was_read_when_their_file_is_written_in_place(data):
    tokens = PackedData(data).tokens("valid")
    held = tokens.copy()
    with (data / "valid-00000.bin").open("r+b") as file:
        file.write(bytes(tokens.nbytes))
    np.testing.assert_array_equal(tokens, held)


@pytest.mark.parametrize("name", ["tokenizer.json", "valid-00000.bin"])
def test_a_pointer_of_git_is_named(data, name):
    (data / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n")
    with one_line(CorpusError, f"{name}: a pointer of Git LFS"):
        PackedData(data)


def test_bytes_that_changed_are_refused_when_a_split_is_read(data):
    file = data / "train-00000.bin"
    ids = np.fromfile(file, "<u2")
    ids[17] ^= 1
    ids.tofile(file)
    opened = PackedData(data)
    assert len(opened.line("valid"))
    with one_line(CorpusError, "train-00000.bin: not the bytes that were packed"):
        opened.line("train")


def test_ids_beyond_the_vocabulary_are_refused(data, tokenizer):
    """Even where hash and counts agree with them; and where they come while the file is read."""
    import hashlib

    line = PackedData(data).line("train")
    file, meta = data / "train-00000.bin", json.loads((data / "meta.json").read_text())
    ids = np.fromfile(file, "<u2")
    ids[5] = 60_000
    ids.tofile(file)
    with one_line(CorpusError, "60000"):
        line.windows(np.array([0]), 9)
    split = meta["splits"]["train"]
    for part in (split, split["shards"][0]):
        part["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (data / "meta.json").write_text(json.dumps(meta))
    with one_line(CorpusError, "train-00000.bin: holds id 60000"):
        PackedData(data).line("train")


def test_a_file_cut_off_while_it_is_read_is_refused(data):
    line = PackedData(data).line("train")
    line.windows(np.array([0]), 9)
    os.truncate(data / "train-00000.bin", 100)
    with one_line(CorpusError, "train-00000.bin: 100 bytes"):
        line.windows(np.array([len(line) - 20]), 9)


@pytest.mark.parametrize(
    ("layout", "name", "by"),
    [("packed", "bytes", 1), ("packed", "bytes", -1), ("packed", "stories", 1),
     ("rows", "cut", 1), ("rows", "tokens", -1), ("rows", "bytes", 9), ("rows", "stories", -1)],
)  # fmt: skip
def test_counts_that_the_files_do_not_have_are_refused(layout, name, by, made, tmp_path):
    """Bits/byte were computed of them."""
    data = shutil.copytree(made / layout, tmp_path / "data")
    file = data / "meta.json"
    meta = json.loads(file.read_text())
    split = meta["splits"]["valid"]
    for part in (split, split["shards"][0]):
        part[name] += by
    file.write_text(json.dumps(meta))
    opened = PackedData(data)
    assert len(opened.line("train"))
    with one_line(CorpusError, f"meta.json: splits.valid.{name} {split[name]}: must be "):
        opened.line("valid")


def test_shards_of_another_packing_are_not_the_data_of_that_hash(tokenizer, tmp_path):
    """The hash of the split was believed, so that rows and runs went on with other tokens."""
    data = pack("toy:30", tokenizer, tmp_path / "data", shard_tokens=900).path
    meta = json.loads((data / "meta.json").read_text())
    split = meta["splits"]["train"]
    last = split["shards"].pop()
    for key in ("stories", "tokens", "bytes"):
        split[key] -= last[key]
    (data / last["file"]).unlink()
    (data / "meta.json").write_text(json.dumps(meta))
    with one_line(CorpusError, f"meta.json: splits.train.sha256 {split['sha256']}: must be "):
        PackedData(data).line("train")


CHANGES = {
    "layout": ["x", None, 3],
    "context": [64, "64"],
    "pad_side": ["left"],
    "vocab_size": [None, "400", 401, True],
    "source": [None, 3],
    "valid_fraction": ["x", 2, float("nan")],
    "tokenizer_sha256": [None, 5],
    "schema": [None, "1", [1]],
    "splits": [None, [], {}, {"train": 1}],
    "splits train": [None, []],
    "splits train shards": [None, [], "x", [None], [{}]],
    "splits train sha256": [None, 5, "0" * 64],
    "splits valid tokens": [None, 0, "9", 7, 1.5],
    "splits valid shards 0 file": [
        "../elsewhere.bin",
        "train-00000.bin",
        "/valid.bin",
        None,
        5,
        "",
    ],
    "splits valid shards 0 tokens": [None, -1, 1 << 60],
    "splits valid shards 0 sha256": [None, []],
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_entry_of_meta_json_that_packing_does_not_write_is_refused(name, data):
    file = data / "meta.json"
    good, *path = json.loads(file.read_text()), *name.split()
    for value in CHANGES[name]:
        meta = copy.deepcopy(good)
        inner = meta
        for key in path[:-1]:
            inner = inner[int(key) if isinstance(inner, list) else key]
        inner[path[-1]] = value
        file.write_text(json.dumps(meta))
        with one_line(CorpusError, ""):
            PackedData(data)
        inner.pop(path[-1], None)
        if name != "valid_fraction" and path[0] not in ("context", "pad_side"):
            file.write_text(json.dumps(meta))
            with one_line(CorpusError, ""):
                PackedData(data)
