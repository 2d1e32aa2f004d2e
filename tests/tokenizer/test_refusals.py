"""What cannot be used is refused in one line, which names the flag or file and what was seen."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models

from tests.said import one_line
from tokenizer import CorpusError, load_tokenizer, open_corpus, pack
from tokenizer.__main__ import main
from tokenizer.bpe import token_bytes
from tokenizer.pack import Layout

FILES = {
    "empty.txt": b"",
    "blank.txt": b"\n \n<|endoftext|>\n\n<|endoftext|>",
    "one.txt": b"Once.\n<|endoftext|>\n",
    "plain.txt": b"Once upon a time.\n",
    "latin.txt": b"One.\n<|endoftext|>\nA caf\xe9.\n<|endoftext|>\n",
    "latin.jsonl": b'{"text": "a"}\n{"text": "\xff"}\n',
    "empty.jsonl": b"\n",
    "broken.jsonl": b'{"text": "a"}\n\n{"text": \n',
    "field.jsonl": b'{"story": "a"}\n',
    "other.jsonl": b'{"text": "a"}\n{"story": "b"}\n',
    "late.jsonl": b'{"text": "a"}\n' * 5 + b'{"text": null}\n',
    "list.jsonl": b"[1]\n",
    "surrogate.jsonl": b'{"text": "\\ud800"}\n',
    "broken.parquet": b"PAR1 no PAR1",
    "stories.xml": b"text\n",
    "few.txt": b"One.<|endoftext|>Two.<|endoftext|>Three.<|endoftext|>",
    "one/train.txt": b"One.<|endoftext|>Two.<|endoftext|>",
    "two/train.txt": b"One.<|endoftext|>Two.<|endoftext|>",
    "two/train.jsonl": b'{"text": "a"}\n',
    "nothing/notes.md": b"",
    "broken.json": b"{}",
    "model/meta.json": b'{"step": 0}',
    "text/meta.json": b"{",
    "young/meta.json": b'{"schema": 9, "splits": {}}',
}
TABLES = {
    "column.parquet": {"story": ["a", "b"], "id": [1, 2]},
    "null.parquet": {"text": ["a", "b", None]},
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
    many = load_tokenizer(tokenizer)
    many.add_tokens([f"token{number}" for number in range(65536)])
    many.save(str(at / "many.json"))
    pack("toy:4", tokenizer, at / "data")
    about = json.loads((at / "data" / "meta.json").read_text()) | {"tokenizer_sha256": "0"}
    (at / "data" / "meta.json").write_text(json.dumps(about))
    return at


def train(name: str, message: str) -> tuple[str, str]:
    return f"train {{at}}/{name} --out {{new}}", f"{name}: {message}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        train("empty.txt", "holds no story; at least two"),
        train("blank.txt", "holds no story; at least two"),
        train("one.txt", "holds one story only; at least two"),
        train("plain.txt", "holds one story only; at least two"),
        train("latin.txt", "invalid continuation byte (0xe9), not valid UTF-8"),
        train("latin.jsonl", "cannot be read after row 2 ("),
        train("empty.jsonl", ""),
        train("broken.jsonl", "cannot be read after row 0 ("),
        train("field.jsonl", "no column text, only story; name"),
        train("other.jsonl", "row 2 holds None, not a text"),
        train("late.jsonl", "row 6 holds None, not a text"),
        train("list.jsonl", ""),
        train("surrogate.jsonl", ""),
        train("broken.parquet", "cannot be loaded ("),
        train("stories.xml", "unknown kind of file"),
        train("column.parquet", "no column text, only story, id"),
        train("null.parquet", "row 3 holds None"),
        train("bytes.parquet", "cannot be read after row 2 ("),
        train("nowhere", "no such file or directory"),
        train("nothing", "no train.* or valid.* in it"),
        train("two", "several kinds of file (train.jsonl, train.txt)"),
        *((f"train {toy} --out {{new}}", f"{toy}: must be toy, toy:STORIES or toy:STORIES:SEED")
          for toy in ("toy:", "toy:1", "toy:x", "toy:10:", "toy:10:1:2")),
        ("train toy:10 --limit 1 --out {new}", "--limit 1: must be 2 or more"),
        ("train toy:10 --out {t}/t.json", "tokenizer.json/t.json: cannot be written ("),
        ("train toy:10 --out {at}", "is a directory"),
        ("train toy:10 --out {new} --vocab-size 9999", "--vocab-size 9999"),
        ("train toy:10 --out {new} --vocab-size 257", "--vocab-size 257: must be 258"),
        ("train toy:10 --out {new} --vocab-size 65537", "--vocab-size 65537: must be 258"),
        ("inspect {t} --corpus {at}/one", "has no valid split"),
        ("pack {at}/few.txt --tokenizer {t} --out {new} --valid-fraction 1e-9",
         "holds no story for valid"),
        (f"{PACK} --valid-fraction 1.5", "--valid-fraction 1.5"),
        (f"{PACK} --workers 0", "--workers 0"),
        (f"{PACK} --shard-tokens 0", "--shard-tokens 0"),
        (f"{PACK} --story-tokens 0", "--story-tokens 0"),
        (f"{PACK} --context 8", "need --layout rows"),
        (f"{PACK} --pad-side left", "need --layout rows"),
        (f"{PACK} --layout rows", "--context None"),
        (f"{PACK} --layout rows --context 1", "--context 1"),
        ("pack toy:10 --tokenizer {t} --out {t}/d", "tokenizer.json/d: cannot be written ("),
        ("pack toy:10 --tokenizer {t} --out {at}", "already exists"),
        ("pack toy:10 --tokenizer {t} --out {at} --force", "not packed data, so --force leaves it"),
        ("pack toy:10 --tokenizer {new} --out {new}d", "new: no such file"),
        ("pack toy:10 --tokenizer {at}/bare.json --out {new}", "has no entry <|endoftext|>"),
        ("pack toy:10 --tokenizer {at}/many.json --out {new}", "65936 entries"),
        ("inspect {at}", "no such file"),
        ("inspect {at}/broken.json", "not a tokenizer file"),
        ("check {at}", "not a directory of packed data (no meta.json)"),
        ("check {at}/nowhere", "nowhere: no such directory of packed data"),
        ("check {at}/model", "not a directory of packed data (no splits in"),
        ("check {at}/text", "meta.json: not JSON ("),
        ("check {at}/young", "meta.json: schema 9"),
        ("check {at}/data", "tokenizer.json: not the tokenizer this data was"),
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: open_corpus("toy:10", "test"), "split test"),
        (lambda: Layout("columns"), "--layout columns"),
        (lambda: Layout("rows", 8, "top"), "--pad-side top"),
        (lambda: token_bytes(Tokenizer(models.WordLevel({"a": 0, "wörld ": 1}, unk_token="a"))),
         "is not made of bytes"),
    ],
)  # fmt: skip
def test_a_function_refuses_in_one_line(call, message):
    with one_line(CorpusError, message):
        call()
