"""Which files of a folder are which split: as people name them, and said where it is not plain."""

import json
import shutil

import pytest

from tests.said import one_line
from tokenizer import CorpusError, open_corpus, pack, readers, splits

NAMED = [
    ("train.txt", "valid.txt"),
    ("train.txt", "val.txt"),
    ("train.txt", "dev.txt"),
    ("train.txt", "eval.txt"),
    ("training.txt", "validation.txt"),
    ("Train.txt", "Valid.txt"),
    ("TRAIN.TXT", "VALID.TXT"),
    ("owt_train.txt", "owt_valid.txt"),
    ("tales-train.txt", "tales-dev.txt"),
    ("wiki.train.txt", "wiki.valid.txt"),
    ("wiki.train.tokens.txt", "wiki.valid.tokens.txt"),
    ("train_data.txt", "val_data.txt"),
    ("traindata.txt", "validset.txt"),
    ("train1.txt", "valid1.txt"),
    ("data-train-v2.txt", "data-held_out-v2.txt"),
    ("train.txt", "TinyStoriesV2-GPT4-valid.txt"),
    ("train/a.txt", "valid/a.txt"),
    ("deep/train/a.txt", "deep/validation/a.txt"),
    ("tales_train/a.txt", "tales_val/b.txt"),
    ("train-00000-of-00001.jsonl", "x-validation-00000-of-00001.jsonl"),
    ("TRAIN.JSONL", "val.jsonl"),
    ("train data.txt", "held out (1).txt"),
    ("tales-train 2.txt", "tales-valid 2.txt"),
    ("tales-train-00000-of-00001-0af3.txt", "tales-valid-00000-of-00001-0be4.txt"),
]


@pytest.fixture(autouse=True)
def _said_anew():
    splits.say_once.cache_clear()


def write(folder, name, tag, count=30):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [f"{tag} number {number}" for number in range(count)]
    if name.lower().endswith(".jsonl"):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        path.write_text("".join(f"{text}\n<|endoftext|>\n" for text in texts))


def read(folder):
    """The stories of both splits, by the first words of each."""
    return {
        split: [s.split()[0] for s in open_corpus(str(folder), split, valid_fraction=0.2)]
        for split in ("train", "valid")
    }


def test_a_file_is_read_once_by_however_many_links(tmp_path, caplog):
    """As in a cache whose revisions share their files."""
    write(tmp_path, "a/train.txt", "training")
    write(tmp_path, "a/valid.txt", "held")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "train.txt").symlink_to(tmp_path / "a" / "train.txt")
    assert read(tmp_path) == {"train": ["training"] * 30, "valid": ["held"] * 30}
    assert any("not read: b/train.txt" in record.getMessage() for record in caplog.records)


def test_a_folder_of_save_to_disk_is_named_as_such(tmp_path):
    write(tmp_path, "train/state.json", "training")
    (tmp_path / "train" / "data-00000-of-00001.arrow").touch()
    with pytest.raises(CorpusError, match=r"00001\.arrow: is of datasets' save_to_disk, .*parquet"):
        read(tmp_path)


@pytest.mark.parametrize(("train", "valid"), NAMED)
def test_a_folder_is_divided_as_its_names_say(tmp_path, caplog, train, valid):
    write(tmp_path, train, "training")
    write(tmp_path, valid, "held")
    assert read(tmp_path) == {"train": ["training"] * 30, "valid": ["held"] * 30}
    plain = (train, valid) == ("train.txt", "valid.txt")
    assert len(caplog.records) == (0 if plain else 1)
    assert plain or (train in caplog.text and valid in caplog.text)


def test_numbered_files_are_one_split(tmp_path):
    for number in range(3):
        write(tmp_path, f"part-train-{number:05d}-of-00003.jsonl", "training", 10)
    write(tmp_path, "part-valid.jsonl", "held")
    write(tmp_path, "test-00001-of-00002.jsonl", "not read")
    assert read(tmp_path) == {"train": ["training"] * 30, "valid": ["held"] * 30}


@pytest.mark.parametrize(
    "name",
    ["test.txt", "tales-test.txt", "test/a.txt", "Testing.txt", "test/chunk1/holdout_0.txt"],
)
def test_a_test_split_is_not_read_and_that_is_said(tmp_path, caplog, name):
    write(tmp_path, "train.txt", "training")
    write(tmp_path, name, "test")
    found = read(tmp_path)
    assert {*found["train"], *found["valid"]} == {"training"}
    assert f"not read: {name}" in caplog.text
    (tmp_path / "train.txt").unlink()
    with one_line(CorpusError, name):
        open_corpus(str(tmp_path), "train")


@pytest.mark.parametrize(
    "name",
    ["training_tips.txt", "devotion.txt", "latest.txt", "the_train_ride.txt", "evaluate.txt",
     "invalid.txt", "trainer.txt", "contest.txt", "testament.txt", "value.txt",
     "The Girl on the Train.txt", "Time to Test.txt", "Train, The.txt", "Dev - A Life.txt"],
)  # fmt: skip
def test_a_word_inside_a_name_is_no_split(tmp_path, caplog, name):
    write(tmp_path, name, "one", 100)
    write(tmp_path, "tales.txt", "two", 100)
    found = read(tmp_path)
    for tag in ("one", "two"):
        assert found["train"].count(tag) + found["valid"].count(tag) == 100
        assert 0 < found["valid"].count(tag) < 50
    assert name in caplog.text


