"""The tokenizer of a GGUF file: llama.cpp, whose format it is, is the judge."""

import pytest
import torch
from tokenizers import Tokenizer

from arch import ModelError, load_pretrained
from arch.__main__ import main
from tests.arch.cases import byte_tokenizer
from tests.said import one_line
from tokenizer import END_OF_TEXT

pytest.importorskip("gguf")
pytest.importorskip("transformers")
from tests.arch.pretrained.test_gguf import (
    V,
    views_in_c,  # noqa: F401 - a fixture
    write_gguf,
)

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
KEY = "tokenizer.ggml."
O_ID = byte_tokenizer().token_to_id("o")
PIECES = {0: "a", 1: "b", 2: "c", 3: "bc", 4: "ab"}
pytestmark = pytest.mark.filterwarnings("ignore")


def read(file):
    """The tokenizer of a GGUF file, as a model is opened with it."""
    return Tokenizer.from_str(load_pretrained(str(file)).tokenizer_json)


@pytest.mark.parametrize(
    ("pre", "said"),
    [("gpt-2", ""), ("llama-bpe", ""), ("smollm", ""), ("unknown", "'unknown'"), (None, "missing")],
)
def test_text_that_may_be_split_otherwise_than_the_file_says_is_said(pre, said, tmp_path, capsys):
    write_gguf(tmp_path / "tiny.gguf", pre=pre)
    assert main(["import", str(tmp_path / "tiny.gguf"), str(tmp_path / "tiny")]) == 0
    line = capsys.readouterr().err
    assert line == "" if not said else f"tokenizer.ggml.pre is {said}; its text is split" in line


@pytest.mark.parametrize(("scores", "said"), [([-1000.0] * V, "scores are all -1000"), (None, "")])
def test_scores_that_are_all_the_same_are_said(scores, said, tmp_path, capsys):
    """Converters without the model of SentencePiece write them; they order no merges."""
    given = {"scores": scores} if scores else {}
    write_gguf(tmp_path / "tiny.gguf", pieces=PIECES, **given)
    assert read(tmp_path / "tiny.gguf").get_vocab_size() == V
    line = capsys.readouterr().err
    assert line == "" if not said else f"{KEY}{said}" in line


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"merges": None, "scores": [0.0] * V}, f"lacks {KEY}merges"),
        ({"merges": None}, f"lacks {KEY}merges"),
        ({"lacks": ["tokens"]}, f"lacks {KEY}tokens"),
        ({"pieces": PIECES, "scores": None}, f"lacks {KEY}scores"),
        ({"pieces": PIECES, "scores": [0.0] * (V - 1)}, f"{KEY}scores has 258 entries"),
        ({"lacks": ["a type"]}, f"{KEY}token_type has 258 entries"),
        ({"pieces": PIECES, "lacks": ["a type"]}, f"{KEY}token_type has 258 entries"),
        ({"words": {5: "on"}}, "'on' twice, as 5 and 258"),
        ({"pieces": PIECES | {5: "bc"}}, "'bc' twice, as 3 and 5"),
        ({"words": {5: "<x y>", 6: "<x y>"}, "kinds": {5: USER_DEFINED, 6: USER_DEFINED}},
         "'<x y>' twice, as 5 and 6"),
    ],
)  # fmt: skip
def test_a_tokenizer_that_is_not_whole_is_refused(change, named, tmp_path):
    """Transformers made merges up of scores, cut lists short, or took either of two tokens."""
    write_gguf(tmp_path / "m.gguf", **change)
    with one_line(ModelError, named):
        load_pretrained(str(tmp_path / "m.gguf"))


def test_names_may_be_empty_twice(tmp_path):
    write_gguf(tmp_path / "m.gguf", words={5: "", 6: ""})
    tokenizer = read(tmp_path / "m.gguf")
    assert tokenizer.get_vocab_size() == V
    assert tokenizer.encode("on").tokens == ["on"]


