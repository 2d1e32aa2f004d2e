"""What a model costs, by formula, against PyTorch's own counters."""

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from arch import LanguageModel, ModelConfig, count_parameters, describe
from arch.kernels import masked_conv
from arch.mixers.structured import LONG
from tests.arch.cases import MIXERS, random_tokens, small_model


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


def test_the_work_of_a_long_context_is_that_of_whole_products():
    """Not of transforms, which a CPU takes for it."""
    config = ModelConfig(11, 4 * LONG, 8, 1, mixers=("toeplitz",))

    def work(length: int) -> int:
        (part,) = (p for p in describe(config, length).parts if p.name.endswith("token_mixer"))
        return part.cost.flops

    assert work(4 * LONG) == pytest.approx(4 * work(LONG), rel=0.01)


@pytest.mark.parametrize("mixer", ["flat", "headed(heads=2)", "toeplitz"])
def test_work_is_the_same_beside_a_mixer_of_somebody_elses(mixer):
    """With which the tensors are real, and a CPU takes other products."""

    def work(*mixers: str) -> int:
        parts = describe(ModelConfig(11, LONG, 8, len(mixers), mixers=mixers)).parts
        return next(part.cost.flops for part in parts if part.name == "blocks.0.token_mixer")

    assert work(mixer, "tests.arch.leaks.Scaled") == work(mixer)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "settings",
    [
        *({"mixers": MIXERS[i::3], "n_layers": len(MIXERS[i::3])} for i in range(3)),
        {"mixers": ("flat", "attention(heads=2)+flat")},
        {"mixers": ("expanded",), "tied": True, "norm": "rmsnorm", "channel_mixer": "swiglu"},
        {"mixers": ("headed(heads=2)",), "final_norm": False, "channel_mixer": "gelu(bias=false)"},
        {"mixers": ("flat",), "vocab_multiple": 64},
    ],
    ids=str,
)
def test_a_description_adds_up_to_the_model_and_to_what_pytorch_counts(settings):
    model = small_model(**settings)
    table = describe(model.config, length=9)
    assert table.cost.parameters == count_parameters(model)
    with FakeTensorMode():
        fake = LanguageModel(model.config)
        tokens = random_tokens(fake, batch=3, length=9)
        work = counted(lambda: fake(tokens).sum().backward())
    # A triangle of ones has no gradient.
    constant = (part for part in table.parts if re.match(r"(row|column)(?!.*decay)", part.kind))
    ones = sum(part.cost.flops for part in constant)
    assert work == (table.cost.training_flops - ones) * 27
    assert tuple(map(sum, zip(*(part.cost for part in table.parts), strict=True))) == table.cost
    shapes = {
        f"{part.name}.{name}": shape for part in table.parts for name, shape in part.shapes.items()
    }
    assert shapes == {name: tuple(p.shape) for name, p in model.named_parameters()}
    mixers = [part.kind for part in table.parts if part.name.endswith("token_mixer")]
    assert tuple(mixers[: len(settings["mixers"])]) == settings["mixers"]
    assert (table.parts[0].name, table.parts[-1].name) == ("embedding", "head")


def test_nothing_is_allocated_or_drawn():
    config = ModelConfig(d_model=16384, n_layers=8, context=2048)  # 17 billion parameters
    state = torch.get_rng_state()
    assert describe(config).cost.parameters > 17e9
    assert torch.equal(torch.get_rng_state(), state)


def test_the_references_models_have_the_sizes_that_it_reports():
    sizes = {256: 8.4, 1024: 77.7}  # millions, flat, 8 blocks
    for d_model, millions in sizes.items():
        config = ModelConfig(d_model=d_model, final_norm=False, init="reference")
        assert describe(config).cost.parameters / 1e6 == pytest.approx(millions, abs=0.06)
