"""Tokenizer files of others, long words, consoles without UTF-8, and Ctrl-C."""

import json
import random

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from tests.said import one_line
from tests.tokenizer.test_cli import run
from tokenizer import (
    CorpusError,
    encode_alike,
    encoding_hash,
    load_tokenizer,
    open_corpus,
    pack,
    train_tokenizer,
)
from tokenizer import __main__ as commands
from tokenizer.__main__ import main
from tokenizer.bpe import LONGEST, PAD
from tokenizer.pack import Layout
from tokenizer.splits import held_out


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"version": "1.0"}', b'{"model": {"type": "BPE"}}'],
)
def test_a_damaged_tokenizer_is_refused(content, tmp_path, capsys):
    (tmp_path / "t.json").write_bytes(content)
    for words in (["inspect"], ["pack", "toy:10", "--out", str(tmp_path / "d"), "--tokenizer"]):
        assert main([*words, str(tmp_path / "t.json")]) == 2
        said = capsys.readouterr()
        assert f"error: {tmp_path / 't.json'}: not a tokenizer file (" in said.err
        assert (said.out, said.err.count("\n")) == ("", 1)


def test_a_tokenizer_saved_while_it_was_trained_with_packs_whole_stories(tokenizer, tmp_path):
    padding = Tokenizer.from_file(str(tokenizer))
    padding.enable_padding(length=900)
    padding.enable_truncation(5)
    padding.model.dropout = 0.5
    padding.save(str(tmp_path / "t.json"))
    data = pack("toy:20", tmp_path / "t.json", tmp_path / "data")
    assert list(data.stories("train")) == list(open_corpus("toy:20", "train"))
    assert data.hash == pack("toy:20", tokenizer, tmp_path / "plain").hash


def test_a_tokenizer_without_padding_packs_a_line_of_tokens_and_no_rows(tokenizer, tmp_path):
    """As those of published models: data for --init_from are packed with them."""
    known = json.loads(tokenizer.read_text())
    end, pad = known["added_tokens"]
    text = json.dumps(known | {"added_tokens": [end, pad | {"special": False}]})
    (tmp_path / "ordinary.json").write_text(text)
    known["model"]["vocab"] |= {"Ā": known["model"]["vocab"].pop(PAD)}
    (tmp_path / "none.json").write_text(json.dumps(known | {"added_tokens": [end]}))
    advice = "has no entry <|pad|> that is special; train a tokenizer with: python -m tokenizer"
    for name, layout, more in (
        ("ordinary", Layout(), " train"),
        ("none", Layout("rows", 40), " train, or pack without rows"),
    ):
        with one_line(CorpusError, f"{name}.json: {advice}{more}"):
            pack("toy:20", tmp_path / f"{name}.json", tmp_path / "data", layout)
    data = pack("toy:20", tmp_path / "none.json", tmp_path / "data")
    assert list(data.stories("train")) == list(open_corpus("toy:20", "train"))


def without_a_byte(tokenizer):
    parts = json.loads(tokenizer.to_str())
    del parts["model"]["vocab"]["~"]
    return Tokenizer.from_str(json.dumps(parts))


