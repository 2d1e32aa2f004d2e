"""What a model costs, by formula, against PyTorch's own counters."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from arch import (
    LanguageModel,
    ModelConfig,
    count_parameters,
    describe,
    masked_conv,
)
from arch.mixers import Triangle, build_mixer
from tests.arch.cases import MIXERS, random_mixer, random_tokens, small_model

B, L, D = 2, 12, 8


def lower(x, *_, **__):
    """Two for each entry on or below the diagonal, feature and sequence."""
    batch, length, features = x
    return batch * features * length * (length + 1)


def causal(query, key, value, products):
    """PyTorch counts the whole square for attention; the lower half, with the diagonal, is work."""
    length = query[-2]
    return products // 2 * sdpa_flop_count(query, key, value) * (length + 1) // (2 * length)


COUNTED = {
    **dict.fromkeys(
        (
            op._opoverload.overloadpacket
            for op in (masked_conv.forward, masked_conv.dx, masked_conv.dw)
        ),
        lower,
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: causal(
        q, k, v, 2
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda dy, q, k, v, *_, **__: causal(q, k, v, 4)
    ),
}


def counted(run):
    """Of fake tensors, to which a masked convolution is one operator."""
    with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter:
        run()
    return counter.get_total_flops()


def cost_of(entry, length=L):
    """Of the first block's token mixer."""
    config = small_model(entry, n_layers=1).config
    (part,) = [p for p in describe(config, length).parts if p.name == "blocks.0.token_mixer"]
    return part.cost


@pytest.mark.parametrize("length", [L, 7])
@pytest.mark.parametrize("entry", MIXERS)
def test_flops_are_those_that_pytorch_counts_forward_and_backward(entry, length):
    cost = cost_of(entry, length)
    with FakeTensorMode():
        mixer = build_mixer(entry, D, L)
        x = torch.randn(B, length, D, requires_grad=True)
        assert counted(lambda: mixer(x)) == cost.flops * B * length
        assert counted(lambda: mixer(x).sum().backward()) == cost.training_flops * B * length


@pytest.mark.parametrize("entry", [e for e in MIXERS if not e.startswith(("s", "a", "i"))])
def test_masked_parameters_are_those_without_any_gradient(entry):
    mixer = random_mixer(entry, D, L)
    mixer(torch.randn(B, L, D, dtype=torch.float64)).square().sum().backward()
    alive = sum(int(p.grad.count_nonzero()) for p in mixer.parameters())
    cost = cost_of(entry)
    assert cost.parameters - cost.masked == alive


@pytest.mark.parametrize(
    "settings",
    [
        {"mixers": ("flat", "attention(heads=2)+flat")},
        {"mixers": ("expanded",), "tied": True, "norm": "rmsnorm", "channel_mixer": "swiglu"},
        {"mixers": ("headed(heads=2)",), "final_norm": False, "channel_mixer": "gelu(bias=false)"},
        {"mixers": ("flat",), "vocab_multiple": 64},
        {"mixers": ("attention(heads=4, kv_heads=1)",)},
    ],
)
def test_a_description_adds_up_to_the_model(settings):
    model = small_model(**settings)
    table = describe(model.config, length=9)
    assert table.cost.parameters == count_parameters(model)
    triangles = [m.weight for m in model.modules() if isinstance(m, Triangle)]
    assert table.cost.masked == sum(w.numel() - w.tril().count_nonzero() for w in triangles)
    with FakeTensorMode():
        fake = LanguageModel(model.config)
        tokens = random_tokens(fake, batch=3, length=9)
        assert counted(lambda: fake(tokens)) == table.cost.flops * 27
        assert counted(lambda: fake(tokens).sum().backward()) == table.cost.training_flops * 27
    assert tuple(map(sum, zip(*(part.cost for part in table.parts), strict=True))) == table.cost
    shapes = {
        f"{part.name}.{name}": shape for part in table.parts for name, shape in part.shapes.items()
    }
    assert shapes == {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert table.parts[2].kind == settings["mixers"][0]
    assert (table.parts[0].name, table.parts[-1].name) == ("embedding", "head")


def test_nothing_is_allocated_or_drawn():
    config = ModelConfig(d_model=8192, n_layers=48, context=2048)  # 26 billion parameters
    state = torch.get_rng_state()
    assert describe(config).cost.parameters > 25e9
    assert torch.equal(torch.get_rng_state(), state)


def test_the_references_models_have_the_sizes_that_it_reports():
    sizes = {256: 8.4, 512: 23.1, 1024: 77.7, 2048: 287.5}  # millions, flat, 8 blocks
    for d_model, millions in sizes.items():
        config = ModelConfig(d_model=d_model, final_norm=False, init="reference")
        assert describe(config).cost.parameters / 1e6 == pytest.approx(millions, abs=0.06)
