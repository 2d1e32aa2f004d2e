"""What is said where outputs fit elsewhere, or were changed: models of transformers judge."""

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from eval import open_model, recover
from eval.__main__ import main
from eval.sites.circuit import Circuit
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_decoder import their_model

pytest.importorskip("transformers")


def tokens_of(*texts):
    return torch.tensor([byte_tokenizer().encode(text).ids for text in texts])


def open_theirs(module):
    return open_model(module, tokenizer=byte_tokenizer())


@pytest.mark.parametrize(
    ("rows", "layer", "said"),
    [
        (lambda states: states[:1, :4], 2, "give --layer 1 --part block"),
        (lambda states: states.transpose(0, 1), 1, "outputs (T, B, width)?"),
    ],
)
def test_why_rows_behind_a_first_one_that_tells_nothing_do_not_fit_is_said(
    rows, layer, said, capsys
):
    """As of models that send the first position so far off that bfloat16 erases its token."""
    module = their_model("gpt2", n_layer=2).requires_grad_(False)
    module.transformer.wpe.weight[0] *= 1000
    states = module(tokens_of("Tom had", "The hen"), output_hidden_states=True).hidden_states[1]
    outputs, arguments = rows(states).bfloat16(), {"computed": "bf16", "settings": {"starts": 1}}
    recover(open_theirs(module), outputs, layer=layer, corpus="toy:400", **arguments)
    lines = capsys.readouterr().err
    assert "position 0: too coarse" in lines
    assert said in lines


@pytest.fixture
def erased():
    """A model whose first position is so far off that bfloat16 erases its token; states of it."""
    module = their_model("gpt2", n_layer=2).requires_grad_(False)
    module.transformer.wpe.weight[0] *= 1000
    states = module(tokens_of("Tom had"), output_hidden_states=True).hidden_states[1]
    return open_theirs(module), states.bfloat16()


def test_rows_that_no_token_fits_choose_none_among_tokens_that_fit(erased):
    """Hundreds of tolerances off, they outweighed the others, and no token was certain."""
    model, states = erased
    noise = 10 * torch.randn(1, 3, states.shape[2], generator=torch.Generator().manual_seed(0))
    alone, more = (
        recover(model, outputs, layer=1, computed="fp32", corpus="toy:400")
        for outputs in (states, torch.cat([states, noise.bfloat16()], dim=1))
    )
    assert "certain" in alone.grades[0]
    assert more.tokens[0, :7].tolist() == alone.tokens[0].tolist()
    assert more.grades[0][:7] == alone.grades[0]


def test_one_token_before_empty_slots_may_be_too_coarse(erased):
    """It was a traceback."""
    model, states = erased
    slots = torch.cat([states[:, :1], 0 * states[:, 1:4]], dim=1)
    found = recover(model, slots, layer=1, computed="bf16", corpus="toy:400")
    assert found.tokens.shape == (1, 1)
    assert not found.proven


def test_coarse_codes_that_fit_elsewhere_by_chance_are_not_sent_there():
    """Of codes of 2 bits many tokens fit at any site, and as many at their own."""
    module = their_model("gpt2", n_embd=64, n_layer=2)
    text = tokens_of("The hen sat")
    states = module(text, output_hidden_states=True).hidden_states[1].detach()
    scale = states.abs().amax(dim=-1, keepdim=True)
    codes = (states / scale).round().to(torch.int8)
    found = recover(open_theirs(module), codes, scale=scale, layer=1, corpus="toy:400")
    assert "certain" not in found.grades[0]
    assert found.elsewhere == ""


def test_streams_without_a_mean_are_named_where_tokens_are_likely(capsys):
    """As of wide streams, of which the mean is a small part: noise was given as the reason."""
    module = their_model("gpt2", n_embd=64, n_layer=2)
    states = module(tokens_of("Tom had"), output_hidden_states=True).hidden_states[1]
    outputs = states - states.mean(dim=-1, keepdim=True)
    found = recover(open_theirs(module), outputs, layer=1, computed="fp32", corpus="toy:400")
    assert "likely" in found.grades[0]
    assert "center_writing_weights=False" in found.elsewhere
    assert "no token is certain at block.1; the mean" in capsys.readouterr().err


