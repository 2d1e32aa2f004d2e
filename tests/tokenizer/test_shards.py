"""Corpora in many shards: the same tokens, in bounded memory, continued after an interruption."""

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tokenizer.conftest import contents
from tokenizer import CorpusError, PackedData, corpus, open_corpus, pack
from tokenizer.__main__ import main
from tokenizer.data import Shard, TokenLine, map_shard
from tokenizer.pack import Layout

SOURCE = "toy:120"
KILLED = "toy:10000"  # many shards: time enough after the first to be killed


@pytest.fixture(scope="module")
def whole(tokenizer, tmp_path_factory):
    return pack(SOURCE, tokenizer, tmp_path_factory.mktemp("whole") / "data")


@pytest.fixture(scope="module")
def made(tokenizer, tmp_path_factory):
    return pack(SOURCE, tokenizer, tmp_path_factory.mktemp("m") / "data", shard_tokens=500).path


@pytest.fixture
def sharded(made, tmp_path):
    """Many small shards, which a test may spoil."""
    return PackedData(shutil.copytree(made, tmp_path / "data"))


@pytest.mark.parametrize("split", ["train", "valid"])
def test_shards_hold_what_one_file_does(whole, sharded, split):
    assert len(sharded.shards("train")) > 50
    np.testing.assert_array_equal(sharded.tokens(split), whole.tokens(split))
    counts, expected = (data.meta["splits"][split] for data in (sharded, whole))
    assert all(counts[key] == expected[key] for key in ("stories", "tokens", "bytes"))
    assert sum(shard["stories"] for shard in counts["shards"]) == expected["stories"]
    assert sharded.hash == whole.hash  # of the tokens, however they are divided
    for shard in sharded.shards(split):
        tokens = np.fromfile(shard.path, "<u2")
        assert tokens[-1] == 0  # whole stories only
        assert len(tokens) == shard.tokens
    assert all(shard.tokens >= 500 for shard in sharded.shards(split)[:-1])


def test_rows_are_sharded_row_by_row(tokenizer, tmp_path):
    layout = Layout("rows", 64, "left")
    one = pack(SOURCE, tokenizer, tmp_path / "one", layout)
    many = pack(SOURCE, tokenizer, tmp_path / "many", layout, shard_tokens=500)
    assert len(many.shards("train")) > 10
    np.testing.assert_array_equal(many.tokens("train"), one.tokens("train"))
    np.testing.assert_array_equal(many.tokens("train", 5), one.tokens("train")[:5])
    assert many.meta["splits"]["train"]["cut"] == one.meta["splits"]["train"]["cut"]


def test_any_stretch_of_the_line_is_read(whole, sharded):
    line, expected = sharded.line("train"), whole.tokens("train")
    assert len(line) == len(expected)
    random = np.random.default_rng(0)
    for start in random.integers(len(line), size=50):
        stop = int(start + random.integers(3000))  # over several shards, and beyond the end
        np.testing.assert_array_equal(line.read(int(start), stop), expected[start:stop])
    starts = random.integers(len(line) - 700, size=40)
    np.testing.assert_array_equal(
        line.windows(starts, 700), np.stack([expected[s : s + 700] for s in starts])
    )


def test_few_files_are_open_at_a_time(sharded, monkeypatch):
    monkeypatch.setattr("tokenizer.data.map_shard", lru_cache(4)(map_shard.__wrapped__))
    line, before = sharded.line("train"), len(os.listdir("/proc/self/fd"))
    line.read(0, len(line))
    assert len(os.listdir("/proc/self/fd")) <= before + 4


def test_a_divided_source_is_read_once(tokenizer, tmp_path, monkeypatch):
    source, read = tmp_path / "parts", []
    write_parts(source, stories(200))
    one = pack(str(source), tokenizer, tmp_path / "one", valid_fraction=0.2)
    column = corpus._column

    def counted(*arguments):
        for text in column(*arguments):
            read.append(text)
            yield text

    monkeypatch.setattr(corpus, "_column", counted)
    chosen = {"valid_fraction": 0.2, "shard_tokens": 1500}
    many = pack(str(source), tokenizer, tmp_path / "many", **chosen)
    for split in ("train", "valid"):
        assert len(many.shards(split)) > 3
        np.testing.assert_array_equal(many.tokens(split), one.tokens(split))
    assert 200 < len(read) < 300  # each once, and the first ones when a split is opened
    few = pack(str(source), tokenizer, tmp_path / "few", **chosen, limit=7)
    assert [few.meta["splits"][split]["stories"] for split in ("train", "valid")] == [7, 7]


