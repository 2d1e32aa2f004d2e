"""`python -m eval lens` as a user types it: documents, rows, resuming."""

import json
import math
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models

from eval import RequestError, lens, open_model, probe
from eval.__main__ import main
from eval.analysis.summary import summarise_rows
from eval.lenses.documents import read_documents
from eval.lenses.headlines import headlines
from eval.lenses.lens import LENSES, Lens
from eval.rows.store import ROWS, read_rows
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_decoder import their_model
from tests.eval.views.page.cases import about
from tests.eval.views.page.cases import lens as row_of_lens
from tests.said import one_line

FAST = ("--corpus", "toy:900", "--tokens", "400")


def look(*words: object) -> int:
    return main(["lens", *map(str, words)])


def counting(name, seen):
    """A lens that tells whom it looked at."""

    def measure(checkpoint, batch, request, table):
        seen.append(checkpoint.meta["name"])
        table.add("size", torch.tensor([1.5, torch.inf]), layer=[0, 1])
        table.add("size", 7.25, layer="all")
        table.add("share", torch.tensor([True, False, False, False]), part="a [b]", story=range(4))
        table.say("a table", ["[x]", "y"], [["[red]", ["2", " b"]]])

    return Lens(name, "counts", measure, name)


def test_documents_and_rows_hold_what_was_found(model_directory, tmp_path):
    models = [model_directory("flat", step=0), model_directory("flat", step=10)]
    out = tmp_path / "out"
    words = ("--lens", "residual", "logit", "--count", 2, "--length", 12, "--words", "a")
    assert look(*models, "--out", out, *words, *FAST) == 0
    documents = list(read_documents(out))
    asked = sorted((d["lens"], d["checkpoint"]["step"]) for d in documents)
    assert asked == [("logit", 0), ("logit", 10), ("residual", 0), ("residual", 10)]
    request = {"words": ["a"], "corpus": "toy:900", "tokens": 400, "seed": 0}
    for document in documents:
        assert [len(pieces) for pieces in document["pieces"].values()] == [12, 12]
        assert document["request"] == request
    rows = read_rows([out])
    assert len({row["key"] for row in rows}) == len(rows)
    for row in rows:
        assert (row["kind"], row["prompts"], row["length"]) == ("lens", 2, 12)
        assert isinstance(row["value"], float)
        assert [n for n, v in row.items() if isinstance(v, dict | list)] == ["checkpoint"]
    norms = [r for r in rows if r["figure"] == "norm" and r["checkpoint"]["step"] == 10]
    assert [row["layer"] for row in norms] == [0, 1, 2]
    assert {row["word"] for row in rows if row["figure"] == "probability at the end"} == {"a"}


