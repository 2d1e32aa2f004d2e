"""What is said where outputs fit elsewhere, or were changed: models of transformers judge."""

import pytest
import torch
from safetensors.torch import save_file

from eval import open_model, recover
from eval.__main__ import main
from eval.messages import say_once
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_decoder import their_model

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def unsaid():
    """A line that another test was told is said again."""
    say_once.cache_clear()


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


def test_positions_that_counted_padding_are_asked_for_where_tokens_are_likely(
    tmp_path, monkeypatch, capsys
):
    """Rows of neighbouring positions differ little in trained models."""
    module = their_model("gpt2", n_layer=2).requires_grad_(False)
    module.transformer.wpe.weight *= 0.02
    model = open_theirs(module)
    monkeypatch.setattr("eval.models.checkpoint.open_model", lambda *_: model)
    tokens = torch.cat([torch.full((1, 3), 257), tokens_of("Tom had")], dim=1)
    mask = (torch.arange(tokens.shape[1]) > 2).long()[None]
    states = module(tokens, attention_mask=mask, output_hidden_states=True).hidden_states
    file = tmp_path / "c.safetensors"
    save_file({"block.1": states[1].contiguous(), "attention_mask": mask}, file)
    words = ["recover", str(file), "--model", "theirs", "--computed", "fp32"]
    assert main([*words, "--corpus", "toy:400"]) == 0
    said = capsys.readouterr()
    assert "7 likely" in said.out
    assert "behind 3 rows of padding: did the positions count them" in said.err


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
