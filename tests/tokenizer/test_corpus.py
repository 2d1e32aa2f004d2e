"""Sources of stories: every kind is read faithfully, and what is wrong with one is told."""

import csv
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.said import one_line
from tests.tokenizer.conftest import contents
from tokenizer import CorpusError, open_corpus, pack
from tokenizer.corpus import describe_files
from tokenizer.pack import Layout

STORIES = [
    "One.\nTwo lines, and a  gap.\n\nThe end.",
    "Zoë met 🙂.",
    "\u201cThree\u201d",
    "Four\r\nend",
]
OTHERS = ["Five.", "Six.\nAnd seven."]
MESSY = f"\n{STORIES[0]}\n<|endoftext|>\n\n {STORIES[1]} \n<|endoftext|>\n<|endoftext|>\n"
MESSY += f"{STORIES[2]}<|endoftext|>{STORIES[3]}\n<|endoftext|>\n"


def write(path: Path, stories: list[str]) -> Path:
    """Write stories in the manner that the name asks for."""
    if path.suffix == ".txt":
        path.write_bytes("".join(f"{text}\n<|endoftext|>\n" for text in stories).encode())
    elif path.suffix == ".jsonl":
        lines = (json.dumps({"id": 1, "text": text}) + "\n" for text in stories)
        path.write_text("".join(lines), encoding="utf-8")
    elif path.suffix == ".csv":
        rows = [["id", "text"], *([1, text] for text in stories)]
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
    else:
        pq.write_table(pa.table({"id": range(len(stories)), "text": stories}), path)
    return path


@pytest.mark.parametrize("name", ["stories.txt", "stories.jsonl", "stories.parquet", "stories.csv"])
def test_a_file_is_read_faithfully_and_again(tmp_path, name):
    """What stands in a .txt divides it; a row is one story, whatever it spells; no text is none."""
    both = f"{OTHERS[0]}\n<|endoftext|> {OTHERS[1]}"
    file = str(write(tmp_path / name, [*STORIES, "", both]))
    corpus = open_corpus(file, "train")
    last = OTHERS if name.endswith(".txt") else [both]
    assert list(corpus) == list(corpus) == [*STORIES, *last]
    assert list(open_corpus(file, "train", limit=3)) == STORIES[:3]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows.csv"])
def test_rows_that_bring_an_end_of_their_own_are_named_once(tmp_path, name, caplog):
    """It was packed as letters, which a model predicts at no cost, before the story's end."""
    ended = [f"{text}<|endoftext|>\n" for text in STORIES]
    found = list(open_corpus(str(write(tmp_path / name, ended)), "train"))
    assert found == [text.strip() for text in ended]
    assert [f"{tmp_path / name}: a row ends with" in line for line in caplog.messages] == [True]
    caplog.clear()
    inside = [f"{text} <|endoftext|> and more" for text in STORIES]
    assert list(open_corpus(str(write(tmp_path / name, inside)), "train")) == inside
    assert not caplog.messages


@pytest.mark.parametrize("size", [1, 64, 1 << 20])
def test_only_the_white_space_around_a_story_is_lost(tmp_path, monkeypatch, size):
    """Whatever the size of the blocks that are read, and with a byte order mark."""
    monkeypatch.setattr("tokenizer.readers.BLOCK", size)
    path = tmp_path / "messy.txt"
    for mark in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(mark + MESSY.encode())
        assert list(open_corpus(str(path), "train")) == STORIES


PLAIN = {
    "paragraph": ("\n \n", [f"Paragraph {i}: {'words, ' * (i % 30)}\nend." for i in range(100)]),
    "line": ("\n", [f"Verse {i} of a poem without a gap" for i in range(300)]),
}


@pytest.mark.parametrize("size", [13, 1 << 20])
@pytest.mark.parametrize("kind", PLAIN)
def test_plain_text_is_read_by_paragraphs_or_lines(tmp_path, monkeypatch, caplog, kind, size):
    """Whatever is read at a time; and the split has no text twice."""
    monkeypatch.setattr("tokenizer.readers.BLOCK", size)
    path, (gap, expected) = tmp_path / "book.txt", PLAIN[kind]
    path.write_text(f"\n\n \n{gap.join(expected)}\n \n\n", encoding="utf-8")
    assert list(open_corpus(str(path), "train")) == expected
    (said,) = (record.getMessage() for record in caplog.records)
    assert f"{path}: plain text without <|endoftext|>, each {kind} is a story; to join" in said
    train, valid = (
        list(open_corpus(str(path), split, valid_fraction=0.3)) for split in ("train", "valid")
    )
    assert sorted(train + valid) == sorted(expected)
    assert not set(train) & set(valid)


