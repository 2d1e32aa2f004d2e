"""What files beside a tokenizer.json say of its tokens."""

import json

import pytest
import transformers
from tokenizers import normalizers, pre_tokenizers

from arch.formats.named_tokens import read_ends, say_left_out_tokens
from tests.arch.cases import byte_tokenizer

PAD = {"content": "<|pad|>", "lstrip": False, "rstrip": False, "normalized": False,
       "single_word": False, "special": True}  # fmt: skip


def decoder(**flags):
    return {"added_tokens_decoder": {"257": PAD | flags}}


def in_small_letters():
    tokenizer = byte_tokenizer()
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def in_steps():
    tokenizer = byte_tokenizer()
    parts = [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return tokenizer


@pytest.mark.parametrize(
    ("held", "make", "said"),
    [
        (decoder(), in_small_letters, ""),
        (decoder(special=False), byte_tokenizer, ""),
        (decoder(lstrip=True), byte_tokenizer, "says lstrip True of <|pad|>, tokenizer.json does"),
        (decoder(rstrip=True), byte_tokenizer, "says rstrip True of <|pad|>"),
        (decoder(single_word=True), byte_tokenizer, "says single_word True of <|pad|>"),
        (decoder(normalized=True), in_small_letters, "says normalized True of <|pad|>"),
        (decoder(normalized=True), byte_tokenizer, ""),
        ({"split_special_tokens": True}, byte_tokenizer, "says split_special_tokens True"),
        ({"split_special_tokens": False}, byte_tokenizer, ""),
        ({"fast_tokenizer_files": ["tokenizer.4.0.json"]}, byte_tokenizer, "fast_tokenizer_files"),
        ({"add_prefix_space": True}, in_steps, "says add_prefix_space True"),
        ({"add_prefix_space": False}, in_steps, ""),
    ],
)
def test_what_would_split_a_text_otherwise_is_said(held, make, said, tmp_path, capsys):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(held))
    say_left_out_tokens(tmp_path, make().to_str())
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == bool(said)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip"])
def test_transformers_takes_the_flags_of_the_other_file(flag, tmp_path):
    """Which is why they are said."""
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer().to_str())
    found = {}
    for value in (False, True):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(decoder(**{flag: value})))
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
        found[value] = tokenizer("a <|pad|> b").input_ids
    assert found[False] == byte_tokenizer().encode("a <|pad|> b").ids
    assert len(found[True]) == len(found[False]) - 1


@pytest.mark.parametrize("flag", ["add_bos_token", "add_eos_token"])
@pytest.mark.parametrize("adds", [True, False])
def test_what_stands_around_a_text_is_what_tokenizer_json_says(flag, adds, tmp_path):
    """So it is for transformers, whose tokenizers lm-eval asks: no other token is predicted."""
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer().to_str())
    ends = {"bos_token": "<|pad|>", "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(ends | {flag: adds}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    assert tokenizer("a b").input_ids == byte_tokenizer().encode("a b").ids


@pytest.mark.parametrize(
    ("token", "file", "held", "stops"),
    [
        ("<|im_end|>", "generation_config.json", {"eos_token_id": [258]}, ["<|im_end|>"]),
        ("  ", "generation_config.json", {"eos_token_id": [258]}, None),
        ("<|im_end|>", "config.json", {"text_config": {"eos_token_id": 258}}, ["<|im_end|>"]),
        ("<|im_end|>", "config.json", {"eos_token_id": 5}, None),
    ],
)
def test_a_text_ends_at_an_added_token_that_is_not_special_too(token, file, held, stops, tmp_path):
    """A continuation went on behind it."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([token])
    (tmp_path / file).write_text(json.dumps(held))
    assert read_ends(tmp_path, tokenizer.to_str()).get("stops") == stops
