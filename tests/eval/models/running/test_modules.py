"""Modules in memory: hooks, parts and settings of a user's own are asked, and tell models apart."""

from typing import Any

import pytest
import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from eval import RequestError, loss
from eval.models.checkpoint import open_model
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained import test_decoder
from tests.arch.pretrained.test_pretrained import their_model
from tests.said import one_line


@pytest.mark.parametrize("start", [0, 12])  # beyond the tokens on which parts are checked
@pytest.mark.parametrize("family", ["gpt2", "llama 1"])
def test_a_hook_on_an_attention_of_theirs_counts(family, start):
    theirs, tokens = their_model(family, dtype=torch.float32), torch.arange(20)[None]
    before = theirs(tokens).logits
    layers = next(m for m in theirs.modules() if isinstance(m, torch.nn.ModuleList))
    attention: Any = layers[0]
    attention = attention.attn if family == "gpt2" else attention.self_attn

    def cut(_, given, output):
        return (output[0] * (torch.arange(output[0].shape[1])[:, None] < start), *output[1:])

    attention.register_forward_hook(cut)
    found = open_model(theirs, tokenizer=byte_tokenizer()).model(tokens)
    torch.testing.assert_close(found, theirs(tokens).logits)
    assert not torch.allclose(found, before, atol=1e-2)


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.model.rotary_emb.inv_freq.mul_(0.25),
        # as layers of PEFT have it
        lambda module: setattr(module.model.layers[0].mlp.up_proj, "disable_adapters", True),
        lambda module: setattr(module.model.layers[0].self_attn, "scaling", 0.9),
        lambda module: setattr(module.model.layers[0].mlp, "act_fn", torch.nn.ReLU()),
        lambda module: setattr(module.model.norm, "variance_epsilon", 0.1),
        lambda module: module.model.layers[0].mlp.act_fn.register_full_backward_hook(print),
    ],
)
def test_a_module_that_no_weight_tells_from_another_is_another(change):
    """It was given the rows of the other."""
    module = their_model("llama 1", dtype=torch.float32)
    first = open_model(module, tokenizer=byte_tokenizer())
    module(torch.arange(4)[None], output_hidden_states=True)  # which leaves hooks in its layers
    module.enable_input_require_grads()  # one more, as where gradients are checkpointed
    assert open_model(module, tokenizer=byte_tokenizer()).identity == first.identity
    change(module)
    assert open_model(module, tokenizer=byte_tokenizer()).identity != first.identity


