"""Stacks of layers are told from prompts, and what misses a layer is found elsewhere."""

import json
import math
from functools import cache

import pytest
import torch
from safetensors.torch import save_file

from eval import RequestError, activations, open_model, recover
from eval.__main__ import main
from eval.captured.files.axes import find_order, take_layer
from eval.captured.files.stored import read_stored
from eval.captured.files.tensors import Raw
from eval.messages import say_once
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_decoder import their_model
from tests.said import one_line

pytest.importorskip("transformers")

TEXT = "Tom had a"
TEXTS = TEXT, "The hen.."


def tokens_of(*texts):
    return torch.tensor([byte_tokenizer().encode(text).ids for text in texts])


@pytest.fixture(autouse=True)
def unsaid():
    """A line that another test was told is said again."""
    say_once.cache_clear()


@cache
def open_theirs(name):
    """A model of transformers, and its outputs `(layers, B, T, D)` for two prompts."""
    module = their_model(name)
    states = module(tokens_of(*TEXTS), output_hidden_states=True).hidden_states
    return open_model(module, tokenizer=byte_tokenizer()), torch.stack(states)


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def theirs(request):
    return open_theirs(request.param)


@pytest.fixture(scope="module")
def llama():
    return open_theirs("llama")


ARRANGED = {
    "(layers, T, D)": lambda states: states[:, 0],
    "(T, layers, D)": lambda states: states[:, 0].transpose(0, 1),
    "(layers, 1, T, D)": lambda states: states[:, :1],
    "(layers, B, T, D)": lambda states: states,
    "(B, layers, T, D)": lambda states: states.transpose(0, 1),
    "(B, T, layers, D)": lambda states: states.permute(1, 2, 0, 3),
    "(layers without the embedding, T, D)": lambda states: states[1:, 0],
    "(every other layer, T, D)": lambda states: states[::2, 0],
}


@pytest.mark.parametrize("order", ARRANGED)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_of_a_stack_of_layers_the_one_asked_for_is_taken(theirs, order, kind, capsys):
    checkpoint, states = theirs
    taken = take_layer(checkpoint.model, Raw(ARRANGED[order](states).to(kind)), 2, None).outputs
    expected = states[2] if "B" in order else states[2, 0]
    assert torch.equal(taken.reshape(expected.shape), expected.to(kind))
    assert "layers" in capsys.readouterr().err


@pytest.mark.parametrize("order", ARRANGED)
@pytest.mark.parametrize("units", ["number", "channel", "token", "group"])
def test_of_a_stack_of_codes_the_one_asked_for_is_taken(theirs, order, units, capsys):
    checkpoint, states = theirs
    if units == "group":
        codes, scale = codes_of(states, 127, 4)
        arranged = [ARRANGED[order](x) for x in (codes, scale)]
    else:
        axes = {"number": (0, 1, 2, 3), "channel": (0, 1, 2), "token": (3,)}[units]
        scale = states.abs().amax(axes, keepdim=True) / 127
        codes = (states / scale).round().to(torch.int8)
        scale = ARRANGED[order](scale.expand(states.shape)) if units == "token" else scale.flatten()
        arranged = [ARRANGED[order](codes), scale]
    raw = take_layer(checkpoint.model, Raw(*arranged), 2, None)
    stored = read_stored(raw.outputs, scale=raw.scale)
    expected = states[2] if "B" in order else states[2, :1]
    assert torch.allclose(stored.values, expected, atol=float(stored.step.max()))
    assert "layers" in capsys.readouterr().err


