"""Rows of files: what is no text is refused by file and row, and other columns do not matter."""

import csv
import json
import tracemalloc
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.said import one_line
from tokenizer import CorpusError, open_corpus
from tokenizer.__main__ import main
from tokenizer.bpe import POINTER
from tokenizer.readers import read_file

TEXTS = [f'Day {i}.\nAnna said "good morning" to café {i}.' for i in range(400)]


def read(path, **options):
    return list(open_corpus(str(path), "train", **options))


@pytest.mark.parametrize("odd", [7, True, 1.5, ["a", "b"], {"a": 1}, None, float("nan")])
@pytest.mark.parametrize("at", [0, 250, 399])
@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_a_row_that_is_no_text_is_refused_by_its_number(tmp_path, ending, at, odd):
    rows = [{"story": odd if i == at else text} for i, text in enumerate(TEXTS)]
    path = tmp_path / f"mixed.{ending}"
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(lines if ending == "jsonl" else json.dumps(rows))
    with one_line(CorpusError, f"mixed.{ending}: row {at + 1} holds {odd}"):
        read(path, field="story")


@pytest.mark.parametrize(
    "column",
    [[1, 2], [b"a", b"b"], [["a"], ["b"]], [{"a": "b"}, {"a": "c"}], [None, None], ["a", None]],
)
@pytest.mark.parametrize("kind", [{"_type": "Value"}, [{"_type": "Value"}]])
def test_a_table_without_text_is_refused_by_its_row(tmp_path, column, kind):
    """Of a column of lists datasets before 4 wrote a list as its type."""
    about = json.dumps({"info": {"features": {"text": kind}}})
    table = pa.table({"text": column}).replace_schema_metadata({"huggingface": about})
    pq.write_table(table, tmp_path / "t.parquet")
    row = 2 if column[0] == "a" else 1
    with one_line(CorpusError, f"t.parquet: row {row} holds {column[row - 1]!r}"):
        read(tmp_path / "t.parquet")


