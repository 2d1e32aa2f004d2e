"""Tensors as people store them: formats and their steps, and the site that they are of."""

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from eval import activations, open_model, recover
from eval.captured.arithmetic import Arithmetic
from eval.captured.files.axes import say_what_is_clipped
from eval.captured.files.stored import read_stored
from eval.captured.files.tensors import Raw
from eval.captured.locate import find_precision, find_site
from eval.messages import RequestError, say_once
from eval.sites.circuit import Circuit
from tests.arch.pretrained.test_decoder import their_model as decoder_model
from tests.arch.pretrained.test_pretrained import saved
from tests.eval.inversion.search_cases import SHORT
from tests.said import one_line

KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_distance_to_the_next_number(kind):
    """Numpy's and torch's own next numbers are the oracle, subnormal ones and zero among them."""
    x = torch.randn(1, 40, 9) * torch.logspace(-9, 4, 9)
    x[0, 0] = 0.0
    numbers = x.to(KINDS[kind])
    stored = read_stored(numbers)
    assert stored.format == kind
    assert torch.equal(stored.values, numbers.float())
    above = torch.nextafter(numbers.abs(), torch.tensor(torch.inf, dtype=numbers.dtype))
    gaps = above.double() - numbers.abs().double()
    least = torch.finfo(torch.float32).tiny
    torch.testing.assert_close(stored.step.double(), gaps.clamp(min=least), rtol=0, atol=0)
    assert read_stored(numbers.float()).format == kind  # found in numbers that were widened since
    assert bool(((x - stored.values).abs() <= stored.step / 2).all())


@pytest.fixture
def captured(directories, opened) -> tuple[Any, dict[str, torch.Tensor]]:
    path = directories["llama"]
    return opened["llama"], load_file(f"{path}/states.safetensors")


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_states_of_a_computation_in_lower_precision_are_recovered(captured, directories, kind):
    from transformers import AutoModelForCausalLM

    model, states = captured
    theirs = AutoModelForCausalLM.from_pretrained(directories["llama"], dtype=KINDS[kind])
    with torch.no_grad():
        outputs = theirs(states["tokens"], output_hidden_states=True).hidden_states[2]
    found = recover(model, outputs, layer=2, corpus="toy:400")
    assert torch.equal(found.tokens, states["tokens"])
    assert found.computed == kind
    assert all(proof for proofs in found.certificates for proof in proofs)
    assert recover(model, states["2"].to(KINDS[kind]), layer=2, corpus="toy:400").computed == "fp32"


def test_a_precision_that_a_hidden_first_row_does_not_tell_is_tried(captured, directories, capsys):
    """Float32 was supposed without a word, by which numbers of a bfloat16 model prove nothing."""
    from transformers import AutoModelForCausalLM

    model, states = captured
    theirs = AutoModelForCausalLM.from_pretrained(
        directories["llama"], dtype=torch.bfloat16, trust_remote_code=False
    )
    tokens = states["tokens"][:1, :4]
    with torch.no_grad():
        outputs = theirs(tokens, output_hidden_states=True).hidden_states[1][:, 1:]
    arguments = {"layer": 1, "first": 1, "corpus": "toy:400", "settings": {"starts": 1}}
    found = recover(model, outputs, **arguments)
    assert "searching as computed in bf16" in capsys.readouterr().err
    assert (found.computed, found.grades) == ("bf16", [["certain"] * 4])
    assert torch.equal(found.tokens, tokens)
    noise = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0))
    recover(model, states["1"][:1, 1:4] + 0.01 * noise, **arguments)
    assert "give --computed bf16 or fp16" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "part"), [("llama", "rotated_key"), ("gpt_neo", "block")])
def test_bfloat16_changes_far_positions_as_a_run_of_transformers_does(name, part, tmp_path):
    """Rotations of rounded frequencies moved far keys 20 times as far; a GPT-Neo had no copy."""
    from transformers import AutoModelForCausalLM

    length = 800
    theirs = decoder_model(name, max_position_embeddings=length).bfloat16().float()
    path = saved(theirs, tmp_path / "model")
    checkpoint = open_model(f"hf:{path}")
    tokens = torch.arange(length)[None] * 7 % 250
    site = Circuit(checkpoint.model, 1, part)
    outputs = site.of_tokens(tokens)
    ours = Arithmetic(checkpoint, "bf16", "toy:400").change(site, tokens, outputs)
    real = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, trust_remote_code=False)
    with torch.no_grad():
        seen: Any = real(tokens, output_hidden_states=True, use_cache=True)
    states = seen.hidden_states[1]
    if part == "rotated_key":
        states = seen.past_key_values.layers[0].keys.transpose(1, 2).flatten(2)
    own = (states - outputs).norm(dim=-1)[0, -50:]
    assert float(own.mean()) == pytest.approx(float(ours.norm(dim=-1)[0, -50:].mean()), rel=0.5)