@pytest.mark.first(4)
@pytest.mark.parametrize("order", ["(layers, B, T, D)", "(B, layers, T, D)", "(B, T, layers, D)"])
@pytest.mark.parametrize("form", ["float", "int8"])
def test_a_mask_is_of_prompts_also_where_a_stack_has_as_many_layers(
    llama, order, form, tmp_path, monkeypatch, capsys
):
    checkpoint, states = llama
    monkeypatch.setattr("eval.models.checkpoint.open_model", lambda *_: checkpoint)
    held = {"x": ARRANGED[order](states[: len(TEXTS)]).contiguous()}
    if form == "int8":
        held["x"], held["x.scale"] = map(torch.Tensor.contiguous, codes_of(held["x"], 127, 4))
    mask = torch.ones(len(TEXTS), len(TEXT), dtype=torch.long)
    mask[1, 9:] = 0
    save_file(held | {"attention_mask": mask}, tmp_path / "c.safetensors")
    words = ["recover", str(tmp_path / "c.safetensors"), "--model", "theirs", "--layer", "1"]
    assert main([*words, "--corpus", "toy:400", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["text"] for row in rows] == [TEXTS[0], TEXTS[1][:9]]


def test_a_stack_gives_the_texts_of_its_layer(llama):
    checkpoint, states = llama
    found = recover(checkpoint, states.transpose(0, 1), layer=2, corpus="toy:400")
    assert found.texts == list(TEXTS)
    assert all(all(proofs) for proofs in found.certificates)


@pytest.mark.parametrize("order", ARRANGED)
@pytest.mark.parametrize("asked", [{}, {"layer": 2, "part": "mixer"}, {"layer": 17}])
def test_a_stack_is_refused_where_it_is_not_said_which_layer(theirs, order, asked):
    checkpoint, states = theirs
    with one_line(RequestError, "layers"):
        recover(checkpoint, ARRANGED[order](states), corpus="toy:400", **asked)


def test_the_final_norm_of_a_stack_is_a_part(llama):
    checkpoint, states = llama
    found = recover(checkpoint, states[:, 0], part="final", corpus="toy:400")
    assert (found.site, found.texts) == ("final.3", [TEXT])


def test_what_may_be_no_prompts_is_said(llama, capsys):
    checkpoint, states = llama
    recover(checkpoint, states[2], layer=2, corpus="toy:400")
    assert "first axis" not in capsys.readouterr().err
    pair = torch.stack([states[2, 0], -states[2, 0]])
    found = recover(checkpoint, pair, layer=2, corpus="toy:400")
    assert found.texts[0] == TEXT
    assert "in prompt 1 (of 2, " in capsys.readouterr().err


@pytest.mark.first(3)
@pytest.mark.parametrize("part", ["rotated_key", "value"])
@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda x: x.transpose(1, 2), "(B, T, heads, width)"),
        (lambda x: x[0], "(heads, T, width)"),
        (lambda x: x[0].transpose(0, 1), "(T, heads, width)"),
    ],
)
def test_a_cache_of_other_axes_is_told_by_the_width(llama, part, change, seen, capsys):
    checkpoint, _ = llama
    cache = their_model("llama")(tokens_of(*TEXTS)).past_key_values.layers[1]
    held = change(cache.keys if part == "rotated_key" else cache.values)
    found = recover(checkpoint, held, layer=2, part=part, corpus="toy:400")
    assert found.texts == list(TEXTS[: len(found.texts)])
    assert all(all(proofs) for proofs in found.certificates)
    assert f"read as {seen}" in capsys.readouterr().err


@pytest.mark.first(1)
@pytest.mark.parametrize("words", [["--layer", "2", "--part", "value"], ["--part", "value"]])
@pytest.mark.parametrize("form", ["float", "int8"])
def test_a_mask_is_of_tokens_also_before_an_axis_of_heads(
    llama, words, form, tmp_path, monkeypatch, capsys
):
    """It was refused, as not of the tensor's third axis."""
    checkpoint, _ = llama
    monkeypatch.setattr("eval.models.checkpoint.open_model", lambda *_: checkpoint)
    cache = their_model("llama")(tokens_of(*TEXTS)).past_key_values.layers[1]
    x = cache.values.transpose(1, 2).contiguous()
    held = {"x": x}
    if form == "int8":
        scale = x.abs().amax(-1, keepdim=True) / 127
        held = {"x": (x / scale).round().to(torch.int8), "x.scale": scale}
    mask = torch.ones(len(TEXTS), len(TEXT), dtype=torch.long)
    mask[1, 6:] = 0
    save_file(held | {"attention_mask": mask}, tmp_path / "c.safetensors")
    command = ["recover", str(tmp_path / "c.safetensors"), "--model", "theirs", *words]
    assert main([*command, "--corpus", "toy:400", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["site"], row["text"]) for row in rows] == [
        ("value.2", TEXTS[0]),
        ("value.2", TEXTS[1][:6]),
    ]


def test_a_cache_of_as_many_positions_as_heads_is_said_or_refused(llama, capsys):
    checkpoint, _ = llama
    keys = their_model("llama")(tokens_of(*TEXTS)).past_key_values.layers[1].keys
    with one_line(RequestError, "(heads, T, width) or (T, heads, width)"):
        recover(checkpoint, keys[0, :, : keys.shape[1]], layer=2, part="rotated_key")
    for length, is_said in (9, False), (keys.shape[1], True):
        assert find_order(checkpoint.model, keys[:, :, :length].shape, 2, "rotated_key") is None
        assert ("read as (B, heads, T, width)" in capsys.readouterr().err) == is_said


@pytest.mark.parametrize("mixer", ["flat", "attention", "identity"])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_prompts_are_not_taken_for_layers(mixer, layer, small_model, small_tokenizer, capsys):
    checkpoint = open_model(small_model(mixers=(mixer,)), tokenizer=small_tokenizer)
    texts = ["Tom had a red ball.", "Tom had a red ball."]
    (batch,) = activations(checkpoint, texts, layer)
    outputs = batch.outputs[f"block.{layer}"][:, :3]
    assert take_layer(checkpoint.model, Raw(outputs), layer, None).outputs is outputs
    assert "layers" not in capsys.readouterr().err