@pytest.mark.parametrize("stored", ["parquet", "jsonl"])
def test_a_dataset_whose_column_mixes_types_is_refused(tmp_path, monkeypatch, stored):
    """The library turns such a column into JSON, texts in quotation marks."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    from datasets import load_dataset

    hub = tmp_path / "hub"
    hub.mkdir()
    rows = [{"text": 7 if i == 250 else text} for i, text in enumerate(TEXTS)]
    (hub / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if stored == "parquet":
        made = load_dataset("json", data_files=str(hub / "train.jsonl"), split="train")
        made.to_parquet(hub / "train.parquet")
        (hub / "train.jsonl").unlink()
        with one_line(CorpusError, "train.parquet: row 251 holds 7"):
            read(hub / "train.parquet")
    for stream in (True, False):
        with one_line(CorpusError, "row 251 holds 7"):
            read(f"hub:{hub}", stream=stream)


def test_a_refusal_is_one_line_whatever_the_columns_are_called(tmp_path, capsys):
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps({"a\nb\x1b[2J\u202e": "x"}) + "\n")
    assert main(["train", str(path), "--out", str(tmp_path / "t.json")]) == 2
    said = capsys.readouterr().err
    assert said.rstrip("\n").isprintable()
    assert said.count("\n") == 1


def test_other_columns_do_not_matter(tmp_path):
    rows: list[dict[str, Any]] = [{"text": text} for text in TEXTS]
    rows[3]["extra"], rows[200]["extra"], rows[9]["extra"] = 1, {"a": []}, "text"
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read(path) == TEXTS
    folder = tmp_path / "parts"
    folder.mkdir()
    pq.write_table(pa.table({"text": TEXTS[:9], "n": range(9)}), folder / "a.parquet")
    pq.write_table(pa.table({"n": ["x"] * 391, "text": TEXTS[9:]}), folder / "b.parquet")
    assert read(folder) == TEXTS


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("name", ["a.jsonl", "A.JSONL", "a.json", "a.Csv", "a.TXT"])
def test_marks_line_ends_and_capitals(tmp_path, name, end, mark):
    texts = ["One\u2028two\u2029\x85.", "Three \x0b\x0c four."]
    kind = name.lower().partition(".")[2]
    if kind == "csv":
        lines = ["n,text", *(f'1,"{text}"' for text in texts)]
    elif kind == "txt":
        lines = [line for text in texts for line in (text, "<|endoftext|>")]
    else:
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (tmp_path / name).write_bytes(mark + "".join(line + end for line in lines).encode())
    assert read(tmp_path / name) == texts


@pytest.mark.parametrize("gap", ["\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\r\r"])
def test_plain_text_of_any_line_end_is_divided(tmp_path, gap):
    lines = ["First.", "Second one.", "Third."]
    (tmp_path / "plain.txt").write_bytes(gap.join(lines).encode())
    assert read(tmp_path / "plain.txt") == lines


REFUSED = {
    "nul.txt": (b"One.\n\nT\0wo.\n", "NUL byte at 7"),
    "wide.txt": ("One.\n\nTwo.".encode("utf-16"), "UTF-16"),
    "bare.txt": ("One.\n\nTwo.".encode("utf-16-le"), "NUL byte at 1"),
    "wide.jsonl": ('{"text": "a"}\n'.encode("utf-16") * 2, "UTF-16"),
    "wide.csv": ("text\na\nb\n".encode("utf-16"), "UTF-16"),
    "latin.txt": ("One.\n\ncaf\xe9 noir".encode("latin-1"), "at byte 9"),
    "latin.csv": ("text\ncaf\xe9\n".encode("latin-1"), "at byte 8"),
    "bom.txt": (b"\xef\xbb\xbfab\xff", "at byte 5"),
    "cut.txt": ("One.\n\nTwo é".encode()[:-1], "at byte 10"),
    "empty.jsonl": (b"", "no story"),
    "blank.txt": (b" \n\n \n", "no story"),
    "a.txt.gz": (b"\x1f\x8b", "compressed"),
    "list.jsonl": (b'["a"]\n["b"]\n', "row 1 holds ['a']"),
    "half.jsonl": (b'{"text": "a"}\n{"text": "b"\n', "line 2"),
    "lost.jsonl": (b'{"text": "a"}\n{"other": "b"}\n', "row 2: no column text, only other"),
    "pair.jsonl": (b'{"text": "a"}\n{"text": "x\\ud83d"}\n', "row 2"),
    "deep.jsonl": (b'{"text": ' + b"[" * 100_000 + b"\n", "line 1"),
    "half.json": (b'[{"text": "a"}, {"text": ', "half.json: not JSON"),
    "cells.csv": (b"n,text\n1,a\n1,b,c\n", "row 2 has 3 cells"),
    "quote.csv": (b'n,text\n1,a\n1,"b\n', "line 3"),
    "column.csv": (b"n|story\n1|a\n", "no column text, only n|story"),
    "divided.csv": (b"n;text\n1;a\n", "divided by ';'; save it with commas"),
    "quoted.csv": (b'"n";"text"\n"1";"a"\n', "divided by ';'; save it with commas"),
    "tabs.csv": (b"text\tn\na, b\t1\n", "divided by '\\t'"),
    "twice.csv": (b"text,text\na,b\nc,d\n", "text heads 2 columns"),
    "twice.jsonl": (b'{"text": "a", "text": "b"}\n{"text": "c"}\n', "line 1"),
    "twice.json": (b'[{"text": "a", "text": "b"}, {"text": "c"}]', "text stands twice"),
    "columns.json": (b'{"text": ["a"], "text": ["b", "c"]}', "text stands twice"),
    "nested.json": (b'{"version": 1,\n "data": [{"text": "a"}, {"text": "b"}]}', "version, data"),
    "nested in a line.json": (b'{"version": 1, "data": [{"text": "a"}]}', "version, data"),
    "pointer.txt": (POINTER + b"v1\noid sha256:4d7a\nsize 12345\n", "Git LFS"),
    "pointer.csv": (POINTER + b"v1\noid sha256:4d7a\nsize 12345\n", "Git LFS"),
    "pointer.parquet": (POINTER + b"v1\noid sha256:4d7a\nsize 12345\n", "Git LFS"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_no_text_is_refused_by_its_place(tmp_path, name):
    content, message = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError) as caught:
        read(tmp_path / name)
    said = str(caught.value)
    assert name in said
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "content",
    [
        [{"text": text} for text in TEXTS],
        {"n": 1, "text": TEXTS},
        {"text": {str(i): text for i, text in enumerate(TEXTS)}, "n": {}},  # as pandas writes it
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_json_is_an_array_or_an_object_of_columns(tmp_path, content, indent):
    (tmp_path / "t.json").write_text(f"\n{json.dumps(content, indent=indent)}\n")
    assert read(tmp_path / "t.json") == TEXTS


def test_json_of_lines_is_not_held_whole(tmp_path):
    (tmp_path / "t.json").write_text(f"{json.dumps({'text': 'word ' * 2000})}\n" * 800)
    tracemalloc.start()
    next(read_file(tmp_path / "t.json", "text"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e6 < (tmp_path / "t.json").stat().st_size


def test_rows_of_a_csv_may_end_with_a_carriage_return(tmp_path):
    """As spreadsheets of a Mac write them; in quotes it is of the text."""
    texts = ["One, two.", 'He said "a\rb\r\nc\n".', "Three.\x0c\u2028"]
    for end in ("\r", "\r\n", "\n"):
        with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator=end)
            rows.writerows([["text", "n"], *([text, 1] for text in texts)])
        assert read(tmp_path / "t.csv") == [text.strip() for text in texts]


def test_a_carriage_return_in_a_bare_cell_divides_no_story(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"text\nhello\rworld\nlast\n")
    with pytest.raises(CorpusError, match="new-line character"):
        read(tmp_path / "t.csv")


def test_cells_of_a_csv_are_texts_of_any_length(tmp_path):
    texts = ["7", "true", "x" * 300_000, 'a "b", c']
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    assert read(tmp_path / "t.csv") == texts


def test_a_text_without_line_ends_is_read_in_linear_time(tmp_path, monkeypatch):
    """The separators are looked for in no more letters than a few times those of the text."""
    from tokenizer import readers

    monkeypatch.setattr(readers, "BLOCK", 1000)
    path, searched = tmp_path / "long.txt", []
    path.write_text("word " * 200_000 + "\nend")
    separator = readers._separator(path, 0, 0)

    class Counted:
        pattern = separator.pattern

        def split(self, text):
            searched.append(len(text))
            return separator.split(text)

    monkeypatch.setattr(readers, "_separator", lambda *_: Counted())
    assert [len(text) for text in read(path)] == [999_999, 3]
    assert sum(searched) < 2 * 4 * 1_000_000