def test_states_too_far_for_float32_are_taken_for_the_lower_precision(captured, directories):
    """As after a first token that was mistaken: the tokens are right and miss every limit."""
    from transformers import AutoModelForCausalLM

    path, (checkpoint, states) = directories["llama"], captured
    tokens = states["tokens"]
    theirs = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.bfloat16, trust_remote_code=False
    )
    with torch.no_grad():
        outputs = theirs(tokens, output_hidden_states=True).hidden_states[2]
    positions = range(tokens.shape[1])
    noise = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0))
    noise[:, 0] = 0
    far = outputs + (0.1 * outputs.float().square().mean(dim=-1, keepdim=True).sqrt() * noise)
    stored = read_stored(far.bfloat16())
    (best, *_), computed = find_site(checkpoint, stored, positions, "toy:400")
    assert (best.part, best.layer, computed) == ("block", 2, "bf16")
    stored = read_stored(far[:, 1:].bfloat16())
    circuit = Circuit(checkpoint.model, 2)
    assert find_precision(checkpoint, circuit, stored, positions[1:], "toy:400") == "fp32"
    assert find_precision(checkpoint, circuit, stored, positions[:-1], "toy:400") == "bf16"


def test_all_that_fit_are_named(captured, directories):
    """Five levels for each number: the oracle runs every token at each place, in transformers."""
    from transformers import AutoModelForCausalLM

    model, states = captured
    x, true = states["1"], states["tokens"]
    scale = x.abs().amax(dim=-1, keepdim=True) / 2
    numbers = (x / scale).round()
    found = recover(model, numbers.to(torch.int8), scale=scale, layer=1, corpus="toy:400")
    assert torch.equal(found.tokens, true)
    assert any(others for prompt in found.alike for others in prompt.values())
    theirs = AutoModelForCausalLM.from_pretrained(directories["llama"])
    for row, t in np.ndindex(*true.shape):
        versions = true[row].repeat(theirs.config.vocab_size, 1)
        versions[:, t] = torch.arange(len(versions))
        with torch.no_grad():
            outputs = theirs(versions, output_hidden_states=True).hidden_states[1]
        steps = (outputs / scale[row] - numbers[row]).abs()[:, t:].amax(dim=(1, 2))
        named = {int(true[row, t]), *found.alike[row].get(t, [])}
        assert {*(steps <= 0.999).nonzero()[:, 0].tolist()} <= named
        assert named <= {*(steps <= 1.001).nonzero()[:, 0].tolist()}


@pytest.mark.slow
def test_a_first_position_whose_scale_erases_it_is_searched_for(captured):
    model, states = captured
    x = states["2"]
    scale = x.abs().amax(dim=-1, keepdim=True) / 127
    scale[:, 0] *= 1000
    numbers = (x / scale).round()
    assert not numbers[:, 0].any()
    found = recover(model, numbers.to(torch.int8), scale=scale, layer=2, corpus="toy:400")
    assert found.positions[0] == 1
    right = found.tokens == states["tokens"]
    certain = torch.tensor([[proof is not None for proof in one] for one in found.certificates])
    assert bool((right | ~certain).all())
    assert bool((right & certain).all(dim=1).any())


@pytest.mark.first(1)
@pytest.mark.parametrize("part", ["rotated_key", "value"])
def test_a_cache_gives_the_text_away(directories, opened, part):
    """The cache of transformers itself, and its tensors in bfloat16."""
    from transformers import AutoModelForCausalLM

    path = directories["llama"]
    tokens = load_file(f"{path}/states.safetensors")["tokens"]
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(path)
        cache = theirs(tokens, use_cache=True).past_key_values
    found = recover(opened["llama"], cache, layer=2, part=part, corpus="toy:400")
    assert found.texts == SHORT
    assert found.certificates == [["residual"] * 12] * 2
    layer = cache.layers[1]
    tensor = layer.keys if part == "rotated_key" else layer.values
    found = recover(opened["llama"], tensor.bfloat16(), layer=2, part=part, corpus="toy:400")
    assert found.texts == SHORT


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("site", "kind"),
    [("block.0", "fp32"), ("stream.3", "fp32"), ("rotated_key.2", "fp32"), ("key.1", "fp32"),
     ("block.2", "bf16"), ("mixer.1", "bf16"), ("value.3", "bf16")],
)  # fmt: skip
def test_the_site_is_found(opened, site, kind):
    checkpoint = opened["llama"]
    (batch,) = activations(checkpoint, SHORT, site)
    found = recover(checkpoint, batch.outputs[site].to(KINDS[kind]), corpus="toy:400")
    assert found.site == site
    assert found.texts == SHORT
    first, *others = found.matches
    assert first.hits > max((other.hits for other in others), default=0)