def test_a_vocabulary_of_two_is_smaller_than_the_lists_of_words(small_model):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    model = open_model(small_model(vocab_size=2), tokenizer=tokenizer)
    seen = lens(model, lens=["logit", "vectors", "direction"], text="a", corpus="toy:900", tokens=8)
    assert {row["lens"] for row in seen.rows} == {"logit", "vectors", "direction"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_of_other_precisions_are_looked_at(dtype, small_model, small_tokenizer):
    model = open_model(small_model().to(dtype), tokenizer=small_tokenizer)
    seen = lens(model, lens="attribution", text="Tom had a red ball.", corpus="toy:900")
    assert {row["figure"] for row in seen.rows} == {"rank correlation"}
    sizes: dict[str, Any] = {"layers": 1, "length": 8, "train_tokens": 160, "valid_tokens": 80}
    probed = probe(model, corpus="toy:900", steps=2, offsets=0, **sizes)
    assert [row["method"] for row in probed.rows] == ["gaussian", "softmax"]


def test_lenses_of_parts_leave_out_a_model_of_whole_blocks():
    """They took the whole block for its token mixer."""
    model = open_model(their_model("qwen2"), tokenizer=byte_tokenizer())
    asked: dict[str, Any] = {"text": "Tom sat.", "corpus": "toy:300", "tokens": 400}
    for name in ("residual", "circuits"):
        with one_line(RequestError, "of a qwen2 model whole blocks are known"):
            lens(model, lens=name, **asked)
    seen = {row["lens"] for row in lens(model, **asked).rows}
    assert {"logit", "tuned", "attribution"} <= seen
    assert not seen & {"residual", "circuits", "features"}


def test_a_norm_that_is_not_known_costs_the_token_energy_alone(capsys):
    """The whole logit lens was refused."""
    model = open_model(their_model("cohere"), tokenizer=byte_tokenizer())
    seen = lens(model, lens="logit", text="Tom had a red ball.", corpus="toy:300")
    figures = {row["figure"] for row in seen.rows}
    assert "divergence" in figures
    assert "token energy" not in figures
    assert "token energy left out: " in capsys.readouterr().err


def test_a_text_given_twice_is_one_sample_and_one_token_has_no_rank(model_directory, tmp_path):
    out = tmp_path / "out"
    asked = ("--lens", "attribution", "residual", "--text", "A", "A", *FAST)
    assert look(model_directory(), "--out", out, *asked) == 0  # torch warned of one token
    rows = read_rows([out])
    assert {row["prompts"] for row in rows} == {1}
    assert {row["lens"] for row in rows} == {"residual"}


def test_texts_given_twice_are_paired_as_they_were_given(model_directory):
    model = open_model(model_directory(), "cpu")
    texts = ["1 2", "1 3", "1 3", "1 2"]
    (document,) = lens(model, lens="patching", text=texts, corpus="toy:900").documents
    lines = document["texts"][0]["lines"]
    assert [line[:2] for line in lines[:2]] == [["text 1 in text 0", "1 3"],
                                                ["text 0 in text 1", "1 2"]]  # fmt: skip
    assert len(document["prompts"]) == 2


def test_what_was_looked_at_is_not_looked_at_again(model_directory, tmp_path, monkeypatch, capsys):
    seen: list[str] = []
    monkeypatch.setitem(LENSES.entries, "counting", counting("counting", seen))
    out, asked = tmp_path / "out", ("--lens", "counting", "--text", "Tom sat.", *FAST)
    first, second = (model_directory(name) for name in ("first", "second"))
    assert look(first, "--out", out, *asked) == 0
    shown = capsys.readouterr().out
    parts = ["size", "all", "7.25", "a [b]", "0.25 (0–1)", "a table", "[red]", "2 ·b", "step 0"]
    assert [part for part in parts if part not in shown] == []
    assert look(first, second, "--out", out, *asked) == 0
    assert "first at 0   second at 0" in capsys.readouterr().out
    rows = read_rows([out])
    assert [row["value"] for row in rows] == [1.5, None, 7.25, 0.25] * 2
    assert rows[1]["reason"] == "value is inf"
    (out / ROWS).unlink()  # they are made of the documents again
    assert look(first, "--out", out, *asked) == 0
    assert read_rows([out]) == rows[:4]
    assert seen == ["first", "second"]
    capsys.readouterr()
    for seed, told in ((1, False), (0, True)):  # the page would show the look at the other seed
        assert look(first, "--out", out, *asked, "--seed", seed) == 0
        said = f"--out {out}: pages and summaries show a later look of counting"
        assert (said in capsys.readouterr().err) == told
    assert seen == ["first", "second", "first"]
    assert all("NaN" not in path.read_text() for path in (out / "lenses").glob("*.json"))


def test_seeds_that_looked_at_other_texts_are_told_apart(model_directory, tmp_path):
    """They were samples of one figure; those of one text are, wherever its corpus lies."""
    corpora = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for corpus in corpora:
        corpus.write_text("".join(f'{{"text": "Tom had {n} balls."}}\n' for n in range(9)))
    for texts, seeds in (["Tom sat."] * 2, [2]), (["Tom sat.", "Tom ran."], [1, 1]):
        out = tmp_path / texts[1]
        for seed, (text, corpus) in enumerate(zip(texts, corpora, strict=True)):
            asked = ("--lens", "residual", "--text", text, "--corpus", corpus, "--out", out)
            assert look(model_directory(f"flat-s{seed}", 10), *asked) == 0
        rows = read_rows([out])
        for row in rows:  # as if one recipe had made both
            known = row["checkpoint"]
            known |= {"model_id": "flat-0", "weights_sha256": known["name"]}
        norms = [r for r in summarise_rows(rows, "lens") if r["norm"] and r["layer"] == 0]
        assert [record["models"] for record in norms] == seeds
        figures = [line.figure.partition(", texts ")[0] for line in headlines(rows)]
        assert len(figures) == len(seeds) * len(set(figures))


def test_an_infinite_layer_makes_the_main_figure_infinite():
    """It was the mean of the other layers, and nothing said so; a NaN is no figure."""
    share: dict[str, Any] = {"figure": "update share", "part": "block"}
    first, second = (row_of_lens(about(0), 2.0 * layer, layer) | share for layer in (1, 2))
    missing = row_of_lens(about(0), None, 3) | share
    for reason, expected in (("value is nan", 3.0), ("value is -inf, low is nan", -math.inf)):
        (line,) = headlines([first, second, missing | {"reason": reason}])
        assert line.value == expected


def test_a_look_at_other_settings_or_another_text_is_refused(model_directory, tmp_path, capsys):
    """The look of before was shown as that of today."""
    out, corpus, path = tmp_path / "out", tmp_path / "book.jsonl", model_directory()
    words = ("--lens", "residual", "--text", "Tom sat.", "--corpus", corpus, "--out", out)
    told, config = f"error: --out {out}: its look of residual at {path} is of", path / "config.json"
    corpus.write_text("".join(f'{{"text": "Tom had {n} balls."}}\n' for n in range(9)))
    before = config.read_text()
    assert look(path, *words) == 0
    config.write_text(json.dumps(json.loads(before) | {"norm_eps": 0.1}))
    assert look(path, *words) == 2
    assert f"{told} other settings (config.json" in capsys.readouterr().err
    config.write_text(before)
    assert look(path, *words) == 0
    corpus.write_text(corpus.read_text().replace("balls", "dogs"))
    assert look(path, *words) == 2
    assert f"{told} another text of {corpus}; give another directory" in capsys.readouterr().err


def test_words_keep_their_blanks(model_directory, capsys):
    flags = ("--lens", "logit", "--text", "Tom ran", "--words", " a", *FAST)
    assert look(model_directory(), *flags) == 0
    assert "probability at the end, ·a " in capsys.readouterr().out
