"""How tokens are shown: joined they are the text, by every kind of decoder."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from eval.models.pieces import Pieces
from tokenizer import bpe

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁a", "▁", "▁dog", "ran", "a", "dog", "##ging", ".", "\ufffd", "日"]
LLAMA = decoders.Sequence([
    decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
])  # fmt: skip
DECODERS = {
    "llama": LLAMA, "metaspace": decoders.Metaspace(), "wordpiece": decoders.WordPiece(),
    "bpe": decoders.BPEDecoder("▁"), "none": None,
}  # fmt: skip


def made(decoder):
    known = {token: number for number, token in enumerate([*BYTES, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="."))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


def ids(tokenizer, *tokens) -> list[Any]:
    return [tokenizer.token_to_id(token) for token in tokens]


@pytest.fixture(scope="module")
def byte_level():
    """A tokenizer of single bytes, and some tokens of several."""
    names = [*sorted(bpe.BYTES), "dog", "Ġdog", "Ã©", "Ġð", "\ufffd"]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(
    "tokens",
    [
        ["▁a", "▁dog", "ran"],
        ["▁", "▁", "▁a"],
        ["<s>", "▁a", "dog", "##ging", "."],
        ["dog", "ran", "."],
        ["\ufffd", "▁a", "日"],
        [*"aaa"] * 900,
    ],
)
def test_pieces_joined_are_the_text(name, tokens):
    tokenizer = made(DECODERS[name])
    tokens = ids(tokenizer, *tokens)
    pieces = Pieces(tokenizer).of(tokens)
    assert len(pieces) == len(tokens)
    assert "".join(pieces) == tokenizer.decode(tokens, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("tokens", "pieces"),
    [
        (["▁a", "▁dog"], ["a", " dog"]),
        (["▁a", "▁", "<0xC3>", "<0xA9>", "ran"], ["a", " ", "", "é", "ran"]),
        (["<0xC3>", "<0xA9>"], ["", "é"]),
        (["<0xC3>", "▁dog"], ["\\xc3", " dog"]),
        (["▁a", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>"], ["a", "", "", "€", "\\xff"]),
        (["▁a", "<0xF0>", "<0x9F>", "ran"], ["a", "\\xf0", "\\x9f", "ran"]),
        ([], []),
    ],
)
def test_blanks_and_bytes_of_sentencepiece(tokens, pieces):
    tokenizer = made(LLAMA)
    assert Pieces(tokenizer).of(ids(tokenizer, *tokens)) == pieces


@pytest.mark.parametrize("text", ["café 🐶 là", "日本 dog\n", "e\u0301", "\ufffd!", " a  b "])
def test_characters_of_several_tokens(byte_level, text):
    tokens = byte_level.encode(text).ids
    assert "".join(Pieces(byte_level).of(tokens)) == text


def test_wrong_tokens_between_right_ones_break_no_other(byte_level):
    dog = ids(byte_level, "ð", "Ł", "Ĳ", "¶")
    wrong = [*dog, *ids(byte_level, "Ã"), *dog[:2], *ids(byte_level, "dog", "Ã©")]
    assert Pieces(byte_level).of(wrong) == [
        "", "", "", "🐶", "\\xc3", "\\xf0", "\\x9f", "dog", "é",
    ]  # fmt: skip


def test_a_token_of_plain_letters_reads_as_it_is_decoded(byte_level, small_tokenizer):
    for tokenizer in (byte_level, small_tokenizer):
        pieces = Pieces(tokenizer)
        for token in sorted(tokenizer.get_vocab().values()):
            read = tokenizer.decode([token], skip_special_tokens=False)
            if "\ufffd" not in read:
                assert pieces.of([token]) == [pieces.alone(token)] == [read]


def test_a_token_alone_shows_its_blank_and_its_bytes(byte_level):
    llama = Pieces(made(LLAMA))
    tokens = ids(llama.tokenizer, "▁a", "▁", "<0xC3>", "<0x0A>")
    assert [llama.alone(token) for token in tokens] == [" a", " ", "\\xc3", "\n"]
    assert Pieces(byte_level).alone(*ids(byte_level, "Ġð")) == " \\xf0"