CHANGES = {
    "small letters": ("normalizer", normalizers.Lowercase()),
    "compatible letters": ("normalizer", normalizers.NFKC()),
    "other words": ("normalizer", normalizers.Replace("Mia", "Zoe")),
    "a blank before a text": ("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "no blanks": (
        "pre_tokenizer",
        pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
    ),
    "another decoder": ("decoder", decoders.WordPiece()),
    "an entry that takes blanks": ("added", AddedToken("ran", lstrip=True, rstrip=True)),
    "an entry whose letters name bytes": ("added", AddedToken("Kätzchen")),
    "a byte that is missing": ("byte", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tokenizer_that_changes_a_story_is_refused(change, tokenizer, tmp_path):
    (name, part), changed = CHANGES[change], Tokenizer.from_file(str(tokenizer))
    if name == "added":
        changed.add_tokens([part])
    elif name == "byte":
        changed = without_a_byte(changed)
    else:
        setattr(changed, name, part)
    changed.save(str(tmp_path / "t.json"))
    (tmp_path / "s").mkdir()
    for split in ("train", "valid"):
        text = f"Mia ran to ~ a {split} \ufb01sh.\n\nMia ran {split} home."
        (tmp_path / f"s/{split}.txt").write_text(text)
    with one_line(CorpusError, "t.json: changes a story"):
        pack(str(tmp_path / "s"), tmp_path / "t.json", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_ids_that_the_library_does_not_keep_are_refused(tokenizer, tmp_path, capsys):
    known = json.loads(tokenizer.read_text())
    added = {**known["added_tokens"][0], "id": 5, "content": "new"}
    vocabulary = {**known["model"], "vocab": {**known["model"]["vocab"], "zz": 5}}
    for change, said in (
        ({"model": vocabulary}, "two entries have one id"),
        ({"added_tokens": [*known["added_tokens"], added]}, "'new' has another id"),
    ):
        (tmp_path / "t.json").write_text(json.dumps(known | change))
        for words in (["inspect"], ["pack", "toy:10", "--out", str(tmp_path / "d"), "--tokenizer"]):
            assert main([*words, str(tmp_path / "t.json")]) == 2
            assert f"t.json: {said}" in capsys.readouterr().err


def test_a_story_that_a_tokenizer_cannot_read_is_refused(tmp_path, capsys):
    Tokenizer(models.Unigram([("a", -1.0)])).save(str(tmp_path / "t.json"))
    assert main(["inspect", str(tmp_path / "t.json"), "--corpus", "toy:10"]) == 2
    assert "t.json: cannot read a story (" in capsys.readouterr().err


def test_what_a_tokenizer_puts_around_a_text_does_not_part_joined_stories(tokenizer, tmp_path):
    around = Tokenizer.from_file(str(tokenizer))
    around.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    around.save(str(tmp_path / "t.json"))
    (tmp_path / "b.txt").write_text("\n\n".join(f"Paragraph {i} of it." for i in range(60)))
    chosen = {"valid_fraction": 0.3, "story_tokens": 60}
    plain, data = (
        pack(str(tmp_path / "b.txt"), file, tmp_path / name, **chosen)
        for name, file in (("plain", tokenizer), ("around", tmp_path / "t.json"))
    )
    assert data.meta["splits"] == plain.meta["splits"]


def test_a_joined_story_has_the_ids_of_its_text(tmp_path):
    """Of a tokenizer that, as GPT-2's, has a token of two line ends, and none inside a text."""
    texts = [f"Paragraph {i} of it." for i in range(60)]
    learnt = train_tokenizer(["\n\n\n".join(texts)], 300)
    learnt.save(str(tmp_path / "t.json"))
    (tmp_path / "b.txt").write_text("\n\n".join(texts))
    data = pack(str(tmp_path / "b.txt"), tmp_path / "t.json", tmp_path / "data", story_tokens=60)
    assert "ĊĊ" in learnt.get_vocab()
    for text, ids in data.encoded("train"):
        assert "\n\n" in text
        assert learnt.encode(text).ids == ids[:-1]


def test_an_entry_that_steers_a_terminal_is_spelt_out(tokenizer, tmp_path, capsys):
    entry, odd = "\x1b]0;owned by nobody\x07", Tokenizer.from_file(str(tokenizer))
    odd.add_tokens([entry])
    odd.save(str(tmp_path / "t.json"))
    assert main(["inspect", str(tmp_path / "t.json"), "--corpus", "toy:40", "--text", entry]) == 0
    shown = capsys.readouterr().out
    assert shown.count("owned") == 2
    assert all(map(str.isprintable, shown.splitlines()))


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip", "normalized", "special"])
def test_an_entry_that_is_found_elsewhere_in_a_text_is_another(flag, tokenizer):
    plain, other = (Tokenizer.from_file(str(tokenizer)) for _ in range(2))
    plain.add_tokens([AddedToken("dog", normalized=False)])
    other.add_tokens([AddedToken("dog", **{"normalized": False, flag: True})])
    assert not encode_alike(plain, other)
    assert encoding_hash(plain) != encoding_hash(other)


def test_a_tokenizer_that_a_class_of_transformers_saved_encodes_alike(tokenizer):
    """GPT2Tokenizer writes empty prefixes and suffixes; training from such a model was refused."""
    ours, about = Tokenizer.from_file(str(tokenizer)), json.loads(tokenizer.read_text())
    about["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    saved = Tokenizer.from_str(json.dumps(about))
    assert '"end_of_word_suffix":""' in saved.to_str()
    assert encode_alike(ours, saved)
    assert encoding_hash(ours) == encoding_hash(saved)


def test_the_bytes_of_an_entry_that_was_added_are_counted(tokenizer, tmp_path):
    added = Tokenizer.from_file(str(tokenizer))
    added.add_tokens(["little"])
    added.save(str(tmp_path / "t.json"))
    sizes = [
        pack("toy:20", file, tmp_path / name).meta["splits"]["train"]["bytes"]
        for name, file in (("plain", tokenizer), ("added", tmp_path / "t.json"))
    ]
    assert sizes[0] == sizes[1]


def test_a_tokenizer_whose_end_is_an_ordinary_entry_is_refused(tokenizer, tmp_path):
    about = json.loads(tokenizer.read_text())
    about["added_tokens"] = about["added_tokens"][1:]
    (tmp_path / "t.json").write_text(json.dumps(about))
    with one_line(CorpusError, "<|endoftext|>"):
        pack("toy:20", tmp_path / "t.json", tmp_path / "data")


def test_long_words_are_learnt_from_in_pieces(caplog):
    draw = random.Random(0)
    word = "".join(draw.choice("ACGT") for _ in range(100_000))
    tokenizer = train_tokenizer([f"A gene: {word}. End.", word], 300)
    assert "story 1 has a word of 100,000 letters" in caplog.text
    assert len(caplog.records) == 1
    ids = tokenizer.encode(word).ids
    assert len(ids) < len(word) / 2
    assert tokenizer.decode(ids) == word


@pytest.mark.parametrize("letter", ["a", "7", ".", " ", "\n", "字", "é"])
def test_every_kind_of_long_word_is_cut(letter, caplog):
    train_tokenizer([f"x {letter * 40 * LONGEST} y"], 259, fewer=True)
    assert "letters" in caplog.text


def test_ordinary_text_is_learnt_from_as_it_is(caplog):
    stories = [" ".join(open_corpus("toy:60", "train")), "word-" * 900, "https://x.y/" * 90]
    learnt, pieces = train_tokenizer(stories, 600), "a" * (LONGEST - 1)
    assert learnt.to_str() == train_tokenizer([*stories, ""], 600).to_str()
    train_tokenizer([f"{pieces} {pieces}"], 262)
    assert not caplog.records


@pytest.mark.parametrize("letters", [9, 1 << 21])
def test_a_pair_that_the_library_cannot_count_is_refused(letters, tmp_path, monkeypatch, capsys):
    """It was never merged, without a word: blanks of 2.4 GB of code, in tokenizers 0.23.3."""
    source, rows = tmp_path / "code.jsonl", ["if x:\n    y = 1\n    z = 2"] * 50
    source.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    held = sum(not held_out(row, 0.05) for row in rows)
    monkeypatch.setattr("tokenizer.bpe.LETTERS", letters)
    command = ["train", str(source), "--vocab-size", "262", "--out"]
    for limit, code in ((6 * held, 0), (6 * held - 1, 2)):
        monkeypatch.setattr("tokenizer.bpe.COUNTED", limit)
        assert main([*command, str(tmp_path / f"{limit}.json")]) == code
    assert f"error: {source}: the pair b'  ' stands there" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_console_without_utf8_shows_what_it_cannot_by_code(tokenizer, encoding):
    import sys

    words = f"{sys.executable} -m tokenizer inspect {tokenizer} --corpus toy:40 --text 'Zoë ran.'"
    done = run(f"{words} | grep -c 'u0120'; echo ${{PIPESTATUS[0]}}", PYTHONIOENCODING=encoding)
    assert int(done.stdout.split()[0]) > 1
    assert done.stdout.split()[1] == "0"
    assert done.stderr == ""


def test_a_lone_surrogate_is_refused_before_anything_is_printed(tokenizer, capsys):
    assert main(["inspect", str(tokenizer), "--corpus", "toy:40", "--text", "caf\udce9"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "a lone surrogate at 3" in said.err
    assert said.err.count("\n") == 1


def test_ctrl_c_says_what_is_kept(tokenizer, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    words = ["pack", "toy:60", "--tokenizer", str(tokenizer), "--out", str(tmp_path / "data")]
    monkeypatch.setattr(commands, "pack", stop)
    assert main(words) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted: nothing is kept"
    (tmp_path / ".data.partial").mkdir()
    (tmp_path / ".data.partial" / "train-00000.bin").touch()
    assert main(words) == 130
    assert "1 complete shards are kept" in capsys.readouterr().err
    monkeypatch.setattr(commands, "train_tokenizer", stop)
    assert main(["train", "toy:60", "--out", str(tmp_path / "t.json")]) == 130
    assert not (tmp_path / "t.json").exists()
    assert load_tokenizer(tokenizer)