def stories(number: int) -> list[str]:
    return list(open_corpus(f"toy:{number}:5", "train"))


def write_parts(folder: Path, texts: list[str], column: str = "text") -> None:
    """Files in folders, as a dataset's dump has them, none named after a split."""
    for i in range(5):
        path = folder / f"dump-{i % 2}" / f"00{i}_00000.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({column: texts[i::5]}), path)


def test_another_column_is_named(tokenizer, tmp_path, capsys):
    write_parts(tmp_path / "parts", stories(40), "content")
    words = f"pack {tmp_path / 'parts'} --tokenizer {tokenizer} --shard-tokens 2000"
    words += f" --valid-fraction 0.3 --out {tmp_path / 'data'} --field content"
    assert main(words.split()) == 0
    assert "data/train: " in capsys.readouterr().out
    assert main(["check", str(tmp_path / "data")]) == 0
    assert "files hold what was packed" in capsys.readouterr().out


def test_a_dataset_of_the_hub_is_streamed(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    hub = tmp_path / "FineStories"
    for name in ("small", "large"):
        (hub / name).mkdir(parents=True)
        pq.write_table(
            pa.table({"text": stories(40)[: 20 + 20 * (name == "large")]}),
            hub / name / "train.parquet",
        )
    about = [
        f"- config_name: {name}\n  data_files: {name}/*.parquet" for name in ("small", "large")
    ]
    (hub / "README.md").write_text("---\nconfigs:\n" + "\n".join(about) + "\n---\n")
    data = pack(
        f"hub:{hub}:large", tokenizer, tmp_path / "data", valid_fraction=0.2, shard_tokens=500
    )
    assert sum(data.meta["splits"][split]["stories"] for split in ("train", "valid")) == 40
    assert not list((tmp_path / "cache").rglob("*.arrow"))  # nothing was copied
    with pytest.raises(CorpusError, match=r"not found\. Available: ..small., .large"):
        open_corpus(f"hub:{hub}:medium", "train", stream=True)


def test_an_interrupted_packing_goes_on_after_its_whole_shards(
    sharded, tokenizer, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("tokenizer.bpe.BATCH", 8)
    out, words = tmp_path / "other", open_corpus.__globals__
    toy = words["toy_stories"]

    def failing(after):
        def texts(*which):
            yield from islice(toy(*which), after)
            raise CorpusError("the source broke")

        return texts

    for after in (60, 110):
        monkeypatch.setitem(words, "toy_stories", failing(after))
        message = r"broke; \d+ complete shards are kept: the same command"
        with pytest.raises(CorpusError, match=message):
            pack(SOURCE, tokenizer, out, shard_tokens=500)
        assert not out.exists()
    monkeypatch.setitem(words, "toy_stories", toy)
    command = ["pack", SOURCE, "--tokenizer", str(tokenizer), "--shard-tokens", "500"]
    assert main([*command, "--out", str(out)]) == 0
    assert "complete shards\n" in capsys.readouterr().err
    assert contents(out) == contents(sharded.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "other"]


def test_an_interrupted_packing_of_something_else_is_named(tokenizer, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n' * 3000 + '{"text": null}\n')
    (tmp_path / "valid.jsonl").write_text('{"text": "b"}\n' * 3)
    out, before = tmp_path / "data", sorted(tmp_path.iterdir())
    with pytest.raises(CorpusError, match="row 3001 holds None"):
        pack(str(tmp_path), tokenizer, out)
    assert sorted(tmp_path.iterdir()) == before  # no shard was complete
    with pytest.raises(CorpusError, match=r"row 3001 .*; \d\d complete shards are kept"):
        pack(str(tmp_path), tokenizer, out, shard_tokens=200)
    with pytest.raises(
        CorpusError, match=r"source \S+, now toy:9; shard-tokens 200, now 300; ask for"
    ):
        pack("toy:9", tokenizer, out, shard_tokens=300)
    assert pack("toy:9", tokenizer, out, shard_tokens=300, force=True).meta["source"] == "toy:9"
    assert not list(tmp_path.glob(".*"))


def test_two_packings_do_not_write_the_same_place(tokenizer, tmp_path):
    def pack_beside(*_):
        with pytest.raises(CorpusError, match="data: another packing is writing it; wait for it"):
            pack(SOURCE, tokenizer, tmp_path / "data")

    assert pack(SOURCE, tokenizer, tmp_path / "data", report=pack_beside).meta["source"] == SOURCE


def test_a_full_disk_keeps_the_whole_shards(tokenizer, tmp_path, full_disk, monkeypatch):
    full_disk(after=21)
    with pytest.raises(CorpusError, match=r"the disk is full; .*complete shards are kept"):
        pack(SOURCE, tokenizer, tmp_path / "data", shard_tokens=500)
    monkeypatch.undo()
    pack(SOURCE, tokenizer, tmp_path / "data", shard_tokens=500)
    PackedData(tmp_path / "data")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_packing_is_continued(tokenizer, tmp_path, number):
    command = [sys.executable, "-m", "tokenizer", "pack", KILLED, "--tokenizer", tokenizer]
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
    again = contents(pack(KILLED, tokenizer, tmp_path / "again", shard_tokens=30000).path)
    assert contents(tmp_path / "killed") == again
    assert all(again[name] == kept[name] for name in kept if name.endswith(".bin"))


MEASURED = r"""
import re, sys
from tokenizer import pack
pack(sys.argv[1], sys.argv[2], sys.argv[3], shard_tokens=200_000, valid_fraction=0.2)
print(1024 * int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]))
"""


def test_memory_does_not_grow_with_the_corpus(tokenizer, tmp_path):
    texts = stories(200)
    peaks = []
    for times in (20, 120):
        source = tmp_path / f"{times}.txt"
        source.write_text("<|endoftext|>".join(texts * times))
        command = [sys.executable, "-c", MEASURED, source, tokenizer, tmp_path / f"data{times}"]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout))
    grown = (tmp_path / "120.txt").stat().st_size - (tmp_path / "20.txt").stat().st_size
    # Batches that were all kept would take 1.5 bytes for each byte of the source. How far the
    # encoder's threads are ahead of the writer at the peak varies with the load of the machine.
    assert peaks[1] - peaks[0] < grown, (peaks, grown)


def test_a_bad_shard_is_named(sharded, capsys):
    file = sharded.path / "train-00003.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-2])
    message = rf"train-00003\.bin: {len(content) - 2} bytes, {len(content)} expected"
    with pytest.raises(CorpusError, match=message):
        PackedData(sharded.path)
    file.unlink()
    with pytest.raises(CorpusError, match=rf"train-00003\.bin: 0 bytes, {len(content)} expected"):
        PackedData(sharded.path)
    file.mkdir()
    with pytest.raises(CorpusError, match=r"00003\.bin: cannot be read \(Is a directory\); mend"):
        PackedData(sharded.path)
    file.rmdir()
    file.write_bytes(content[::-1])
    assert main(["check", str(sharded.path)]) == 2
    line = capsys.readouterr().err
    assert "train-00003.bin: altered, its sha256 is " in line
    assert line.count("\n") == 1


def test_a_shard_that_is_cut_later_is_named_when_it_is_read(sharded):
    line = sharded.line("train")
    os.truncate(sharded.path / "train-00001.bin", 8)
    with pytest.raises(CorpusError, match=r"train-00001\.bin: 8 bytes"):
        line.read(0, 3000)


def test_an_empty_line_has_no_tokens(tmp_path):
    assert len(TokenLine([])) == 0
    assert len(TokenLine([Shard(tmp_path / "x", 3, "")])) == 3