@pytest.mark.parametrize("padding", [0.0, math.nan])
def test_empty_rows_of_a_prompt_are_no_layer(padding):
    """A final norm that makes streams smaller is nearer to nothing than to the stream."""
    module = their_model("llama").requires_grad_(False)
    module.model.norm.weight *= 0.1
    outputs = module(tokens_of(*TEXTS), output_hidden_states=True).hidden_states[2]
    outputs[1, 3:] = padding
    checkpoint = open_model(module, tokenizer=byte_tokenizer())
    assert take_layer(checkpoint.model, Raw(outputs), 2, None).outputs is outputs


@pytest.mark.first(1)
@pytest.mark.parametrize("layer", [1, 0])
def test_a_layer_that_misses_is_named_with_the_one_that_fits(llama, layer, capsys):
    checkpoint, states = llama
    found = recover(checkpoint, states[2, 0], layer=layer, corpus="toy:400")
    assert not any(found.certificates[0])
    said = capsys.readouterr().err
    assert "block.2" in said
    assert "computed in" not in said  # float32 is tried first


@pytest.mark.first(1)
@pytest.mark.parametrize("count", [17, 3])
def test_rows_of_padding_before_a_prompt_are_named(llama, count, capsys):
    checkpoint, states = llama
    padding = torch.randn(count, states.shape[-1], generator=torch.Generator().manual_seed(0))
    padded = torch.cat([padding, states[2, 0]])[:20]
    found = recover(checkpoint, padded, layer=2, computed="fp32", corpus="toy:400")
    assert not any(found.certificates[0])
    assert f"from row {count} on " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pad", "said"),
    [(257, "positions 0 to 3 hold zeros only"), (65, "its first 4 rows are of one")],
)
def test_padding_before_one_prompt_of_several_is_named(pad, said, llama, capsys):
    """The rows of the pad token fit; those of the prompt, which does not see them, do not.

    Where they are zeros, as of an embedding that is 0, they fit no token.
    """
    checkpoint, _ = llama
    first, second = tokens_of(*TEXTS).tolist()
    tokens = torch.tensor([first, [pad] * 4 + second[:-4]])
    T = len(first)
    mask = torch.full((2, 1, T, T), -math.inf).triu(1)
    mask[1, :, 4:, :4] = -math.inf
    positions = torch.stack([torch.arange(T), torch.arange(-4, T - 4).clamp(min=0)])
    asked = {"attention_mask": mask, "position_ids": positions, "output_hidden_states": True}
    outputs = their_model("llama")(tokens, **asked).hidden_states[2]
    found = recover(checkpoint, outputs, layer=2, corpus="toy:400")
    assert found.texts[0] == TEXTS[0]
    assert f"prompt 1: {said}" in capsys.readouterr().err
    for rows, named in ((3, True), (2, False)):  # of fewer, the first may have been changed
        recover(checkpoint, outputs[:, : 4 + rows], layer=2, corpus="toy:400")
        assert pad != 65 or (said in capsys.readouterr().err) == named
    assert pad == 65 or set(found.grades[1]) == {"unknown"}
    alone = recover(checkpoint, outputs[1:, 4:], layer=2, corpus="toy:400")
    assert alone.texts == [TEXTS[1][:-4]]
    assert "of one token" not in capsys.readouterr().err


def test_a_prompt_behind_another_one_is_named(capsys):
    """As where flash attention takes several prompts as one row, with positions of their own."""
    module, text = their_model("gpt2"), "Tom had"
    tokens, (first,) = tokens_of(text + TEXTS[1]), tokens_of(text).tolist()
    T, behind = tokens.shape[1], len(first)
    mask = torch.full((T, T), -math.inf).triu(1)
    mask[behind:, :behind] = -math.inf
    positions = torch.tensor([[*range(behind), *range(T - behind)]])
    packing = {"attention_mask": mask[None, None], "position_ids": positions}
    states = module(tokens, output_hidden_states=True, **packing).hidden_states
    model, _ = open_theirs("gpt2")
    found = recover(model, states[2], layer=2, computed="fp32", corpus="toy:400")
    assert (found.tokens[0, :behind].tolist(), found.left_out[0][0]) == (first, behind)
    assert f"from row {behind} on 6 of 6 tokens fit as another" in capsys.readouterr().err
    for rows, named in ((3, True), (2, False)):  # fewer may fit by chance
        part = states[2][:, : behind + rows]
        recover(model, part, layer=2, computed="fp32", corpus="toy:400")
        said = f"from row {behind} on {rows} of {rows} tokens fit as another"
        assert (said in capsys.readouterr().err) == named


