"""Tokens from tensors that others captured: plain transformers is the oracle."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from eval import RequestError, activations, open_model, recover
from eval.__main__ import main
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_pretrained import OPT, random_model
from tests.eval.inversion.search_cases import SHORT
from tests.said import one_line


@pytest.fixture(params=["llama", "gpt2"])
def captured(request, directories, opened) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model and its captured states by layer."""
    path = directories[request.param]
    return opened[request.param], load_file(f"{path}/states.safetensors")


@pytest.mark.parametrize("layer", [1, 2])
def test_states_of_transformers_are_recovered(captured, layer):
    model, states = captured
    found = recover(model, states[str(layer)], layer=layer, corpus="toy:400")
    assert found.tokens.tolist() == states["tokens"].tolist()
    assert found.texts == SHORT
    assert str(found) == "\n".join(SHORT)
    assert found.certificates == [["residual"] * 12] * 2
    assert bool((found.residual <= 10 * found.floor).all())
    assert found.residual.shape == found.floor.shape == (2, 12)


@pytest.mark.first(1)
def test_a_hidden_token_is_searched_for(captured):
    model, states = captured
    outputs = states["2"][:1].clone()
    outputs[:, 7] = torch.nan
    shown = [t for t in range(12) if t != 7]
    found = recover(model, outputs, layer=2, shown=shown, corpus="toy:400")
    assert found.solver == "alternating"
    assert found.texts == SHORT[:1]
    assert found.residual.shape == (1, 11)


def test_what_another_text_gave_is_certified_nowhere(captured, nowhere_else):
    model, states = captured
    noise = torch.randn(12, 32, generator=torch.Generator().manual_seed(0))
    found = recover(model, states["1"][0] + 0.1 * noise, layer=1, corpus="toy:400")
    assert found.certificates == [[None] * 12]
    assert str(found).count("?") >= 24


def normed(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("family", "change", "seen"),
    [
        ("gpt2", lambda x: x - x.mean(dim=-1, keepdim=True), "center_writing_weights=False"),
        ("gpt2", normed, "LayerNorm without its weights"),
        ("llama", normed, "LayerNorm without its weights"),
        ("llama", lambda x: 9 * normed(x), "give them with their mean"),
        ("llama", lambda x: x / x.norm(dim=-1, keepdim=True), "every row has the length 1"),
    ],
)
@pytest.mark.parametrize("layer", [None, 1])
def test_streams_without_a_mean_or_a_length_are_named(
    directories, opened, family, change, seen, layer, capsys
):
    """TransformerLens's: each part writes without a mean over features, so that no token fits.

    It centres no weights of a model whose norms keep the mean, and what a norm gives has none.
    """
    states = load_file(f"{directories[family]}/states.safetensors")["1"][:1]
    try:
        found = recover(
            opened[family], change(states), layer=layer, computed="fp32", corpus="toy:400"
        )
    except RequestError as error:
        said = str(error)
    else:
        assert {grade for grades in found.grades for grade in grades} == {"unknown"}
        said = capsys.readouterr().err
    assert seen in said


@pytest.mark.slow
def test_streams_of_a_model_whose_blocks_end_in_norms_have_no_mean(capsys):
    theirs = random_model("OPT", torch.float32, OPT | {"do_layer_norm_before": False})
    checkpoint = open_model(theirs, tokenizer=byte_tokenizer())
    (batch,) = activations(checkpoint, SHORT, 2)
    outputs = batch.outputs["block.2"]
    assert bool((outputs.mean(dim=-1).abs() < 1e-4).all())
    found = recover(checkpoint, outputs.roll(5, dims=-1), layer=2, corpus="toy:400")
    assert not any(found.certificates[0])
    said = capsys.readouterr().err
    assert "nothing fits" in said
    assert "the mean over their features" not in said


def test_bfloat16_weights_prove_nothing(small_model, small_tokenizer, nowhere_else, capsys):
    module = small_model().to(torch.bfloat16)
    checkpoint = open_model(module, tokenizer=small_tokenizer)
    (batch,) = activations(checkpoint, ["Tom had a red ball."], 1)
    for _ in range(2):
        found = recover(checkpoint, batch.outputs["block.1"], layer=1, corpus="toy:400")
        assert set(found.certificates[0]) == {None}
        assert "weights in bfloat16" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "asked", "seen"),
    [
        (lambda x: x.long(), {}, "int64"),
        (lambda x: x[:0], {}, "(0, 12, 32)"),
        (lambda x: torch.cat([x, x, x], dim=1), {}, "36 positions"),
        (lambda x: x[..., :31], {}, "31 channels"),
        (lambda x: x, {"layer": 9}, "0 (the embedding) to 3"),
        (lambda x: x, {"shown": [1, 40]}, "40"),
        (lambda x: x, {"shown": "[3:]"}, "[3:]"),
        (lambda x: x, {"part": "head"}, "head"),
        (lambda x: x, {"solver": "magic"}, "adam"),
        (lambda x: x, {"solver": "alternating"}, "1 or more"),
        (lambda x: x, {"scale": 2.0}, "need none"),
        (lambda x: x, {"format": "fp8"}, "fp8"),
    ],
)
def test_what_cannot_be_recovered_is_one_line(captured, change, asked, seen):
    model, states = captured
    with one_line(RequestError, seen):
        recover(model, change(states["1"]), **{"layer": 1, "corpus": "toy:400", **asked})