def test_an_attention_of_a_user_s_own_is_what_is_asked(monkeypatch):
    """A plain one was, under the rows of the plain model: its window is beyond what is checked."""

    def near(module, q, k, v, mask, **options):
        keys = torch.arange(k.shape[2])
        seen = (keys[:, None] >= keys) & (keys[:, None] - keys < 12)
        return sdpa_attention_forward(module, q, k, v, seen[-q.shape[2] :], **options)

    known = transformers.AttentionInterface._global_mapping
    monkeypatch.setitem(known, "near", near)
    module, tokens = their_model("llama 1", dtype=torch.float32), torch.arange(20)[None]
    plain = open_model(module, tokenizer=byte_tokenizer())
    module.set_attn_implementation("near")
    opened = open_model(module, tokenizer=byte_tokenizer())
    expected = module(tokens).logits
    torch.testing.assert_close(opened.model(tokens), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(plain.model(tokens), expected, atol=1e-2)
    assert opened.identity != plain.identity


class Steered(torch.nn.Module):
    """Adds to what its model gives."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits, and 1."""
        return self.module(x) + 1


def test_a_module_around_a_model_is_not_that_model(small_model, small_tokenizer):
    with one_line(RequestError, "Steered"):
        open_model(Steered(small_model()), tokenizer=small_tokenizer)


class Controlled(torch.nn.Module):
    """A layer with a vector added, as libraries of control vectors put it into a model."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer, self.coefficient, self.vector = layer, 0.0, torch.ones(32)
        self.held = {"operator": lambda x, y: x + y}
        self.register_buffer("mask", torch.ones(32), persistent=False)

    def forward(self, *given: Any, **options: Any) -> torch.Tensor:
        """The layer's output, changed."""
        added = self.coefficient * self.vector * self.get_buffer("mask")
        return self.held["operator"](self.layer(*given, **options), added)


def test_what_steers_a_module_is_a_part_of_it(tmp_path):
    """A sweep of coefficients was given the figure of the first."""
    module = their_model("llama 1", dtype=torch.float32)
    known = open_model(module, tokenizer=byte_tokenizer(), name="m").identity
    module.model.layers[1] = control = Controlled(module.model.layers[1])
    figures, ids = [], [known]
    for name, value in (
        ("coefficient", 0.0),
        ("coefficient", 4.0),
        ("vector", torch.arange(32.0)),
        ("mask", torch.arange(32) % 2),
        ("held", {"operator": lambda x, y: x - y}),
    ):
        setattr(control, name, value)
        opened = open_model(module, tokenizer=byte_tokenizer(), name="m")
        ids.append(opened.identity)
        figures += [row["nats_per_token"] for row in loss(opened, text="a", out=tmp_path).rows]
    assert len({*ids}) == 6
    assert len({*figures}) == 5


def test_a_model_around_one_of_theirs_is_that_model():
    """It was another, beside whose rows those of an ablation stood; with a user's part it is."""
    for module in (their_model("gpt2", dtype=torch.float32), test_decoder.their_model("qwen2")):
        first = open_model(module, tokenizer=byte_tokenizer())
        again = open_model(first.model, tokenizer=first.tokenizer)
        assert again.weights_sha256 == first.weights_sha256
        again.model.norm = control = Controlled(again.model.norm)
        ids = {first.weights_sha256}
        for control.coefficient in (0.0, 4.0):
            ids.add(open_model(again.model, tokenizer=first.tokenizer).weights_sha256)
        assert len(ids) == 3


@pytest.mark.parametrize("family", ["gpt2", "llama 1"])
def test_what_training_alone_reads_makes_no_other_model(family):
    """Its rows were computed again, and the model that was opened before was refused."""
    module = their_model(family, dtype=torch.float32)
    first = open_model(module, tokenizer=byte_tokenizer())
    module.config.pad_token_id = 256
    for part in module.modules():
        for name in {"p", "attention_dropout"} & vars(part).keys():
            setattr(part, name, 0.25)
    assert loss(first, text="Tom sat.").rows
    assert open_model(module, tokenizer=byte_tokenizer()).weights_sha256 == first.weights_sha256


def swap_columns(weight: torch.Tensor) -> None:
    """The first two, of every row."""
    weight[:, :2] = weight[:, :2].flip(1)


@pytest.mark.parametrize(
    "change",
    [
        lambda model, module: module.blocks[0].channel_mixer.down.weight.data[:, 5].zero_(),
        lambda model, module: model.embedding.weight.numpy().__setitem__((1, 1), 3),
        lambda model, module: module.blocks[1].token_mixer.o_proj.weight.data[:, 8:16].zero_(),
        lambda model, module: swap_columns(module.blocks[0].channel_mixer.up.weight.data),
        lambda model, module: module.counts.fill_(2),
        lambda model, module: model.blocks[1].register_forward_hook(print),
        lambda model, module: module.blocks[1].register_forward_hook(print),
        lambda model, module: model.blocks[1].register_full_backward_hook(print),
        lambda model, module: setattr(model.blocks[1], "channel_mixer", torch.nn.Identity()),
        lambda model, module: setattr(model.blocks[1].norm_token, "eps", 0.5),
    ],
)
def test_an_open_model_that_is_changed_is_refused(change, small_model, small_tokenizer):
    """By ways that count no writes; or hooks, of which those of the original were never run."""
    module = small_model(mixers=("attention",))
    module.register_buffer("counts", torch.ones(2))
    opened = open_model(module, tokenizer=small_tokenizer, name="m")
    loss(opened, text="Tom sat.")
    change(opened.model, module)

    def ask_patched() -> None:
        with opened.patched({}):
            loss(opened, text="Tom sat.")

    for ask in (lambda: loss(opened, text="Tom sat."), ask_patched):
        with one_line(RequestError, "open it again"):
            ask()