ROLES = ("bos", "eos", "unknown", "padding")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("number", [300, -1])
def test_special_tokens_that_are_not_there_are_refused(role, number, tmp_path):
    """-1 was the last token."""
    write_gguf(tmp_path / "m.gguf", settings={f"{KEY}{role}_token_id": number})
    with one_line(ModelError, f"token_id is {number}"):
        load_pretrained(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize("number", [300, -1])
def test_a_turn_may_end_with_a_token_that_is_not_there(number, tmp_path):
    write_gguf(tmp_path / "m.gguf", settings={f"{KEY}eot_token_id": number})
    assert load_pretrained(str(tmp_path / "m.gguf")).meta["stops"] == [END_OF_TEXT]


@pytest.mark.parametrize("role", ROLES)
def test_an_ordinary_token_is_not_taken_whole_because_it_has_a_role(role, tmp_path):
    """As id 0, the usual padding, is `!` in Llama 3: `!!` was two tokens."""
    write_gguf(tmp_path / "m.gguf", settings={f"{KEY}{role}_token_id": O_ID})
    assert read(tmp_path / "m.gguf").encode("on").tokens == ["on"]
    settings = {f"{KEY}{role}_token_id": 257}
    write_gguf(tmp_path / "m.gguf", words={257: "<a>"}, settings=settings)
    assert read(tmp_path / "m.gguf").encode("<a>", add_special_tokens=False).ids == [257]


@pytest.mark.parametrize("pieces", [{}, PIECES])
def test_a_token_that_llama_cpp_takes_for_a_control_token_is_one(pieces, tmp_path):
    """Whatever its file says: the token's text was cut into bytes."""
    pieces = pieces and {**pieces, 255: "<|im_end|>"}
    write_gguf(tmp_path / "m.gguf", words={255: "<|im_end|>"}, pieces=pieces, kinds={255: NORMAL})
    assert read(tmp_path / "m.gguf").encode("<|im_end|>", add_special_tokens=False).ids == [255]


def test_a_vocabulary_has_the_tokens_of_its_file_alone(tmp_path):
    """One without <|endoftext|>, as of Llama 3, was refused: transformers adds it behind them."""
    write_gguf(tmp_path / "m.gguf", words={256: "<|begin|>"})
    tokenizer = read(tmp_path / "m.gguf")
    assert tokenizer.get_vocab_size() == V
    assert tokenizer.token_to_id("<|begin|>") == 256
    assert tokenizer.token_to_id("<|endoftext|>") is None


def test_rows_that_a_converter_named_as_padding_are_no_tokens(tmp_path):
    """The last ones; a token in between has its id."""
    words = {number: f"[PAD{number}]" for number in (254, 257, 258)}
    kinds = dict.fromkeys(words, UNUSED)
    write_gguf(tmp_path / "m.gguf", words=words | {253: "on"}, kinds=kinds)
    loaded = load_pretrained(str(tmp_path / "m.gguf"))
    assert loaded.model.embedding.num_embeddings == V - 2
    assert Tokenizer.from_str(loaded.tokenizer_json).id_to_token(254) == "[PAD254]"


def test_the_end_of_a_turn_stops_a_text(tmp_path):
    settings = {f"{KEY}eot_token_id": 257, f"{KEY}eom_token_id": 300}
    write_gguf(tmp_path / "m.gguf", words={257: "<|eot_id|>"}, settings=settings)
    meta = load_pretrained(str(tmp_path / "m.gguf")).meta
    assert meta["end"] == END_OF_TEXT
    assert meta["stops"] == [END_OF_TEXT, "<|eot_id|>"]


@pytest.mark.parametrize(("pre", "pieces"), [("llama-bpe", ["run"]), ("gpt-2", ["r", "u", "n"])])
def test_a_word_that_is_a_token_is_merged_where_llama_cpp_merges_it(pre, pieces, tmp_path):
    write_gguf(tmp_path / "m.gguf", words={255: "run"}, pre=pre)
    assert read(tmp_path / "m.gguf").encode("run").tokens == pieces


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [("smollm", ["x", "ĠĠ", "1", "2"]), ("command-r", ["x", "ĠĠ", "1", "2"]),
     ("gpt-2", ["x", "Ġ", "Ġ12"])],
)  # fmt: skip
def test_digits_are_taken_out_first_where_llama_cpp_takes_them_out(pre, pieces, tmp_path):
    """A blank was left with the digit behind it, and two blanks were not merged."""
    words = {254: "ĠĠ", 255: "12", 258: "Ġ12"}
    merges = ["Ġ Ġ", "1 2", "Ġ 12"]
    write_gguf(tmp_path / "m.gguf", pre=pre, words=words, merges=merges)
    assert read(tmp_path / "m.gguf").encode("x  12").tokens == pieces


