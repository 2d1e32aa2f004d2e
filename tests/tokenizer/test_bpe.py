"""Byte-level BPE: exact size, lossless, deterministic, and the same ids as transformers."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tokenizer import (
    END_OF_TEXT,
    PAD,
    load_tokenizer,
    open_corpus,
    tokenizer_hash,
    train_tokenizer,
)
from tokenizer.bpe import encode_stories, token_bytes

TEXTS = [
    "",
    "Once upon a time,\n\nthere was a fox.\r\n\tThe end. ",
    "Zoë 🙂👩‍👩‍👧 naïve 漢字 \x00\x01\x7f \u2028 ﬁ",
    f"a story with {END_OF_TEXT} and {PAD} in it",
    "   three   spaces   ",
]
SMALL = train_tokenizer(["aaabdaaabac", "the cat sat on the mat"], 262)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(open_corpus("toy:100", "train"), 600)


def test_the_entries_are_the_special_tokens_the_bytes_and_merges(tokenizer):
    assert sorted(tokenizer.get_vocab().values()) == list(range(600))
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    assert tokenizer.token_to_id(PAD) == 1
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    assert len(alphabet) == 256
    assert {tokenizer.token_to_id(symbol) for symbol in alphabet} == set(range(2, 258))
    again = train_tokenizer(list(open_corpus("toy:100", "train")), 600)
    assert again.to_str() == tokenizer.to_str()


@given(st.text())
@example("".join(TEXTS))
@settings(max_examples=60)
def test_any_text_comes_back(text):
    ids = SMALL.encode(text).ids
    assert SMALL.decode(ids, skip_special_tokens=False) == text
    # Written in bytes, independent of the library's decoder.
    pieces = token_bytes(SMALL)
    read = [pieces[token] or str(SMALL.id_to_token(token)).encode() for token in ids]
    assert b"".join(read) == text.encode()


def test_special_tokens_in_a_text_get_their_ids_but_not_in_a_packed_story(tokenizer):
    text = f"one{END_OF_TEXT}two{PAD}"
    assert tokenizer.encode(text).ids.count(0) == 1
    copy = Tokenizer.from_str(tokenizer.to_str())
    [[(_, ids)]] = encode_stories(copy, [(0, text)])
    assert not {0, 1} & set(ids)
    assert copy.decode(ids, skip_special_tokens=False) == text


def test_transformers_reads_the_file_and_gives_the_same_ids(tokenizer, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    for path in (file, str(file), tmp_path):
        assert tokenizer_hash(load_tokenizer(path)) == tokenizer_hash(tokenizer)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(file), pad_token=PAD, eos_token=END_OF_TEXT)
    assert [theirs(text)["input_ids"] for text in TEXTS] == [tokenizer.encode(t).ids for t in TEXTS]
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.vocab_size) == (0, 1, 600)
