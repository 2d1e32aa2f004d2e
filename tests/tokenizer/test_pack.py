"""Packed data: what went in comes out, counted rightly, whole or not there; in one file or many."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.tokenizer.conftest import contents
from tokenizer import (
    END_OF_TEXT,
    PAD,
    CorpusError,
    PackedData,
    corpus,
    load_tokenizer,
    open_corpus,
    pack,
    tokenizer_hash,
)
from tokenizer.__main__ import main
from tokenizer.data import Shard, TokenLine, open_shard
from tokenizer.pack import Layout

SOURCE = "toy:60"
CONTEXT = 400  # some stories of SOURCE are shorter, some longer
STORIES = ["Zoë said:\n\n“Hi 🙂”", f"A story that says {PAD}.", "The end."]


@pytest.fixture(scope="module")
def packed(tokenizer, tmp_path_factory):
    return pack(SOURCE, tokenizer, tmp_path_factory.mktemp("packed") / "data")


@pytest.fixture(scope="module")
def made(tokenizer, tmp_path_factory):
    return pack(SOURCE, tokenizer, tmp_path_factory.mktemp("m") / "data", shard_tokens=300).path


@pytest.fixture
def sharded(made, tmp_path):
    """Many small shards, which a test may spoil."""
    return PackedData(shutil.copytree(made, tmp_path / "data"))


@pytest.mark.parametrize("split", ["train", "valid"])
def test_packed_tokens_are_the_stories_each_with_its_end(packed, split):
    stories = list(open_corpus(SOURCE, split))
    tokens = packed.tokens(split)
    assert tokens.dtype == np.uint16
    encode = load_tokenizer(packed.path).encode
    assert tokens.tolist() == [token for story in stories for token in (*encode(story).ids, 0)]
    assert list(packed.stories(split)) == stories
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
        "field": "text",
        "valid_fraction": None,
        "source_files": {},
    }
    assert (packed.path / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    assert tokenizer_hash(Tokenizer.from_str(packed.tokenizer_json)) == meta["tokenizer_sha256"]
    both = splits["train"]["sha256"] + splits["valid"]["sha256"]
    assert packed.hash == hashlib.sha256(both.encode()).hexdigest()


def test_packing_again_in_batches_of_another_size_gives_the_same_files(
    packed, tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setattr("tokenizer.bpe.BATCH", 7)
    seen = []
    again = pack(SOURCE, tokenizer, tmp_path / "d", report=lambda *done: seen.append(done))
    assert contents(again.path) == contents(packed.path)
    assert (seen[0], seen[-1]) == (("train", 7), ("valid", 3))
    assert pack("toy:60:1", tokenizer, tmp_path / "other").hash != packed.hash


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_are_what_transformers_makes_of_the_stories(tokenizer, tmp_path, side):
    layout = Layout("rows", CONTEXT, side)
    data = pack(SOURCE, tokenizer, tmp_path / "data", layout, shard_tokens=2000)
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
    assert len(data.shards("train")) > 3
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


def test_neighbours_are_joined_to_longer_stories(tokenizer, tmp_path, monkeypatch):
    """The splits stay as they are; and a packing that is interrupted goes on to the same files."""
    source, texts = tmp_path / "book.txt", [f"Paragraph {i} of a book." for i in range(90)]
    source.write_text("\n\n".join(texts))
    chosen = {"valid_fraction": 0.3, "story_tokens": 60, "shard_tokens": 150}
    data = pack(str(source), tokenizer, tmp_path / "data", **chosen)
    for split in ("train", "valid"):
        stories = list(data.stories(split))
        paragraphs = list(open_corpus(str(source), split, valid_fraction=0.3))
        assert "\n\n".join(stories).split("\n\n") == paragraphs
        *whole, _ = [len(load_tokenizer(tokenizer).encode(story).ids) for story in stories]
        assert min(whole) >= 60
    more = {"valid_fraction": 0.3, "story_tokens": whole[0]}  # a story of just as many is whole
    as_long = pack(str(source), tokenizer, tmp_path / "as long", **more)
    assert next(iter(as_long.stories(split))) == stories[0]
    report = iter([None] * 7)
    monkeypatch.setattr("tokenizer.bpe.BATCH", 1)
    with pytest.raises(StopIteration):
        pack(str(source), tokenizer, tmp_path / "again", **chosen, report=lambda *_: next(report))
    assert list((tmp_path / ".again.partial").glob("*.bin"))
    again = pack(str(source), tokenizer, tmp_path / "again", **chosen)
    assert contents(again.path) == contents(data.path)


def test_a_packing_goes_on_with_the_same_files_alone(tokenizer, tmp_path, monkeypatch):
    """Stories that were put before those of whole shards would be lost, or packed twice."""
    source, out = tmp_path / "book.txt", tmp_path / "data"
    texts, report = [f"Paragraph {i} of a book." for i in range(90)], iter([None] * 7)
    source.write_text("\n\n".join(texts))
    monkeypatch.setattr("tokenizer.bpe.BATCH", 8)
    with pytest.raises(StopIteration):
        pack(str(source), tokenizer, out, shard_tokens=150, report=lambda *_: next(report))
    kept = contents(tmp_path / ".data.partial")
    source.write_text("\n\n".join(texts[30:]))
    message = r"interrupted had files 1 of [\d,]+ bytes, written until .*, now 1 of .*or remove "
    with pytest.raises(CorpusError, match=message):
        pack(str(source), tokenizer, out, shard_tokens=150)
    assert contents(tmp_path / ".data.partial") == kept


@pytest.mark.parametrize("split", ["train", "valid"])
def test_shards_hold_what_one_file_does(packed, sharded, split):
    assert len(sharded.shards("train")) > 30
    np.testing.assert_array_equal(sharded.tokens(split), packed.tokens(split))
    counts, expected = (data.meta["splits"][split] for data in (sharded, packed))
    assert all(counts[key] == expected[key] for key in ("stories", "tokens", "bytes"))
    assert sum(shard["stories"] for shard in counts["shards"]) == expected["stories"]
    assert sharded.hash == packed.hash  # of the tokens, however they are divided
    for shard in sharded.shards(split):
        tokens = np.fromfile(shard.path, "<u2")
        assert tokens[-1] == 0  # whole stories only
        assert len(tokens) == shard.tokens
    assert all(shard.tokens >= 300 for shard in sharded.shards(split)[:-1])


def test_any_stretch_of_the_line_is_read_from_few_open_files(packed, sharded, monkeypatch):
    monkeypatch.setattr("tokenizer.data.open_shard", lru_cache(4)(open_shard.__wrapped__))
    line, expected = sharded.line("train"), packed.tokens("train")
    before = len(os.listdir("/proc/self/fd"))
    assert len(line) == len(expected)
    random = np.random.default_rng(0)
    for start in random.integers(len(line), size=50):
        stop = int(start + random.integers(3000))  # over several shards, and beyond the end
        np.testing.assert_array_equal(line.read(int(start), stop), expected[start:stop])
    starts = random.integers(len(line) - 700, size=40)
    np.testing.assert_array_equal(
        line.windows(starts, 700), np.stack([expected[s : s + 700] for s in starts])
    )
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    assert len(TokenLine([])) == 0
    assert len(TokenLine([Shard(Path("x"), 3)])) == 3


def stories(number: int) -> list[str]:
    return list(open_corpus(f"toy:{number}:5", "train"))


def test_a_source_without_splits_is_read_once(tokenizer, tmp_path, monkeypatch):
    """Files in folders, as a dataset's dump has them, none named after a split."""
    source, texts, read = tmp_path / "parts", stories(100), []
    for i in range(5):
        path = source / f"dump-{i % 2}" / f"00{i}_00000.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"content": texts[i::5]}), path)
    chosen: dict[str, Any] = {"valid_fraction": 0.2, "field": "content"}
    one = pack(str(source), tokenizer, tmp_path / "one", **chosen)
    read_file = corpus.read_file

    def counted(*arguments):
        for text in read_file(*arguments):
            read.append(text)
            yield text

    monkeypatch.setattr(corpus, "read_file", counted)
    many = pack(str(source), tokenizer, tmp_path / "many", **chosen, shard_tokens=800)
    for split in ("train", "valid"):
        assert len(many.shards(split)) > 1
        np.testing.assert_array_equal(many.tokens(split), one.tokens(split))
    assert 100 < len(read) < 200  # each once, and the first ones when a split is opened
    read.clear()
    few = pack(str(source), tokenizer, tmp_path / "few", **chosen, limit=10)
    assert few.meta["splits"]["train"]["stories"] == 10
    assert few.meta["splits"]["valid"]["stories"] == 3
    assert len(read) < 90  # valid is not waited for until it has as many