@pytest.mark.parametrize(
    ("token", "kind"),
    [("<｜User｜>", CONTROL), ("<a b>", CONTROL), ("<think x>", USER_DEFINED),
     ("  ", USER_DEFINED)],
)  # fmt: skip
def test_a_token_that_llama_cpp_takes_whole_is_whole(token, kind, tmp_path):
    """The token's text was cut into bytes, and two blanks took the id of "ĠĠ" beside them."""
    words = {254: "ĠĠ", 255: token, 258: "ĠĠĠ"}
    merges = ["Ġ Ġ", "ĠĠ Ġ"]
    write_gguf(tmp_path / "m.gguf", words=words, kinds={255: kind}, merges=merges)
    tokenizer = read(tmp_path / "m.gguf")
    a, b = tokenizer.encode("ab").ids
    assert tokenizer.encode(f"a{token}b").ids == [a, 255, b]
    assert tokenizer.decode([a, 255, b], skip_special_tokens=kind == USER_DEFINED) == f"a{token}b"
    assert tokenizer.get_vocab_size() == V
    assert tokenizer.id_to_token(254) == "ĠĠ"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", byte_tokenizer().to_str().replace('"o":', '"ooo":')),
        ("tokenizer_config.json", '{"tokenizer_class": "BertTokenizer"}'),
        ("tokenizer.model", "no model"),
    ],
    ids=["tokenizer", "configuration", "pieces"],
)
def test_a_tokenizer_beside_a_file_is_not_the_files_own(file, content, tmp_path):
    write_gguf(tmp_path / "m.gguf")
    own = read(tmp_path / "m.gguf")
    (tmp_path / file).write_text(content)
    assert read(tmp_path / "m.gguf").to_str() == own.to_str()


def test_a_file_is_read_rather_than_one_of_its_name_in_the_working_directory(tmp_path, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    write_gguf(tmp_path / "here" / "m.gguf")
    model = write_gguf(tmp_path / "there" / "m.gguf", words={255: "there"})
    monkeypatch.chdir(tmp_path / "here")
    found = load_pretrained("../there/m.gguf")
    tokens = torch.randint(V, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(found.model(tokens), model(tokens).logits)
    assert Tokenizer.from_str(found.tokenizer_json).token_to_id("there") == 255


@pytest.mark.parametrize(
    ("first", "text", "tokens"),
    [
        (None, "a b", ["▁a", "▁", "b"]),
        (True, " a", ["▁", "▁a"]),
        (False, " a", ["▁a"]),
        (False, "a", ["a"]),
    ],
)
def test_a_blank_stands_before_a_text_of_sentencepiece_as_the_file_says(
    first, text, tokens, tmp_path
):
    """As llama.cpp has it; before a text that begins with a blank transformers put none."""
    pieces = {0: "▁", 1: "a", 2: "▁a", 3: "b"}
    settings = {} if first is None else {f"{KEY}add_space_prefix": first}
    write_gguf(tmp_path / "m.gguf", pieces=pieces, settings=settings)
    tokenizer = read(tmp_path / "m.gguf")
    encoded = tokenizer.encode(text, add_special_tokens=False)
    assert encoded.tokens == tokens
    assert tokenizer.decode(encoded.ids) == text