def test_how_plain_text_is_read_is_said_once_of_a_folder(tmp_path, caplog):
    """In a line in which its name steers no terminal."""
    folder = tmp_path / "books\x1b[31m"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text("One.\nTwo.\nThree.")
    assert len(list(open_corpus(folder, "train"))) == 9
    assert sum("plain text" in line for line in caplog.messages) == 1
    assert all(map(str.isprintable, caplog.messages))


def test_a_separator_far_into_a_file_counts(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tokenizer.readers.BLOCK", 7)
    path = tmp_path / "stories.txt"
    path.write_text(f"{'First. ' * 900}\n\nStill first.\n<|endoftext|>\nSecond.")
    assert len(list(open_corpus(str(path), "train"))) == 2
    assert not caplog.records


@pytest.mark.parametrize("valid", ["valid", "validation"])
def test_a_directory_has_both_splits_each_in_parts(tmp_path, valid, caplog):
    """A story in both is held out."""
    write(tmp_path / "train-00001-of-00002.parquet", [*STORIES[2:], *OTHERS[:2]])
    write(tmp_path / "train-00000-of-00002.parquet", STORIES[:2])
    write(tmp_path / f"{valid}.jsonl", [f" {OTHERS[0]}", *OTHERS])
    (tmp_path / "training-notes.txt").write_text("not a story")
    assert list(open_corpus(str(tmp_path), "train")) == STORIES
    held_out = list(open_corpus(str(tmp_path), "valid", valid_fraction=0.5))
    assert held_out == [OTHERS[0], *OTHERS]
    assert f"{tmp_path}: 2 stories of train are also in valid" in caplog.text


def test_a_train_split_that_is_all_held_out_is_refused_as_such(tmp_path):
    for split in ("train", "valid"):
        write(tmp_path / f"{split}.jsonl", STORIES)
    with one_line(CorpusError, "all 4 stories of train are also in valid"):
        open_corpus(str(tmp_path), "train")


@pytest.mark.parametrize("name", ["stories.txt", "deep/a.jsonl"])
def test_what_is_not_divided_is_no_held_out_text(tmp_path, name):
    """All of it was `valid`, the stories that a model was trained on among them."""
    (tmp_path / "in" / name).parent.mkdir(parents=True)
    path = write(tmp_path / "in" / name, STORIES)
    for source in (path, path.parent, tmp_path / "in"):
        with one_line(CorpusError, f"{source}: has no valid split"):
            open_corpus(source, "valid")
        assert list(open_corpus(source, "train")) == STORIES


def test_a_share_of_a_single_file_is_set_aside(tmp_path):
    stories = [f"Story number {number}." for number in range(400)]
    path = str(write(tmp_path / "stories.txt", [*stories, *stories]))
    splits = {split: open_corpus(path, split, valid_fraction=0.25) for split in ("train", "valid")}
    train, valid = (list(splits[split]) for split in ("train", "valid"))
    assert sorted(train + valid) == sorted([*stories, *stories])
    assert not set(train) & set(valid)  # a copy of a story is never on the other side
    assert 0.2 < len(valid) / 800 < 0.3
    backwards = str(write(tmp_path / "backwards.jsonl", stories[::-1]))
    assert set(open_corpus(backwards, "valid", valid_fraction=0.25)) == set(valid)


def test_toy_takes_a_number_and_a_seed():
    for split, count in (("train", 100), ("valid", 5)):
        assert len(list(open_corpus("toy:100", split))) == count
    assert len(list(open_corpus("toy", "train", limit=3))) == 3
    first = next(iter(open_corpus("toy:100:3", "train")))
    assert first != next(iter(open_corpus("toy:100", "train")))


def test_a_folder_called_toy_is_not_the_generator(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    write(tmp_path / "toy" / "train.txt", STORIES)
    assert len(list(open_corpus("toy", "train", limit=3))) == 3
    assert [r.getMessage() for r in caplog.records] == [
        "toy: the built-in generator, not the path of that name: that is ./toy"
    ]
    assert list(open_corpus("./toy", "train")) == STORIES


def test_stories_of_packed_data_that_were_cut_are_counted(tokenizer, tmp_path, caplog):
    """They were measured and packed again as whole ones."""
    for length in (16, 900):
        data = pack("toy:20", tokenizer, tmp_path / str(length), Layout("rows", length))
        caplog.clear()
        for split in ("train", "valid"):
            open_corpus(str(data.path), split)
        said = f"{data.path}: 22 of its 22 stories were cut at 16 tokens when they were packed, "
        said += "and are read without their ends"
        assert caplog.messages == [said] * (length == 16)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Lay out a directory as the hub lays out TinyStories, with a cache of its own."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    (tmp_path / "TinyStories" / "data").mkdir(parents=True)
    return tmp_path / "TinyStories"


def test_a_dataset_of_the_hubs_shape_is_read(hub):
    write(hub / "data" / "train-00000-of-00002.parquet", STORIES[:2])
    write(hub / "data" / "train-00001-of-00002.parquet", STORIES[2:])
    write(hub / "data" / "validation-00000-of-00001.parquet", OTHERS)
    train = open_corpus(f"hub:{hub}", "train")
    assert list(train) == list(train) == STORIES
    assert list(open_corpus(f"hub:{hub}", "valid")) == OTHERS


def test_splits_of_a_dataset_have_the_names_of_folders_and_the_others_are_said(monkeypatch, caplog):
    """Those held out under another name were passed over without a word."""
    from datasets import Dataset, DatasetDict

    texts = {"train": STORIES, "held_out": OTHERS, "dev": STORIES, "extra": STORIES}
    made = DatasetDict({name: Dataset.from_dict({"text": rows}) for name, rows in texts.items()})
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: made)
    assert list(open_corpus("hub:some/tales", "valid")) == OTHERS
    (said,) = caplog.messages
    assert "hub:some/tales: " in said
    assert said.endswith("dev, extra")


def test_a_folder_is_read_as_it_is_whatever_its_times_say(hub):
    """The library's cache goes by the times of files, which archives may set all alike."""
    path = hub / "data" / "train-00000-of-00001.parquet"
    for stories in (STORIES, STORIES[::-1]):
        write(path, stories)
        os.utime(path, (0, 0))
        assert list(open_corpus(f"hub:{hub}", "train")) == stories


def test_a_time_beyond_the_calendar_is_no_error(tmp_path, monkeypatch):
    """As of a disk's clock that was wrong."""
    write(tmp_path / "a.jsonl", STORIES)
    at = (tmp_path / "a.jsonl").stat()
    late = os.stat_result((*at[:8], 10**12, at.st_ctime))
    monkeypatch.setattr("tokenizer.corpus.Path.stat", lambda path, **_: late)
    assert "9999-12-31" in str(describe_files(str(tmp_path / "a.jsonl")))


def test_plain_text_of_a_dataset_is_said_and_its_mark_refused(hub, caplog):
    """datasets makes a story of each line, and text of the mark that ends one."""
    (hub / "data" / "train.txt").write_text("A first\nstory\n\nAnother\n")
    assert list(open_corpus(f"hub:{hub}", "train")) == ["A first", "story", "Another"]
    assert f"hub:{hub}: split train: plain text, each line is a story" in caplog.messages
    (hub / "data" / "train.txt").write_text("A first\nstory\n<|endoftext|>\nAnother\n")
    with pytest.raises(CorpusError, match=r"whose stories end with <\|endoftext\|>.*the folder of"):
        list(open_corpus(f"hub:{hub}", "train"))


def test_a_dataset_that_cannot_be_used_is_refused(hub):
    path = hub / "data" / "train-00000-of-00001.parquet"
    pq.write_table(pa.table({"content": STORIES}), path)
    with pytest.raises(CorpusError, match="split train: no column text, only content"):
        open_corpus(f"hub:{hub}", "train")
    with pytest.raises(CorpusError, match=r"hub:.*nowhere: cannot be loaded \(.*check the name"):
        open_corpus(f"hub:{hub}/nowhere", "train")
    (hub.parent / "ptb").mkdir()
    (hub.parent / "ptb" / "ptb.py").touch()
    for name in ("", hub.parent / "ptb"):  # none, and one that is made by a script
        with one_line(CorpusError, f"hub:{name}: cannot be loaded ("):
            open_corpus(f"hub:{name}", "train")
    write(hub / "data" / "train.csv", ["One.", "NA", "Two."])
    path.unlink()
    with one_line(CorpusError, "row 2 holds None, not a text; or give the folder without hub:"):
        list(open_corpus(f"hub:{hub}", "train"))
    (hub / "data" / "train.csv").rename(hub / "data" / "test-00000-of-00001.parquet")
    write(hub / "data" / "test-00000-of-00001.parquet", STORIES)
    with pytest.raises(CorpusError, match="has no train or validation split, only test"):
        open_corpus(f"hub:{hub}", "train")


def test_half_a_download_of_a_dataset_is_refused(hub):
    for number in (0, 2):
        write(hub / "data" / f"train-{number:05d}-of-00004.parquet", STORIES)
    with one_line(CorpusError, "00001, 00003 missing"):
        open_corpus(f"hub:{hub}", "train")


def test_which_copy_is_read_without_the_network_is_said(hub, tmp_path, caplog):
    """It may be an older revision, or the only configuration that was ever read."""
    copy = tmp_path / "cache" / "some___stories" / "default" / "0.0.0" / "abc"
    copy.mkdir(parents=True)
    table = pa.table({"text": STORIES})
    with pa.ipc.new_stream(str(copy / "stories-train.arrow"), table.schema) as file:
        file.write_table(table)
    split = {"name": "train", "num_examples": len(STORIES), "dataset_name": "stories"}
    about = {"config_name": "default", "dataset_name": "stories", "splits": {"train": split}}
    (copy / "dataset_info.json").write_text(json.dumps(about))
    assert list(open_corpus("hub:some/stories", "train")) == STORIES
    assert str(copy) in caplog.text


def test_the_revision_of_a_dataset_stands_for_its_files(monkeypatch):
    class Hub:
        def dataset_info(self, name):
            if name != "some/stories":
                raise OSError("no network")
            return SimpleNamespace(sha="0af3")

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    assert "0af3" in str(describe_files("hub:some/stories:large"))
    assert describe_files("hub:other/stories") is None


def test_a_packing_of_a_folder_of_the_hubs_shape_goes_on_with_the_same_files_alone(
    hub, tokenizer, tmp_path, monkeypatch
):
    path, out = hub / "data" / "train-00000-of-00001.parquet", tmp_path / "out"
    texts, report = [f"Paragraph {i} of a book." for i in range(90)], iter([None] * 7)
    write(path, texts)
    monkeypatch.setattr("tokenizer.bpe.BATCH", 8)
    with pytest.raises(StopIteration):
        pack(f"hub:{hub}", tokenizer, out, shard_tokens=150, report=lambda *_: next(report))
    write(path, texts[30:])
    with one_line(CorpusError, "had files 1 of "):
        pack(f"hub:{hub}", tokenizer, out, shard_tokens=150)


def test_a_mended_source_is_packed_as_the_refusal_of_its_bad_row_says(
    tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setattr("tokenizer.bpe.BATCH", 8)
    source, out = tmp_path / "rows.jsonl", tmp_path / "data"
    rows = [json.dumps({"text": f"Paragraph {i} of a book."}) for i in range(90)]
    source.write_text("\n".join([*rows, '{"text": null}']))
    with pytest.raises(CorpusError, match=r"row 91 holds None.*: then remove \S+$") as refused:
        pack(str(source), tokenizer, out, shard_tokens=150)
    source.write_text("\n".join(rows))
    with pytest.raises(CorpusError, match="or remove "):
        pack(str(source), tokenizer, out, shard_tokens=150)
    shutil.rmtree(str(refused.value).split()[-1])
    pack(str(source), tokenizer, out, shard_tokens=150)


@pytest.mark.parametrize("prefix", ["", "hub:"])
def test_a_packing_into_the_folder_of_its_source_goes_on(tokenizer, tmp_path, monkeypatch, prefix):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder, report = tmp_path / "in", iter([None] * 7)
    folder.mkdir()
    for split, count in (("train", 90), ("valid", 9)):
        rows = (json.dumps({"text": f"Paragraph {i} of {split}."}) for i in range(count))
        (folder / f"{split}.jsonl").write_text("\n".join(rows))
    monkeypatch.setattr("tokenizer.bpe.BATCH", 8)
    chosen: dict[str, Any] = {"shard_tokens": 150}
    with pytest.raises(StopIteration):
        pack(f"{prefix}{folder}", tokenizer, folder / "packed", **chosen,
             report=lambda *_: next(report))  # fmt: skip
    assert list((folder / ".packed.partial").glob("*.bin"))
    data = pack(f"{prefix}{folder}", tokenizer, folder / "packed", **chosen)
    whole = pack(f"{prefix}{folder}", tokenizer, tmp_path / "whole", **chosen)
    assert contents(data.path) == contents(whole.path)


@pytest.mark.network
def test_the_real_hub():
    stories = open_corpus("hub:roneneldan/TinyStories", "valid", limit=10)
    assert len(list(stories)) == 10
