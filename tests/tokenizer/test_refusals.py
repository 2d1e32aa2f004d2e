"""What cannot be used is refused in one line, which names the flag or file and what was seen."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models

from tests.said import one_line
from tokenizer import CorpusError, PackedData, load_tokenizer, open_corpus, pack
from tokenizer.__main__ import main
from tokenizer.bpe import token_bytes
from tokenizer.pack import Layout

FILES = {
    "empty.txt": b"",
    "one.txt": b"Once.\n<|endoftext|>\n",
    "latin.txt": b"One.\n<|endoftext|>\nA caf\xe9.\n<|endoftext|>\n",
    "latin.jsonl": b'{"text": "a"}\n{"text": "\xff"}\n',
    "broken.jsonl": b'{"text": "a"}\n\n{"text": \n',
    "field.jsonl": b'{"story": "a"}\n',
    "late.jsonl": b'{"text": "a"}\n' * 5 + b'{"text": null}\n',
    "surrogate.jsonl": b'{"text": "\\ud800"}\n',
    "broken.parquet": b"PAR1 no PAR1",
    "stories.xml": b"text\n",
    "few.txt": b"One.<|endoftext|>Two.<|endoftext|>Three.<|endoftext|>",
    "one/train.txt": b"One.<|endoftext|>Two.<|endoftext|>",
    "two/train.txt": b"One.<|endoftext|>Two.<|endoftext|>",
    "two/train.jsonl": b'{"text": "a"}\n',
    "nothing/notes.md": b"",
    "broken.json": b"{}",
    "far.json": b'{"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", '
    b'"vocab": {"a": 4294967294}, "unk_token": "a"}}',
    "model/meta.json": b'{"step": 0}',
    "text/meta.json": b"{",
    "young/meta.json": b'{"schema": 9, "splits": {}}',
}
TABLES = {
    "bytes.parquet": {"text": pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())},
}
PACK = "pack toy:10 --tokenizer {t} --out {new}"


@pytest.fixture(scope="module")
def place(tmp_path_factory, tokenizer):
    """A directory of all that is wrong."""
    at = tmp_path_factory.mktemp("refused")
    for name, content in FILES.items():
        (at / name).parent.mkdir(exist_ok=True)
        (at / name).write_bytes(content)
    for name, columns in TABLES.items():
        pq.write_table(pa.table(columns), at / name)
    Tokenizer(models.BPE()).save(str(at / "bare.json"))
    many = json.loads(load_tokenizer(tokenizer).to_str())
    known = many["model"]["vocab"]
    known |= {f"token{n}": n for n in range(len(known), len(known) + 65536)}
    (at / "many.json").write_text(json.dumps(many), "utf-8")
    pack("toy:4", tokenizer, at / "data")
    about = json.loads((at / "data" / "meta.json").read_text()) | {"tokenizer_sha256": "0"}
    (at / "data" / "meta.json").write_text(json.dumps(about))
    return at


def train(name: str, message: str) -> tuple[str, str]:
    return f"train {{at}}/{name} --out {{new}}", f"{name}: {message}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        train("empty.txt", "holds no story for train; at least two"),
        train("one.txt", "holds one story only for train; at least two"),
        train("latin.txt", "invalid continuation byte (0xe9) at byte 24, not valid UTF-8"),
        train("latin.jsonl", "invalid start byte (0xff) at byte 24"),
        train("broken.jsonl", "line 3 is not JSON ("),
        train("field.jsonl", "no column text, only story; name"),
        train("late.jsonl", "row 6 holds None, not a text"),
        train("surrogate.jsonl", "row 1 is not valid Unicode (a lone surrogate at 0)"),
        train("broken.parquet", "cannot be loaded ("),
        train("stories.xml", "unknown kind of file"),
        train("bytes.parquet", "cannot be read after row 2 ("),
        train("nowhere", "no such file or directory"),
        train("nothing", "no train.* or valid.* in it"),
        train("two", "several kinds of file (train.jsonl, train.txt)"),
        *((f"train {toy} --out {{new}}", f"{toy}: must be toy, toy:STORIES or toy:STORIES:SEED")
          for toy in ("toy:1", "toy:10:", "toy:10:1:2")),
        ("train toy:10 --limit 1 --out {new}", "--limit 1: must be 2 or more"),
        ("train toy:10 --out {t}/t.json", "tokenizer.json/t.json: cannot be written ("),
        ("train toy:10 --out {at}", "is a directory"),
        ("train toy:10 --out {new} --vocab-size 9999", "--vocab-size 9999"),
        ("train toy:10 --out {new} --vocab-size 257", "--vocab-size 257: must be 258"),
        ("inspect {t} --corpus {at}/one", "for valid; at least two"),
        ("pack {at}/few.txt --tokenizer {t} --out {new} --valid-fraction 1e-9",
         "holds no story for valid"),
        (f"{PACK} --valid-fraction 1.5", "--valid-fraction 1.5"),
        (f"{PACK} --shard-tokens 0", "--shard-tokens 0"),
        (f"{PACK} --story-tokens 0", "--story-tokens 0"),
        (f"{PACK} --context 8", "need --layout rows"),
        (f"{PACK} --layout rows --context 1", "--context 1"),
        ("pack toy:10 --tokenizer {t} --out {t}/d", "tokenizer.json/d: cannot be written ("),
        ("pack toy:10 --tokenizer {t} --out {at}", "already exists"),
        ("pack toy:10 --tokenizer {new} --out {new}d", "new: no such file"),
        ("pack toy:10 --tokenizer {at}/bare.json --out {new}", "has no entry <|endoftext|>"),
        ("pack toy:10 --tokenizer {at}/many.json --out {new}", "65936 entries"),
        ("inspect {at}", "no such file"),
        ("inspect {at}/broken.json", "not a tokenizer file"),
    ],
)  # fmt: skip
def test_a_command_refuses_in_one_line(words, message, place, tokenizer, capsys):
    before = sorted(place.rglob("*"))
    places = {"at": place, "t": tokenizer, "new": place / "new"}
    assert main(words.format(**places).split()) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert (said.out, said.err.count("\n"), said.err[:7]) == ("", 1, "error: ")
    assert sorted(place.rglob("*")) == before


def test_the_working_directory_is_no_place_for_data(tokenizer, tmp_path, monkeypatch, capsys):
    """It has no name beside which to write."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["pack", "toy:10", "--tokenizer", str(tokenizer), "--out", "."]) == 2
    assert capsys.readouterr().err.startswith("error: --out .: already exists")
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


