"""Rows of zeros, as of empty slots: no evidence of a token, though one embedded as 0 fits."""

from typing import Any

import pytest
import torch

from eval import RequestError, activations, open_model, recover
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_pretrained import GROUPED, random_model
from tests.said import one_line

BEGINNING = "Tom had a"


def stored_as(form, x) -> dict[str, Any]:
    """The arguments of `recover` for states in a format."""
    if form == "int8":
        scale = float(x.abs().max()) / 127 or 1.0
        return {"outputs": (x / scale).round().to(torch.int8), "scale": scale}
    if form == "4 decimals":
        return {"outputs": torch.tensor(x.double().numpy().round(4).tolist())}
    return {"outputs": x.to(getattr(torch, form))}


def begin_with_zeros(x):
    return x * (torch.arange(len(BEGINNING)) > 2)[:, None]


ZEROS = {
    "everywhere": ("float32", lambda x: 0 * x, "positions 0 to 8 hold zeros only"),
    "nearly": ("float32", lambda x: x / x.abs().max() * 1e-30, "positions 0 to 8 hold zeros only"),
    "at first": ("float32", begin_with_zeros, "give the rows from 3 on alone"),
    "at first, of fp8": ("float8_e4m3fn", begin_with_zeros, "give the rows from 3 on alone"),
    "at first, printed": ("4 decimals", begin_with_zeros, "give the rows from 3 on alone"),
    "of codes": ("int8", lambda x: 0 * x, "positions 0 to 8 hold zeros only"),
}


@pytest.fixture(scope="module")
def zero_embedded():
    """A model that keeps the padding token's embedding at 0, and `BEGINNING` in it."""
    theirs = random_model("Llama", torch.float32, GROUPED)
    assert not theirs.get_input_embeddings().weight[257].any()
    ids = torch.tensor([byte_tokenizer().encode(BEGINNING).ids])
    states = theirs(ids, output_hidden_states=True).hidden_states
    return open_model(theirs, tokenizer=byte_tokenizer()), ids, states[0], states[1]


@pytest.mark.parametrize("kind", ZEROS)
@pytest.mark.parametrize("layer", [None, 1])
def test_zeros_alone_are_refused(zero_embedded, kind, layer):
    """They were the padding token's outputs, certain."""
    model, _, _, states = zero_embedded
    form, change, said = ZEROS[kind]
    with one_line(RequestError, said):
        recover(model, **stored_as(form, change(states)), layer=layer)


@pytest.mark.parametrize("form", ["int8", "float8_e4m3fn", "4 decimals"])
def test_a_prompt_of_zeros_beside_another_is_unknown_in_any_format(zero_embedded, form):
    model, ids, _, states = zero_embedded
    two = stored_as(form, torch.cat([states, 0 * states]))
    found = recover(model, **two, layer=1, corpus="toy:400")
    assert set(found.grades[1]) == {"unknown"}
    certain = torch.tensor([grade == "certain" for grade in found.grades[0]])
    assert torch.equal(found.tokens[0][certain], ids[0][certain])
    assert bool(certain.any())


@pytest.mark.parametrize("layer", [None, 1])
def test_zeros_beside_outputs_are_unknown(zero_embedded, layer, capsys):
    """A text was made up for a prompt of zeros, and a second line asked what its axes hold."""
    model, ids, embedded, states = zero_embedded
    two = recover(model, torch.cat([states, 0 * states]), layer=layer, corpus="toy:400")
    assert (two.texts, set(two.grades[1])) == ([BEGINNING, ""], {"unknown"})
    assert capsys.readouterr().err.count("prompt 1") == 1
    if layer:
        gap = states.clone()
        gap[:, 3] = 0
        assert recover(model, gap, layer=layer, corpus="toy:400").texts == [BEGINNING]
        repeated = (ids == ids[0, 3])[..., None]
        alone = recover(model, embedded.masked_fill(repeated, 0), layer=0, corpus="toy:400")
        assert alone.grades[0][3] == "unknown"


@pytest.mark.parametrize("empty", [[3], [6, 7, 8]], ids=["a gap", "slots behind"])
@pytest.mark.parametrize("least", [None, 0.0, 1e-8], ids=["floats", "no scale", "a small scale"])
@pytest.mark.parametrize("site", ["block.0", "value.1"])
def test_zeros_within_one_of_two_prompts_are_unknown(
    zero_embedded, site, least, empty, nowhere_else
):
    """They were the padding token, certain: of codes by their own scale, of floats in a gap."""
    model, ids, _, _ = zero_embedded
    (batch,) = activations(model, [BEGINNING] * 2, site)
    outputs, scale = batch.outputs[site].clone(), None
    outputs[1, empty] = 0
    if least is not None:
        scale = outputs.abs().amax(dim=-1, keepdim=True) / 127
        outputs = (outputs / scale).nan_to_num().round().to(torch.int8)
        scale = scale.clamp(min=least)
    part, layer = site.split(".")
    found = recover(model, outputs, scale=scale, layer=int(layer), part=part, corpus="toy:400")
    unknown = [[], empty]
    for prompt, grades in enumerate(found.grades):
        assert [t for t, grade in enumerate(grades) if grade != "certain"] == unknown[prompt]
        assert {grades[t] for t in unknown[prompt]} <= {"unknown"}
    kept = [t for t in range(len(BEGINNING)) if t not in empty]
    assert torch.equal(found.tokens[:, kept], ids[:, kept].expand(2, -1))
    assert found.texts[0] == BEGINNING
    assert found.left_out[1] == (empty if empty[-1] == len(BEGINNING) - 1 else [])


def test_rows_of_zeros_at_first_may_be_of_tokens(zero_embedded, capsys):
    """The fix that was named, to give the later rows alone, made them another prompt's."""
    model, ids, _, states = zero_embedded
    outputs = states.clone()
    outputs[:, 0] = 0
    with one_line(RequestError, "(--positions) from 1 on"):
        recover(model, outputs, layer=1)
    shown = list(range(1, len(BEGINNING)))
    found = recover(model, outputs, layer=1, shown=shown, corpus="toy:400")
    assert torch.equal(found.tokens, ids)


def test_empty_slots_behind_a_prompt_may_pass_the_context(zero_embedded):
    """They were refused as positions of a text too long."""
    model, _, _, states = zero_embedded
    slots = states.new_zeros(1, model.config.context, states.shape[2])
    found = recover(model, torch.cat([states, slots], dim=1), layer=1, corpus="toy:400")
    assert found.texts == [BEGINNING]