@pytest.mark.parametrize(
    "name", ["The_Girl_on_the_Train.txt", "train-to-nowhere.txt", "Test_of_Time.txt"]
)
def test_a_title_that_tells_of_a_split_takes_over_no_folder(tmp_path, name):
    """It was the train split, and all other books were not read."""
    for book in (name, "tales.txt", "poems.txt"):
        write(tmp_path, book, "book")
    with one_line(CorpusError, name):
        open_corpus(str(tmp_path), "train")
    (tmp_path / name).rename(tmp_path / name.replace("_", " ").replace("-", " "))
    assert sum(map(len, read(tmp_path).values())) == 90
    write(tmp_path, "train.txt", "training")
    assert {*read(tmp_path)["train"]} == {"training"}


@pytest.mark.parametrize("name", ["owt_train.txt", "train-en.txt"])
def test_what_lies_beside_a_text_is_no_text_of_as_many_titles(tmp_path, name):
    write(tmp_path, name, "training")
    for other in ("README.txt", "LICENSE.txt", "dataset_info.json", "stats.json"):
        write(tmp_path, other, "other")
    assert {*read(tmp_path)["train"]} == {"training"}


@pytest.mark.parametrize(
    "name",
    ["notes.md", ".hidden.txt", ".cache/a.txt", "notes.txt", "sub/more.txt", "weird\x1b.log",
     "train.txt.gz", "valid.txt.zip"],
)  # fmt: skip
def test_what_is_not_read_is_named(tmp_path, caplog, name):
    write(tmp_path, "train.txt", "training")
    write(tmp_path, "valid.txt", "held")
    write(tmp_path, name, "other")
    assert read(tmp_path) == {"train": ["training"] * 30, "valid": ["held"] * 30}
    (said,) = (record.getMessage() for record in caplog.records)
    told = said.rpartition("not read: ")[2]
    assert told.strip("'").startswith(name[:5])
    assert told.isprintable()


@pytest.mark.parametrize("names", [("train.txt", "valid.txt"), ("a.json", "b.json"), ("a.jsonl",)])
def test_a_tokenizer_and_packed_data_are_no_text_of_their_folder(tmp_path, tokenizer, names):
    for name in names:
        lines = [json.dumps({"text": f"{name} number {number}"}) for number in range(60)]
        (tmp_path / name).write_text("\n".join(lines))
    before = read(tmp_path)
    shutil.copy(tokenizer, tmp_path / "tokenizer.json")
    pack("toy:20", tokenizer, tmp_path / "sub" / "packed")
    assert read(tmp_path) == before


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["stories.txt", "valid.txt"], "stories.txt"),
        (["stories.txt", "test.txt"], "stories.txt"),
        (["train-test.txt", "valid.txt"], "train-test.txt"),
        (["train/valid.txt", "train/a.txt"], "train/valid.txt"),
        (["train.txt", "valid.txt.gz"], "valid.txt.gz"),
        (["train.jsonl.zst", "valid.txt"], "train.jsonl.zst"),
        (["notes.md"], "no train.*"),
        (["train.txt", "train.jsonl"], "several kinds"),
    ],
)
def test_what_cannot_be_told_is_refused(tmp_path, names, told):
    for name in names:
        write(tmp_path, name, "x")
    with one_line(CorpusError, told):
        open_corpus(str(tmp_path), "train")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["train-00000-of-00004.jsonl", "train-00002-of-00004.jsonl"], "00001, 00003 missing"),
        (["data/a-train-00000-of-00002-0af3.jsonl"], "a-train-*-of-00002.jsonl: 00001 missing"),
        (["00001-of-00003.txt", "00003-of-00003.txt"], "00002 missing"),
        ([f"train-{n:05d}-of-00009.txt" for n in (1, 2)], "00007 and 1 more missing"),
        ([f"train-0000{n}-of-00002-{h}.txt" for n in (0, 1) for h in ("aa", "bb")], "00002-bb"),
        ([f"train-0000{n}-of-0000{m}.txt" for n, m in ((0, 1), (0, 2), (1, 2))], "of-00001"),
        ([f"train-0000{n}-of-0000{m}.txt" for n, m in ((1, 1), (2, 3), (3, 3))], "of-00001"),
    ],
)
def test_files_that_are_no_whole_dataset_are_named(tmp_path, names, told):
    """A download that was cut off, or two versions of one, were packed without a word."""
    for name in names:
        write(tmp_path, name, "x")
    with one_line(CorpusError, told):
        open_corpus(str(tmp_path), "train")


def test_every_kind_that_is_listed_has_a_reader():
    assert (readers.TEXT, *readers.READERS) == splits.ENDINGS