def test_activations_are_those_of_transformers(captured):
    """Texts of two lengths, in batches of one and of all."""
    model, states = captured
    tokenizer: Tokenizer = model.tokenizer
    texts = [*SHORT, SHORT[0][:5]]
    sites = ["block.1", "block.2", "mixer.2", "block.1+2"]
    for size in (1, 3):
        batches = list(activations(model, iter(texts), sites, batch_size=size))
        assert [len(batch.tokens) for batch in batches] == [size] * (3 // size)
        rows = [
            {name: output[row, : batch.lengths[row]] for name, output in batch.outputs.items()}
            for batch in batches
            for row in range(len(batch.tokens))
        ]
        tokens = [batch.tokens[row, : batch.lengths[row]].tolist()
                  for batch in batches for row in range(len(batch.tokens))]  # fmt: skip
        assert tokens == [tokenizer.encode(text).ids for text in texts]
        for row, text in zip(rows, (0, 1, 0), strict=True):
            length = len(row["block.1"])
            for layer in (1, 2):
                theirs = states[str(layer)][text, :length]
                torch.testing.assert_close(row[f"block.{layer}"], theirs, rtol=1e-4, atol=1e-5)
            joined = torch.cat([row["block.1"], row["block.2"]], dim=-1)
            torch.testing.assert_close(row["block.1+2"], joined)
            assert row["mixer.2"].shape == (length, 32)
    last = batches[0].outputs["block.1"][2]
    assert not last[5:].any()


@pytest.fixture
def asked(directories, opened_once, tmp_path, capsys):
    """Runs the command on tensors; its exit code, its rows, and what it said on stderr."""
    path = directories["llama"]

    def ask(tensors: dict[str, torch.Tensor], *words: str) -> tuple[int, Any, str]:
        save_file(
            {n: t.clone().contiguous() for n, t in tensors.items()}, tmp_path / "c.safetensors"
        )
        command = ["recover", str(tmp_path / "c.safetensors"), "--model", f"hf:{path}"]
        code = main([*command, "--corpus", "toy:400", "--format", "json", *words])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else None, said.err.strip()

    return ask, load_file(f"{path}/states.safetensors")


def test_a_file_gives_the_texts_with_their_certificates(asked, tmp_path):
    ask, states = asked
    scale = states["1"].abs().amax(dim=(0, 1)) / 127
    tensors = {
        "states": states["2"].bfloat16(),  # its site is found
        "block.1": (states["1"] / scale).round().to(torch.int8),
        "block.1.scale": scale,
    }
    page = tmp_path / "page.html"
    code, rows, _ = ask(tensors, "--truth", *SHORT, "--page", str(page))
    assert code == 0
    drawn = page.read_text()
    assert drawn.count('title="position ') == 48  # two tensors of two prompts of 12 tokens
    assert drawn.count("certain (residual)") == 2 * sum(
        proof is not None for row in rows for proof in row["certificates"]
    )
    assert [row["tensor"] for row in rows] == ["block.1"] * 2 + ["states"] * 2
    assert [row["site"] for row in rows] == ["block.1"] * 2 + ["block.2"] * 2
    assert [row["format"] for row in rows] == ["int8"] * 2 + ["bf16"] * 2
    for row in rows[2:]:
        assert row["text"] in SHORT
        assert row["right"] == 12
    for row in rows:
        assert row["right"] + row["named"] == 12
        assert row["false_certain"] == 0
        assert max(row["residual_over_floor"].values()) < 3


def test_a_tensor_of_several_that_is_refused_is_said_and_left_out(asked):
    ask, states = asked
    x = states["1"][:1]
    held = {"a": states["1"].mean(dim=1), "block.1": x, "block.9": x}
    code, rows, said = ask(held, "--truth", SHORT[0])
    assert code == 0
    assert {row["tensor"] for row in rows} == {"block.1"}
    assert all(row["right"] == 12 for row in rows)
    left_out = [line for line in said.splitlines() if line.startswith("left out: ")]
    assert [line.split(": ")[1] for line in left_out] == ["a", "block.9"]
    for words in (["--tensor", "a", "block.1"], ["--first", "99999"]):  # by name, or all of them
        code, rows, said = ask(held, *words)
        assert (code, rows) == (2, None)
        assert said.splitlines()[-1].startswith("error: a: ")
        assert said.endswith("--tensor takes others alone")
        assert "left out" not in said


def test_a_tensor_of_several_that_cannot_be_read_is_said_and_left_out(
    directories, opened_once, tmp_path, capsys
):
    """It ended the command before the others were recovered."""
    path, file = directories["llama"], tmp_path / "c.npz"
    good = load_file(f"{path}/states.safetensors")["1"].numpy()
    held = {"block.2": np.zeros(good.shape, "f4,i4"), "block.3": good[:, :0]}
    np.savez(file, **{"block.1": good, **held})
    command = ["recover", str(file), "--model", f"hf:{path}", "--corpus", "toy:400"]
    assert main([*command, "--format", "json"]) == 0
    said = capsys.readouterr()
    assert [row["tensor"] for row in json.loads(said.out)] == ["block.1"] * 2
    for name in held:
        assert f"left out: {name}: " in said.err
        assert main([*command, "--tensor", name]) == 2
        assert f"error: {name}: " in capsys.readouterr().err


def test_a_layer_or_part_takes_the_tensors_of_that_name(asked):
    """Each was asked as if it were of that layer, whatever its name said."""
    ask, states = asked
    held = {"block.1": states["1"][:1], "block.2": states["2"][:1], "value.2": states["1"][:1]}
    code, rows, _ = ask(held, "--layer", "1")
    assert (code, {row["tensor"] for row in rows}) == (0, {"block.1"})
    code, rows, _ = ask(held, "--layer", "2", "--part", "block")
    assert (code, {row["tensor"] for row in rows}) == (0, {"block.2"})
    code, rows, _ = ask(held, "--layer", "2", "1")  # joined in their order
    assert (code, {row["tensor"] for row in rows}) == (0, {"block.1+block.2"})
    assert all(set(row["grades"]) == {"certain"} for row in rows)


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["hidden_states.{}", "model.layers.{}.out"])
def test_a_layer_is_not_told_by_numbers_of_other_names(asked, name):
    """All of them were inverted as if each were of that layer."""
    ask, states = asked
    held = {name.format(layer): states[layer][:1] for layer in "12"}
    code, rows, said = ask(held, "--layer", "2")
    assert (code, rows, "--tensor NAME" in said) == (2, None, True)
    code, rows, _ = ask(held, "--layer", "2", "--tensor", name.format(2))
    assert (code, {row["tensor"] for row in rows}) == (0, {name.format(2)})