def test_a_dataset_of_the_hub_is_streamed(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    hub, about = tmp_path / "FineStories", "---\nconfigs:\n"
    for name, count in (("small", 20), ("large", 40)):
        (hub / name).mkdir(parents=True)
        pq.write_table(pa.table({"text": stories(40)[:count]}), hub / name / "train.parquet")
        about += f"- config_name: {name}\n  data_files: {name}/*.parquet\n"
    (hub / "README.md").write_text(f"{about}---\n")
    data = pack(f"hub:{hub}:large", tokenizer, tmp_path / "data", valid_fraction=0.2)
    assert sum(data.meta["splits"][split]["stories"] for split in ("train", "valid")) == 40
    assert not list((tmp_path / "cache").rglob("*.arrow"))  # nothing was copied
    with pytest.raises(CorpusError, match=r"not found\. Available: ..small., .large"):
        open_corpus(f"hub:{hub}:medium", "train", stream=True)


@pytest.mark.parametrize("shards", [None, 2, 5])
def test_a_full_disk_keeps_whole_shards_and_nothing_else(
    tokenizer, packed, made, tmp_path, full_disk, monkeypatch, shards
):
    """And packing goes on later to the same files; without a whole shard nothing is left."""
    size: Any = {} if shards is None else {"shard_tokens": 300}
    full_disk(after=2 + 2 * (shards or 0))
    message = r"--out \S+data: the disk is full; free"
    message += "" if shards is None else rf".*; {shards} complete shards are kept: the same command"
    with pytest.raises(CorpusError, match=message):
        pack(SOURCE, tokenizer, tmp_path / "data", **size)
    assert [path.name for path in tmp_path.iterdir()] == [".data.partial"] * bool(shards)
    monkeypatch.undo()
    data = pack(SOURCE, tokenizer, tmp_path / "data", **size)
    assert contents(data.path) == contents(packed.path if shards is None else made)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_an_interrupted_packing_goes_on_after_its_whole_shards(
    made, tokenizer, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("tokenizer.bpe.BATCH", 8)
    out, toy = tmp_path / "other", corpus.toy_stories

    def failing(after):
        def texts(*which):
            yield from islice(toy(*which), after)
            raise CorpusError("the source broke")

        return texts

    for after in (30, 55):
        monkeypatch.setattr(corpus, "toy_stories", failing(after))
        message = r"broke; \d+ complete shards are kept: the same command"
        with pytest.raises(CorpusError, match=message):
            pack(SOURCE, tokenizer, out, shard_tokens=300)
        assert not out.exists()
    monkeypatch.setattr(corpus, "toy_stories", toy)
    with pytest.raises(CorpusError, match=r"source \S+, now toy:9; shard-tokens 300, now 200; ask"):
        pack("toy:9", tokenizer, out, shard_tokens=200)
    command = ["pack", SOURCE, "--tokenizer", str(tokenizer), "--shard-tokens", "300"]
    assert main([*command, "--out", str(out)]) == 0
    assert "complete shards\n" in capsys.readouterr().err
    assert contents(out) == contents(made)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    with pytest.raises(CorpusError, match="other: already exists; remove it"):
        pack(SOURCE, tokenizer, out)
    assert contents(out) == contents(made)


def test_two_packings_do_not_write_the_same_place(tokenizer, tmp_path):
    def pack_beside(*_):
        with pytest.raises(CorpusError, match="data: another packing is writing it; wait for it"):
            pack(SOURCE, tokenizer, tmp_path / "data")

    assert pack(SOURCE, tokenizer, tmp_path / "data", report=pack_beside).meta["source"] == SOURCE


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_packing_is_continued(tokenizer, tmp_path, number):
    source = "toy:10000"  # many shards: time enough after the first to be killed
    command = [sys.executable, "-m", "tokenizer", "pack", source, "--tokenizer", tokenizer]
    command += ["--shard-tokens", "30000", "--out", tmp_path / "killed"]
    partial = tmp_path / ".killed.partial"
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL) as process:
        while not list(partial.glob("*.bin")):
            assert process.poll() is None, "the packing ended before its first shard"
            time.sleep(0.02)
        process.send_signal(number)
    kept = contents(partial)
    assert kept
    subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL)
    again = contents(pack(source, tokenizer, tmp_path / "again", shard_tokens=30000).path)
    assert contents(tmp_path / "killed") == again
    assert all(again[name] == kept[name] for name in kept if name.endswith(".bin"))