@pytest.mark.first(1)
@pytest.mark.parametrize("layer", [None, 2])
@pytest.mark.parametrize("padding", [0.0, 1.0])
def test_padding_before_the_first_prompt_hides_neither_site_nor_precision(
    opened, padding, layer, capsys
):
    """The first prompt alone was searched for them: all were refused, or taken for bfloat16."""
    checkpoint = opened["llama"]
    (batch,) = activations(checkpoint, SHORT, "block.2")
    outputs = batch.outputs["block.2"].bfloat16()
    noise = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(0))
    outputs[0] = torch.cat([padding * noise[:5], outputs[0, :7]])
    found = recover(checkpoint, outputs, layer=layer, corpus="toy:400")
    assert (found.site, found.computed, found.texts[1]) == ("block.2", "fp32", SHORT[1])
    assert set(found.grades[0]) == {"unknown"}
    said = capsys.readouterr().err
    assert "prompt 0 (of 2, " in said
    assert "from row 5 on" in said


@pytest.mark.first(1)
@pytest.mark.parametrize(("site", "size"), [("stream.1", 0.02), ("final.3", 0.002), ("block.1", 1)])
def test_the_site_of_outputs_that_fit_nowhere_is_the_one_that_they_come_near(
    opened, nowhere_else, capsys, site, size
):
    """As of another program, whose arithmetic is not this one's; where none is near, it is said."""
    checkpoint = opened["llama"]
    (batch,) = activations(checkpoint, SHORT, site)
    outputs = batch.outputs[site]
    noise = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0))
    noisy = outputs + size * outputs.square().mean(dim=-1, keepdim=True).sqrt() * noise
    if size == 1:
        with one_line(RequestError, "no token fits at the likeliest sites"):
            recover(checkpoint, noisy, corpus="toy:400")
        return
    found = recover(checkpoint, noisy, corpus="toy:400")
    assert (found.site, found.matches[0].hits) == (site, 0)
    assert f"{site} is taken" in capsys.readouterr().err
    likely = [grade == "likely" for grade in found.grades[0]]
    right = (found.tokens[0] == batch.tokens[0]).tolist()
    assert sum(likely) > len(likely) / 2
    assert all(good for good, sure in zip(right, likely, strict=True) if sure)


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    ("scale", "clipped"),
    [
        (lambda x: x.abs().quantile(0.7), True),
        (lambda x: x.abs().max(), False),
        (lambda x: x.abs().amax(dim=-1, keepdim=True), False),
        (lambda x: x.abs().amax(dim=0), False),
        (lambda x: x[:, 1:].abs().max(), False),
    ],
)
def test_numbers_that_were_clipped_are_said(kind, scale, clipped, capsys):
    """Right tokens were not certain, and noise or other weights were given as the reason.

    Of fp8 numbers of a channel far from 0 are rounded to the last one, clipped or not.
    """
    say_once.cache_clear()
    x = torch.randn(3, 20, 64, generator=torch.Generator().manual_seed(0))
    x[:, 0] *= 0.1
    x[:, 0, 3] = 50  # as of a first token that all prompts have
    x[:, 1:, 5] = 20 + 0.5 * x[:, 1:, 5]
    most = 448 if kind.is_floating_point else 127
    units = scale(x) / most
    zero = 128 if kind == torch.uint8 else None
    codes = (x / units).clamp(-most, most)
    codes = codes.to(kind) if kind.is_floating_point else (codes.round() + (zero or 0)).to(kind)
    for given in (units, units.numpy()):
        say_what_is_clipped(Raw(codes, given, zero))
        assert ("clipped" in capsys.readouterr().err) == clipped
        say_once.cache_clear()


def test_numbers_that_were_cut_off_are_said(captured, capsys):
    """The reason that was given was noise, or a computation in bfloat16."""
    model, states = captured
    groups = states["1"][:1].unflatten(-1, (-1, 8))
    scale = groups.abs().amax(dim=-1) / 7
    codes = (groups / scale[..., None]).flatten(-2)
    given = {"scale": scale, "layer": 1, "computed": "fp32", "corpus": "toy:400"}
    found = recover(model, codes.to(torch.int8), **given)
    assert not found.mostly_certain
    assert "cut off" in found.elsewhere
    assert "cut off, as by x.to(torch.int8)" in capsys.readouterr().err
    assert "cut off" not in recover(model, codes.round().to(torch.int8), **given).elsewhere
