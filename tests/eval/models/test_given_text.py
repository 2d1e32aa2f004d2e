"""Text that somebody gives: a story that spells a special token, a text that is no Unicode."""

import json

import numpy as np
import pytest

import eval as evals
import eval.__main__ as evaluation
from eval import RequestError
from eval.measures.loss import measure_loss
from eval.models.checkpoint import open_checkpoint
from eval.models.pieces import encode_text
from eval.models.text import HeldOutText, text_prompts
from tests.said import one_line
from tokenizer import load_tokenizer, pack
from tokenizer.pack import Layout

SPELT = [f"Tom {number} wrote <|pad|> and <|endoftext|> on it." for number in range(60)]


@pytest.fixture
def model(model_directory):
    return model_directory()


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "spelt.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in SPELT))
    return str(path)


@pytest.mark.parametrize("layout", [None, Layout("rows", 24), Layout("rows", 200, "left")])
def test_a_packed_story_is_read_by_the_ids_that_were_packed(model, corpus, tmp_path, layout):
    data = pack(corpus, model / "tokenizer.json", tmp_path / "data", layout, valid_fraction=0.3)
    checkpoint, counts = open_checkpoint(model), data.meta["splits"]["valid"]
    loss = measure_loss(checkpoint, str(data.path))
    assert loss["tokens"] == counts["tokens"] - 1
    assert (loss["bytes"], loss["stories"]) == (counts["bytes"], counts["stories"])
    text = HeldOutText(str(data.path), checkpoint.tokenizer)
    ids = np.concatenate(text.encode(list(text.held_out())))
    packed = data.tokens("valid").ravel()
    np.testing.assert_array_equal(
        ids, packed[packed != checkpoint.tokenizer.token_to_id("<|pad|>")]
    )


def test_a_story_that_spells_a_special_token_is_read_as_packing_reads_it(model, corpus, tmp_path):
    data = pack(corpus, model / "tokenizer.json", tmp_path / "data")
    checkpoint = open_checkpoint(model)
    whole, packed = (measure_loss(checkpoint, source) for source in (corpus, str(data.path)))
    assert whole["nats_per_token"] == packed["nats_per_token"]
    assert whole["tokens"] == packed["tokens"]


def test_a_text_that_spells_a_special_token_has_it_in_every_command(model):
    checkpoint = open_checkpoint(model)
    text, tokenizer = "Tom <|endoftext|> ran", checkpoint.tokenizer
    ids = encode_text(tokenizer, text)
    assert tokenizer.token_to_id("<|endoftext|>") in ids
    assert list(text_prompts([text], checkpoint)[0].tokens) == ids
    loss = measure_loss(checkpoint, "", texts=[text])
    assert loss["tokens"] == len(ids)  # and the end, without the first
    assert loss["bytes"] == len("Tom  ran")


def test_a_text_that_is_the_name_of_a_file_is_said_to_be_read_as_it_stands(
    model, corpus, tmp_path, capsys
):
    tokenizer = open_checkpoint(model).tokenizer
    (tmp_path / "my book.txt").touch()
    encode_text(tokenizer, str(tmp_path / "my book.txt"))
    assert f"'{tmp_path / 'my book.txt'}'" in capsys.readouterr().err  # as a shell reads it
    for text, said in ((corpus, True), (f"{corpus} ran.", False), ("x" * 9999, False)):
        assert encode_text(tokenizer, text, "--prompt") == tokenizer.encode(text).ids
        assert (f"--prompt {corpus}: " in capsys.readouterr().err) == said


@pytest.mark.parametrize("text", ["", "<|endoftext|>"])
def test_a_text_without_letters_has_no_loss(model, text):
    with one_line(RequestError, "there is no letter in it"):
        measure_loss(open_checkpoint(model), "", texts=["Tom ran.", text])


@pytest.mark.first(1)
@pytest.mark.parametrize("text", ["caf\udce9 noir", "\ud83d", "Tom \udc00"])
def test_a_lone_surrogate_is_refused_in_one_line(model, text, capsys):
    place = next(i for i, letter in enumerate(text) if "\ud800" <= letter <= "\udfff")
    for words in (
        ["loss", str(model), "--text", text],
        ["invert", str(model), "--text", text, "--solvers", "sweep"],
        ["lens", str(model), "--lens", "logit", "--text", text],
        ["generate", str(model), "--prompt", text],
        ["bits", str(model), "--text", text],
    ):
        assert evaluation.main(words) == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"a lone surrogate at {place}" in said
        said.encode("ascii")
    for call in (evals.loss, evals.invert):
        with one_line(RequestError, f"a lone surrogate at {place}"):
            call(str(model), text=text)


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(model, monkeypatch):
    checkpoint = open_checkpoint(model)
    monkeypatch.setattr("eval.models.text.encode_text", None)
    with one_line(RequestError, "5,000,000 characters"):
        text_prompts(["word " * 1_000_000], checkpoint)


def test_the_tokenizer_of_a_model_reads_texts_as_before_after_a_corpus(model, corpus):
    checkpoint = open_checkpoint(model)
    HeldOutText(corpus, checkpoint.tokenizer).windows("background", 1, 8, least=1)
    assert encode_text(checkpoint.tokenizer, "<|pad|>") == [
        load_tokenizer(model).token_to_id("<|pad|>")
    ]