MEASURED = r"""
import re, sys
from tokenizer import bpe, pack
bpe.LETTERS = 200_000
pack(sys.argv[1], sys.argv[2], sys.argv[3], shard_tokens=200_000, valid_fraction=0.2)
print(1024 * int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tokenizer, tmp_path):
    """Of words that the tokenizer has met, so that encoding is fast."""
    text, peaks, sizes = "Once upon a time there was a cat. " * 120, [], []
    for count in (800, 3000):
        source = tmp_path / f"{count}.txt"
        source.write_text("<|endoftext|>".join(f"{i} {text}" for i in range(count)))
        sizes.append(source.stat().st_size)
        command = [sys.executable, "-c", MEASURED, source, tokenizer, tmp_path / f"data{count}"]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout))
    # Batches that were all kept would take 1.5 bytes for each byte of the source. How far the
    # encoder's threads are ahead of the writer at the peak varies with the load of the machine.
    assert peaks[1] - peaks[0] < sizes[1] - sizes[0], (peaks, sizes)


def test_a_bad_shard_is_named_when_it_is_opened_and_when_it_is_read(sharded):
    line, file = sharded.line("train"), sharded.path / "train-00003.bin"
    content = file.read_bytes()
    spoil = {
        f"{len(content) - 2} bytes, {len(content)} expected": lambda: file.write_bytes(
            content[:-2]
        ),
        f"0 bytes, {len(content)} expected": file.unlink,
        "cannot be read (Is a directory); mend": file.mkdir,
    }
    for message, act in spoil.items():
        act()
        for use in (lambda: PackedData(sharded.path), lambda: line.read(0, 3000)):
            with pytest.raises(CorpusError, match=rf"train-00003\.bin: {re.escape(message)}"):
                use()