def test_only_some_positions_are_known(asked):
    ask, states = asked
    outputs = states["1"][:1].clone()
    outputs[:, 3] = torch.nan
    known = [str(t) for t in range(8) if t != 3]
    code, rows, _ = ask({"block.1": outputs}, "--positions", *known)
    assert code == 0
    assert [row["text"] for row in rows] == [SHORT[0][:8]]
    assert rows[0]["solver"] == "alternating"


@pytest.mark.parametrize(
    ("change", "words", "seen"),
    [
        (lambda x: x.mT, [], "transposed"),
        (lambda x: x.clone().fill_(torch.nan), [], "not finite"),
        (lambda x: x.where(x > 0, -torch.inf), [], "tokens that a sampler left out"),
        (lambda x: x.to(torch.int8), [], "without a scale"),
        (lambda x: x.to(torch.int32), [], "int32"),
        (lambda x: x, ["--positions", "3", "99"], "block.1: --positions"),
        (lambda x: x, ["--stored", "int8"], "block.1: --stored"),
        (lambda x: x, ["--layer", "99"], "block.1: --layer 99"),
        (lambda x: x, ["--first", "999999999999"], "block.1: --first 999999999999"),
        (lambda x: x, ["--tensor", "other"], "block.1"),
        (lambda x: x, ["--truth", "one"], "one for each"),
        (lambda x: x[0, 0], [], "(T, width)"),
    ],
)
def test_what_cannot_be_read_is_one_line(asked, change, words, seen):
    ask, states = asked
    code, rows, said = ask({"block.1": change(states["1"])}, *words)
    assert (code, rows) == (2, None)
    last = said.splitlines()[-1]
    assert last.startswith("error: ")
    assert seen in last