@pytest.mark.first(1)
@pytest.mark.parametrize("layer", [1, None])
def test_outputs_whose_first_axis_is_of_positions_are_named(layer, theirs, capsys):
    """As Megatron and fairseq have them: tokens of a row were likely as those of a prompt."""
    model, states = theirs
    recover(model, states[1].transpose(0, 1), layer=layer, corpus="toy:400")
    said = capsys.readouterr().err
    assert "of one prompt: are the outputs (T, B, width)? give (B, T, width)" in said
    recover(model, states[1], layer=layer, corpus="toy:400")
    assert "(T, B, width)" not in capsys.readouterr().err


REPEATED = torch.tensor([*range(10), *range(6, 14)])
MISSES = {
    "chunks that overlap": ("block", lambda x, _: x[0][:, REPEATED], "row 10 repeats row 6, and"),
    "keys that are turned": ("key", lambda _, held: held.keys, "give --layer 2 --part rotated_key"),
}  # fmt: skip


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", MISSES)
def test_why_rows_behind_those_that_fit_do_not_is_said(kind, llama, capsys):
    part, change, said = MISSES[kind]
    module, tokens = their_model("llama"), tokens_of("Zinc melts at 4")
    output = module(tokens, output_hidden_states=True, use_cache=True)
    outputs = change(output.hidden_states[2:], output.past_key_values.layers[1])
    model, _ = llama
    found = recover(model, outputs, layer=2, part=part, computed="fp32", corpus="toy:400")
    assert found.grades[0][0] == "certain"
    assert said in capsys.readouterr().err


def test_keys_whose_positions_counted_padding_are_named(llama, tmp_path, monkeypatch, capsys):
    """As where a mask alone is given to a model: its positions count the rows before."""
    checkpoint, _ = llama
    monkeypatch.setattr("eval.models.checkpoint.open_model", lambda *_: checkpoint)
    tokens = torch.cat([torch.full((1, 5), 257), tokens_of(TEXT)], dim=1)
    mask = (torch.arange(tokens.shape[1]) > 4).long()[None]
    cache = their_model("llama")(tokens, attention_mask=mask, use_cache=True).past_key_values
    file = tmp_path / "captured.safetensors"
    held = {"rotated_key.2": cache.layers[1].keys.contiguous(), "attention_mask": mask}
    save_file(held, file)
    words = ["recover", str(file), "--model", "theirs", "--corpus", "toy:400"]
    assert main([*words, "--computed", "fp32"]) == 0
    said = capsys.readouterr().err
    assert "behind 5 rows of padding: did the positions count them" in said
    assert "leave attention_mask out of the file" in said
    save_file({"hidden": torch.ones(2, 5, 64)}, file)
    assert main(words) == 2
    assert "are they of 2 layers side by side? give --layer" in capsys.readouterr().err


def codes_of(states, levels, group):
    """Integers with a scale for each token and group of channels, as a coarse capture has them."""
    groups = states.unflatten(-1, (-1, group))
    scale = groups.abs().amax(-1) / levels
    codes = (groups / scale[..., None]).round().flatten(-2)
    return codes.to(torch.int8), scale


@pytest.mark.first(2)
@pytest.mark.parametrize("form", ["float", "bfloat16", "coarse"])
def test_layers_of_one_request_are_recovered_together(theirs, form, tmp_path, monkeypatch, capsys):
    checkpoint, states = theirs
    monkeypatch.setattr("eval.models.checkpoint.open_model", lambda *_: checkpoint)
    held = {}
    for layer in (1, 2):
        if form == "coarse":
            codes, scale = codes_of(states[layer], 7, 4)
            held |= {f"block.{layer}": codes, f"block.{layer}.scale": scale.contiguous()}
        else:
            held[f"block.{layer}"] = states[layer].to(getattr(torch, form)).contiguous()
    file = tmp_path / "captured.safetensors"
    save_file(held, file)
    words = ["recover", str(file), "--model", "theirs", "--corpus", "toy:400", "--format", "json"]
    assert main([*words, "--layer", "1", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["site"] for row in rows] == ["block.1+2"] * len(TEXTS)
    assert [row["text"] for row in rows] == list(TEXTS)
    assert all(all(row["certificates"]) for row in rows)


def test_layers_of_different_requests_are_not_joined(theirs, tmp_path, monkeypatch, capsys):
    checkpoint, states = theirs
    monkeypatch.setattr("eval.models.checkpoint.open_model", lambda *_: checkpoint)
    file = tmp_path / "captured.safetensors"
    save_file({"block.1": states[1].contiguous(), "block.2": states[2, :, 1:].contiguous()}, file)
    assert main(["recover", str(file), "--model", "theirs", "--layer", "1", "2"]) == 2
    assert "block.2" in capsys.readouterr().err