@pytest.mark.parametrize(
    "words",
    [
        "train",
        "train toy --out x --vocab-size 1e3",
        "pack --size 3",
        "train toy:10 --out=",  # of a variable that is not set
        "inspect t.json --corpus=",  # the working directory was read
    ],
)
def test_what_the_parser_refuses_is_one_line(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    said = capsys.readouterr().err
    assert (said.count("\n"), said[:7]) == (1, "error: ")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda at: open_corpus("toy:10", "test"), "split test"),
        (lambda at: Layout("columns"), "--layout columns"),
        (lambda at: Layout("rows", 8, "top"), "--pad-side top"),
        (lambda at: load_tokenizer(at / "latin.txt"), "latin.txt: not a tokenizer file ("),
        (lambda at: load_tokenizer(at / "text"), "no such file"),
        (lambda at: load_tokenizer(at / "my t.json"), "/my t.json'"),  # as a shell reads it
        (lambda at: load_tokenizer(at / "far.json"), "far.json names id 4294967294"),
        (lambda at: token_bytes(Tokenizer(models.WordLevel({"a": 0, "wörld ": 1}))),
         "is not made of bytes"),
        (PackedData, "not a directory of packed data (no meta.json)"),
        (lambda at: PackedData(at / "nowhere"), "nowhere: no such directory of packed data"),
        (lambda at: PackedData(at / "model"), "not a directory of packed data (no splits in"),
        (lambda at: PackedData(at / "text"), "meta.json: not JSON ("),
        (lambda at: PackedData(at / "young"), "meta.json: schema 9"),
        (lambda at: PackedData(at / "data"), "tokenizer.json: not the tokenizer this data was"),
    ],
)  # fmt: skip
def test_a_function_refuses_in_one_line(call, message, place):
    with one_line(CorpusError, message):
        call(place)