@pytest.mark.parametrize("lacking", [True, False])
def test_values_without_their_bias_are_named(lacking):
    """As TransformerLens folds it: other sites and first rows were given as the reason."""
    module = their_model("gpt2", n_embd=64, n_layer=2)
    attention = module.transformer.h[1].attn.c_attn
    torch.nn.init.normal_(attention.bias, std=0.5)
    bias = attention.bias[-64:].detach() * lacking
    model, text = open_theirs(module), tokens_of("Tom had a hen")
    values = Circuit(model.model, 2, "value").of_tokens(text) - bias
    given = {"layer": 2, "part": "value", "computed": "fp32", "corpus": "toy:400"}
    found = recover(model, values, **given)
    assert ("fold_value_biases=False" in found.elsewhere) == lacking
    assert found.proven != lacking


def test_a_model_s_own_values_lack_no_bias_though_nothing_is_proven():
    """As of weights in bfloat16: they fit exactly, and so lack one row of zeros."""
    model = open_theirs(their_model("gpt2", n_embd=64, n_layer=2).bfloat16())
    values = Circuit(model.model, 2, "value").of_tokens(tokens_of("Tom had a hen"))
    found = recover(model, values, layer=2, part="value", corpus="toy:400")
    assert not found.proven
    assert "fold_value_biases" not in found.elsewhere


def test_rows_of_zeros_lack_no_bias():
    """One token's values, the smallest, were what all of them lacked."""
    module = their_model("llama", num_hidden_layers=1)
    torch.nn.init.normal_(module.model.embed_tokens.weight[257])  # it was 0
    model = open_theirs(module)
    values = Circuit(model.model, 1, "value").of_tokens(tokens_of("Tom had", "The hen", "Mia ran"))
    values += torch.randn(values.shape, generator=torch.Generator().manual_seed(0))
    values[1:, 1:] = 0
    found = recover(model, values, layer=1, part="value", computed="fp32", corpus="toy:400")
    assert "fold_value_biases" not in found.elsewhere


@pytest.fixture
def neighbours():
    """A model whose rows of neighbouring positions differ little, as those of trained models."""
    module = their_model("gpt2", n_layer=2).requires_grad_(False)
    module.transformer.wpe.weight *= 0.02
    module.transformer.h[0].attn.c_proj.weight *= 0.1
    return module


def test_positions_that_counted_padding_are_asked_for_where_tokens_are_likely(
    neighbours, tmp_path, monkeypatch, capsys
):
    model = open_theirs(neighbours)
    monkeypatch.setattr("eval.models.checkpoint.open_model", lambda *_: model)
    tokens = torch.cat([torch.full((1, 3), 257), tokens_of("Tom had")], dim=1)
    mask = (torch.arange(tokens.shape[1]) > 2).long()[None]
    states = neighbours(tokens, attention_mask=mask, output_hidden_states=True).hidden_states
    file = tmp_path / "c.safetensors"
    save_file({"block.1": states[1].contiguous(), "attention_mask": mask}, file)
    words = ["recover", str(file), "--model", "theirs", "--computed", "fp32"]
    assert main([*words, "--corpus", "toy:400"]) == 0
    said = capsys.readouterr()
    assert "7 likely" in said.out
    assert "behind 3 rows of padding: did the positions count them" in said.err


@pytest.mark.parametrize(
    ("prompts", "said"),
    [(slice(1, 2), "no token is certain at block.1; "), (slice(0, 2), "in prompt 1 ")],
)
def test_rows_before_a_prompt_are_named_where_its_tokens_are_likely(
    prompts, said, neighbours, capsys
):
    """Padding without a mask: noise was given as the reason, or nothing said."""
    tokens = torch.cat([torch.full((1, 3), 257), tokens_of("Tom had")], dim=1)
    tokens = torch.cat([tokens_of("The hen it"), tokens])
    mask = torch.ones_like(tokens)
    mask[1, :3] = 0
    given = {"attention_mask": mask, "position_ids": (mask.cumsum(dim=-1) - 1).clamp(min=0)}
    states = neighbours(tokens, output_hidden_states=True, **given).hidden_states[1][prompts]
    found = recover(open_theirs(neighbours), states, layer=1, computed="fp32", corpus="toy:400")
    assert "likely" in found.grades[-1]
    assert f"{said}from row 3 on 6 of 6 tokens fit" in capsys.readouterr().err