def rows_of_second(count: int) -> torch.Tensor:
    """The first rows of the second of two prompts."""
    return torch.tensor([0, count])[:, None, None] > torch.arange(12)[:, None]


@pytest.mark.parametrize(
    ("change", "given", "seen"),
    [
        (lambda x: x, {"shown": [True] * 12}, "shown [True"),  # positions 1, 1, ...
        (lambda x: x, {"shown": torch.ones(12).bool()}, "whole numbers"),
        (lambda x: x, {"shown": [0.5]}, "shown [0.5]"),
        (lambda x: x, {"layer": "1"}, "layer '1'"),
        (lambda x: x, {"layer": True}, "layer True"),
        (lambda x: x, {"layer": []}, "layer []"),
        (lambda x: torch.cat([x, x], -1), {"layer": [1, 1]}, "each once"),
        (lambda x: torch.cat([x, x], -1), {"layer": [2, 1]}, "in order"),
        (lambda x: x, {"first": 1.0}, "first 1.0"),
        (lambda x: x.masked_fill(rows_of_second(2), torch.nan), {}, "0, 1 of prompt 1"),
        (lambda x: x.masked_fill(rows_of_second(2), torch.nan), {}, "attention_mask"),
        (lambda x: x.masked_fill(rows_of_second(12), torch.nan), {}, "(--positions)"),
        (lambda x: x.masked_fill(rows_of_second(1), torch.inf), {}, "(--positions)"),  # overflow
        (lambda x: x * 1e20, {}, "beyond 1e+16"),  # squares overflow: every token fits infinity
        (lambda x: x * 1e30, {"layer": None}, "beyond 1e+16"),
    ],
)
def test_what_an_argument_cannot_be_is_one_line(directories, opened, change, given, seen):
    states = load_file(f"{directories['llama']}/states.safetensors")
    with one_line(RequestError, seen):
        recover(opened["llama"], change(states["1"]), **{"layer": 1, "corpus": "toy:400"} | given)


def test_numbers_of_other_libraries_are_whole_ones(directories, opened):
    states = load_file(f"{directories['llama']}/states.safetensors")["1"]
    given = {"layer": np.int64(1), "shown": torch.arange(12), "first": np.int32(0)}
    assert recover(opened["llama"], states, corpus="toy:400", **given).texts == list(SHORT)


def under_autocast(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The states of layer 2, which autocast keeps in float32."""
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        return model.model.hidden(model.model.embed(tokens), 2)


def with_noise(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    states = model.model.hidden(model.model.embed(tokens), 2).detach()
    noise = torch.randn(states.shape, generator=torch.Generator().manual_seed(0))
    return states + 0.03 * states.square().mean(dim=-1, keepdim=True).sqrt() * noise


LIKELY = {
    "another layer": (1, lambda model, tokens: model.model.hidden(model.model.embed(tokens), 2),
                      "block.2: 6 of the first 6 tokens fit there; give --layer 2 --part block"),
    "autocast": (2, under_autocast, "as computed in bf16; give --computed bf16"),
    "noise": (2, with_noise, "noise, a coarse format, or other weights"),
}  # fmt: skip


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", LIKELY)
def test_why_no_token_is_certain_is_said(kind, tmp_path, capsys):
    """What another layer or precision gave was taken for noise."""
    golden = Path(__file__).parents[2] / "golden"
    path, file = golden / "models" / "llama" / "step-000400", tmp_path / "c.safetensors"
    layer, capture, seen = LIKELY[kind]
    model = open_model(path)
    tokens = torch.tensor([model.tokenizer.encode("The dog was sad and ran home.").ids])
    save_file({"x": capture(model, tokens).detach().contiguous()}, file)
    words = ["--model", str(path), "--corpus", str(golden / "stories"), "--layer", str(layer)]
    assert main(["recover", str(file), *words]) == 0
    said = capsys.readouterr()
    assert seen in said.out + said.err
    assert " 0 of " in said.out
    assert ", 0 likely" not in said.out
    assert ("noise" in said.out) == (kind == "noise")


@pytest.mark.parametrize("first", [3, 4])
def test_a_search_for_several_hidden_tokens_is_announced(directories, opened, first, capsys):
    """Eight of them took minutes of a small model without a word."""
    states = load_file(f"{directories['llama']}/states.safetensors")["1"][:1, first:6]
    asked = {"layer": 1, "first": first, "settings": {"starts": 1, "rounds": 1}}
    recover(opened["llama"], states, corpus="toy:400", **asked)
    assert ("4 tokens are hidden" in capsys.readouterr().err) == (first == 4)
