"""What each mixer computes, against plain PyTorch and against one another."""

import pytest
import torch
from torch.nn import functional as F

from arch.mixers.attention import CausalAttention, attend_by_products
from tests.arch.cases import random_mixer

B, T, D = 2, 7, 8


@pytest.fixture
def x():
    return torch.randn(B, T, D, dtype=torch.float64)


def lower(weight):
    return torch.tril(weight.detach())


def over_positions(x, weight, bias=None):
    """The reference's form: positions are the channels of a Conv1d over features."""
    return F.conv1d(x, weight[..., None], bias)


@pytest.mark.parametrize("length", [T, T - 3, 1])
def test_flat_is_a_masked_conv1d_whose_channels_are_positions(x, length):
    flat = random_mixer("flat", D, T)
    W, b = lower(flat.mix.weight), flat.mix.bias
    expected = over_positions(x[:, :length], W[:length, :length], b[:length])
    torch.testing.assert_close(flat(x[:, :length]), expected)


@pytest.mark.parametrize(
    ("entry", "factor"),
    [("expanded(factor=1)", 1), ("rectangular(factor=1)", 1), ("rectangular(factor=3)", 3)],
)
def test_expanded_at_factor_one_and_rectangular_are_the_two_stage_form(x, entry, factor):
    mixer = random_mixer(entry, D, T)
    U, c = mixer.expand.weight.reshape(factor * T, T), mixer.expand.bias.flatten()
    V, b = mixer.contract.weight.reshape(T, factor * T), mixer.contract.bias
    expected = over_positions(F.gelu(over_positions(x, lower(U), c)), lower(V), b)
    torch.testing.assert_close(mixer(x), expected)


def test_what_rectangular_adds_to_expanded_is_dead(x):
    wide = random_mixer("rectangular(factor=3)", D, T)
    narrow = random_mixer("expanded(factor=1)", D, T)
    with torch.no_grad():
        narrow.expand.weight[0] = wide.expand.weight[:T]
        narrow.expand.bias[0] = wide.expand.bias[:T]
        narrow.contract.weight[0] = wide.contract.weight[:, :T]
        narrow.contract.bias[:] = wide.contract.bias
    assert torch.equal(wide(x), narrow(x))
    wide(x).square().sum().backward()
    assert wide.expand.weight.grad[T:].count_nonzero() == 0
    assert wide.contract.weight.grad[:, T:].count_nonzero() == 0


def test_expanded_is_the_sum_of_its_stacked_triangles(x):
    mixer = random_mixer("expanded(factor=3)", D, T)
    expected = mixer.contract.bias[:, None].expand(B, T, D)
    for r in range(3):
        U, c = lower(mixer.expand.weight[r]), mixer.expand.bias[r]
        expected = expected + lower(mixer.contract.weight[r]) @ F.gelu(U @ x + c[:, None])
    torch.testing.assert_close(mixer(x), expected)
    mixer(x).square().sum().backward()  # every entry below every diagonal is alive
    for weight in (mixer.expand.weight, mixer.contract.weight):
        assert weight.grad.count_nonzero() == 3 * T * (T + 1) // 2


def test_parallel_without_activation_is_flat_with_the_summed_weights(x):
    parallel, flat = random_mixer("parallel(branches=3)", D, T), random_mixer("flat", D, T)
    with torch.no_grad():
        flat.mix.weight[:] = parallel.mix.weight.sum(0)
        flat.mix.bias[:] = parallel.mix.bias.sum(0)
    torch.testing.assert_close(parallel(x), flat(x))


def test_parallel_with_gelu_sums_the_activated_branches(x):
    mixer = random_mixer("parallel(branches=3, activation=gelu)", D, T)
    branches = zip(mixer.mix.weight, mixer.mix.bias, strict=True)
    expected = sum(F.gelu(over_positions(x, lower(W), b)) for W, b in branches)
    torch.testing.assert_close(mixer(x), expected)


def test_headed_with_one_head_and_identity_projections_is_flat(x):
    headed, flat = random_mixer("headed(heads=1)", D, T), random_mixer("flat", D, T)
    with torch.no_grad():
        headed.in_proj.weight[:] = torch.eye(D)
        headed.o_proj.weight[:] = torch.eye(D)
        flat.mix.weight[:] = headed.mix.weight[0]
        flat.mix.bias[:] = headed.mix.bias[0]
    torch.testing.assert_close(headed(x), flat(x))


def test_headed_gives_each_head_its_own_triangle_and_features(x):
    mixer = random_mixer("headed(heads=4)", D, T)
    A = mixer.in_proj.weight.chunk(4)  # each (D/h, D)
    heads = [
        over_positions(x @ A[h].T, lower(mixer.mix.weight[h]), mixer.mix.bias[h]) for h in range(4)
    ]
    torch.testing.assert_close(mixer(x), torch.cat(heads, dim=-1) @ mixer.o_proj.weight.T)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, D + 1])
def test_kernel_is_a_conv1d_over_features_with_every_tap_masked(x, size):
    mixer = random_mixer(f"kernel(size={size})", D, T)
    weight = lower(mixer.mix.weight).permute(1, 2, 0)
    expected = F.conv1d(x, weight, mixer.mix.bias, padding="same")
    torch.testing.assert_close(mixer(x), expected)


@pytest.mark.parametrize(("heads", "window"), [(4, None), (2, None), (2, 3)])
def test_attention_by_products_is_that_of_torch(heads, window):
    q, k, v = (torch.randn(B, n, T, D, dtype=torch.float64, requires_grad=True)
               for n in (4, heads, heads))  # fmt: skip
    attention = CausalAttention()
    attention.window = window
    seen = attention.visible(T, T, q.device)
    results = []
    for attend in (
        lambda: attend_by_products(q, k, v, seen, 0.3),
        lambda: F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=0.3, enable_gqa=heads != 4
        ),
    ):
        y = attend()
        results.append((y, *torch.autograd.grad(y.square().sum(), (q, k, v))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("size", [1, 3, T + 2])
def test_depthwise_is_a_causal_conv1d_of_each_feature_alone(x, size):
    mixer = random_mixer(f"depthwise(size={size})", D, T)
    weight = mixer.weight.detach().flip(0).T[:, None]  # conv1d reads from the earliest on
    expected = F.conv1d(F.pad(x.transpose(1, 2), (size - 1, 0)), weight, groups=D)
    torch.testing.assert_close(mixer(x), expected.transpose(1, 2))


def test_side_by_side_is_the_sum(x):
    both = random_mixer("attention(heads=2)+flat", D, T)
    torch.testing.assert_close(both(x), both.mixers[0](x) + both.mixers[1](x))


def test_identity_is_the_identity(x):
    assert torch.equal(random_mixer("identity", D, T)(x), x)