def test_a_prompt_behind_another_is_named_where_its_tokens_are_likely(neighbours, capsys):
    states = [
        neighbours(tokens_of(text), output_hidden_states=True).hidden_states[1]
        for text in ("Tom had", "The hen")
    ]
    outputs, model = torch.cat(states, dim=1), open_theirs(neighbours)
    found = recover(model, outputs, layer=1, computed="fp32", corpus="toy:400")
    assert found.grades[0][-1] == "likely"
    assert "from row 7 on 6 of 6 tokens fit as another prompt" in capsys.readouterr().err


def test_keys_before_a_norm_of_keys_are_named(capsys):
    """Qwen3 norms what its key projection gives, which a hook catches."""
    module, caught = their_model("qwen3", num_hidden_layers=1), list[torch.Tensor]()
    projection = module.model.layers[0].self_attn.k_proj
    projection.register_forward_hook(lambda *given: caught.append(given[-1]))
    module(tokens_of("Tom had"))
    arguments = {"layer": 1, "part": "key", "computed": "fp32", "corpus": "toy:400"}
    found = recover(open_theirs(module), caught[0].detach(), **arguments)
    assert not found.proven
    assert "k_norm" in found.elsewhere
    assert "--part rotated_key" in capsys.readouterr().err


@pytest.mark.parametrize("codes", [False, True])
def test_rows_of_zeros_are_no_beginning_of_another_prompt(codes, directories, opened, capsys):
    """As in a batch that is padded with zeros: the token whose embedding is 0 fits each of them."""
    states = load_file(f"{directories['llama']}/states.safetensors")["2"][:2, :7].clone()
    states[1, 4:] = 0
    scale = (states.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=1e-8) if codes else None
    if scale is not None:
        states = (states / scale).round().to(torch.int8)
    assert not opened["llama"].model.embedding.weight[257].any()
    found = recover(opened["llama"], states, scale=scale, layer=2, corpus="toy:400")
    assert found.left_out == [[], [4, 5, 6]]
    assert "another prompt" not in capsys.readouterr().err


def add_noise(states):
    """Noise as long as the states, which makes them 1.4 times as long."""
    noise = torch.randn(states.shape, generator=torch.Generator().manual_seed(0))
    return states + noise * states.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("change", "factor"),
    [
        (lambda x: 1.5 * x, 1.5),
        (add_noise, None),
        (lambda x: 0.37 * x, 0.37),
        (lambda x: 3 * x, 3),
        (lambda x: x.roll(5, dims=-1), None),
    ],
)
def test_states_that_were_multiplied_are_named(directories, opened, change, factor):
    """As SAELens keeps them: other models and later positions were asked for."""
    states = load_file(f"{directories['llama']}/states.safetensors")["2"][:1, :8]
    found = recover(opened["llama"], change(states), layer=2, computed="fp32", corpus="toy:400")
    assert not found.proven
    said = re.search(r"about (\S+) times as long", found.elsewhere)
    assert (said and float(said[1])) == (factor and pytest.approx(factor, rel=0.2))


def test_small_codes_on_one_side_are_not_said_to_be_cut_off():
    """As beside a first token that sets the scale: all others were rounded to 0 or -1."""
    module = their_model("gpt2", n_layer=2).requires_grad_(False)
    module.transformer.wpe.weight[:, 3] = -60
    states = module(tokens_of("Tom had"), output_hidden_states=True).hidden_states[1]
    codes = (states / 100).round().to(torch.int8)
    assert codes.unique().tolist() == [-1, 0]
    found = recover(open_theirs(module), codes, scale=100.0, layer=1, corpus="toy:400")
    assert "cut off" not in found.elsewhere


def test_prompts_whose_tokens_fit_are_not_asked_whether_their_axes_are_swapped(capsys):
    """Of weights in bfloat16 none is certain, and rows fit several tokens."""
    module = their_model("llama", num_hidden_layers=2).bfloat16()
    states = module(tokens_of("Tom had", "The hen"), output_hidden_states=True).hidden_states[1]
    found = recover(open_theirs(module), states, layer=1, corpus="toy:400")
    assert found.texts == ["Tom had", "The hen"]
    assert "(T, B, width)" not in capsys.readouterr().err
