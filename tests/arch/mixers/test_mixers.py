"""What every token mixer must do, whatever it computes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from arch.mixers import Triangle
from tests.arch.cases import MIXERS, random_mixer

D, L = 8, 6


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype)


def has_triangles(entry):
    return any(isinstance(module, Triangle) for module in random_mixer(entry, D, L).modules())


def assert_causal(mixer, x):
    """Changing token t changes the output at t, and not one bit of any output before."""
    before = mixer(x)
    for t in range(x.shape[1]):
        changed = x.clone()
        changed[:, t] += torch.randn_like(x[:, t])
        after = mixer(changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t], before[:, t])


def assert_continues(mixer, x, cuts):
    """Pieces through `prefix`, and a look at the rest by two candidates each, give `forward`."""
    whole, state = mixer(x), None
    for start, end in zip([0, *cuts], cuts, strict=False):
        y, state = mixer.prefix(x[:, start:end], state)
        torch.testing.assert_close(y, whole[:, start:end])
    rest = x[:, cuts[-1] :].repeat_interleave(2, 0)
    rest[1::2] += 1.0  # the second candidate is another one
    y = mixer.step(rest, state)
    torch.testing.assert_close(y[::2], whole[:, cuts[-1] :])
    other = mixer(torch.cat([x[:, : cuts[-1]], rest[1::2]], dim=1))
    torch.testing.assert_close(y[1::2], other[:, cuts[-1] :])


@pytest.mark.parametrize("entry", MIXERS)
def test_no_output_depends_on_a_later_token(entry):
    for dtype in (torch.float64, torch.float32):
        assert_causal(random_mixer(entry, D, L, dtype), draw(2, L, D, dtype=dtype))


@pytest.mark.parametrize("entry", MIXERS)
def test_prefix_and_step_give_what_forward_gives(entry):
    for dtype, cuts in ((torch.float64, [1]), (torch.float64, [3, 4]), (torch.float32, [2, 5])):
        assert_continues(random_mixer(entry, D, L, dtype), draw(3, L, D, dtype=dtype), cuts)


@pytest.mark.parametrize("entry", MIXERS)
def test_a_state_stays_as_it_is_when_others_go_on_from_it(entry):
    mixer, x = random_mixer(entry, D, L), draw(2, L, D)
    with torch.no_grad():
        _, start = mixer.prefix(x[:, :2])
        _, root = mixer.prefix(x[:, 2:3], start)  # with room for more behind it
        _, left = mixer.prefix(x[:, 3:4], root)
        mixer.prefix(x[:, 3:5] + 1.0, root)  # another way on, and further
        for state, length in ((start, 2), (root, 3), (left, 4)):
            torch.testing.assert_close(mixer.step(x[:, length:], state), mixer(x)[:, length:])


@pytest.mark.parametrize("entry", MIXERS)
def test_gradients_are_those_of_finite_differences(entry):
    features = D if "heads=4" in entry or "size=3" in entry else D // 2  # as few as it takes
    mixer = random_mixer(entry, features, 3)
    parameters = dict(mixer.named_parameters())

    def run(x, *tensors):
        return functional_call(mixer, dict(zip(parameters, tensors, strict=True)), x)

    assert torch.autograd.gradcheck(
        run, (draw(1, 3, features).requires_grad_(), *parameters.values())
    )


@pytest.mark.parametrize("entry", [*filter(has_triangles, MIXERS)])
def test_weights_above_a_diagonal_have_no_influence_and_no_gradient(entry):
    mixer, x = random_mixer(entry, D, L), draw(2, L, D)
    triangles = [module for module in mixer.modules() if isinstance(module, Triangle)]

    def outputs():
        y, state = mixer.prefix(x[:, :2])
        return torch.cat([mixer(x), y, mixer.step(x[:, 2:], state)], dim=1)

    expected = outputs()
    with torch.no_grad():
        for triangle in triangles:
            above = torch.ones_like(triangle.weight, dtype=torch.bool).triu(1)
            triangle.weight[above] = torch.nan
    found = outputs()
    assert torch.equal(found, expected)
    found.square().sum().backward()
    for triangle in triangles:
        gradient = triangle.weight.grad
        assert gradient is not None
        assert torch.equal(gradient.triu(1), torch.zeros_like(gradient))
        assert gradient.tril().count_nonzero() > 0


@pytest.mark.parametrize("entry", MIXERS)
def test_half_precision_is_near(entry):
    mixer, x = random_mixer(entry, D, L, torch.float32), draw(2, L, D, dtype=torch.float32)
    expected = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = mixer(x)
        _, state = mixer.prefix(x[:, :3])
        stepped = mixer.step(x[:, 3:], state)
    torch.testing.assert_close(mixed.float(), expected, atol=0.15, rtol=0.05)
    torch.testing.assert_close(stepped.float(), expected[:, 3:], atol=0.15, rtol=0.05)
    low = mixer.bfloat16()(x.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), expected, atol=0.15, rtol=0.05)


@st.composite
def mixed_shapes(draw_from):
    """An entry with settings, and sizes that fit it."""
    heads = draw_from(st.sampled_from([1, 2, 4]))
    kv_heads = draw_from(st.sampled_from([h for h in (1, 2, 4) if heads % h == 0]))
    count, bias = draw_from(st.integers(1, 4)), draw_from(st.sampled_from(["true", "false"]))
    entry = draw_from(
        st.sampled_from(
            [
                f"flat(bias={bias})",
                f"expanded(factor={count}, bias={bias})",
                f"rectangular(factor={count}, bias={bias})",
                f"parallel(branches={count}, bias={bias})",
                f"parallel(branches={count}, activation=gelu, bias={bias})",
                f"headed(heads={heads}, bias={bias})",
                f"kernel(size={count}, bias={bias})",
                f"attention(heads={heads}, kv_heads={kv_heads}, bias={bias})",
                f"attention(heads={heads})+parallel(branches={count})",
            ]
        )
    )
    context = draw_from(st.integers(2, 70))  # beyond one block of the kernels
    length = draw_from(st.integers(2, context))
    d_model = heads * draw_from(st.sampled_from([2, 4, 6]))
    cut = draw_from(st.integers(1, length - 1))
    return entry, d_model, context, length, cut, draw_from(st.integers(1, 3))


@settings(max_examples=40, derandomize=True)
@given(mixed_shapes())
def test_any_shape_is_causal_and_continues(shapes):
    entry, d_model, context, length, cut, batch = shapes
    mixer = random_mixer(entry, d_model, context)
    x = draw(batch, length, d_model)
    y = mixer(x)
    assert y.shape == x.shape
    changed = x.clone()
    changed[:, cut] += 1.0
    assert torch.equal(mixer(changed)[:, :cut], y[:, :cut])
    assert_continues(mixer, x, [cut])
    shorter = mixer(x[:, :cut])
    torch.testing.assert_close(shorter, y[:, :cut])


def assert_compiles(entries, dtype, backend):
    """The compiled mixers, forward and backward, are one graph and give what they give as is."""
    mixers = torch.nn.Sequential(*(random_mixer(entry, D, L, dtype) for entry in entries))
    x = draw(2, L, D, dtype=dtype).div(8).requires_grad_()

    def run(function):
        y = function(x)
        return [y, *torch.autograd.grad(y.float().square().mean(), [x, *mixers.parameters()])]

    torch.compiler.reset()
    expected = run(mixers)
    found = run(torch.compile(mixers, fullgraph=True, backend=backend))
    near = 0.1 if dtype == torch.bfloat16 else None  # None: what the precision allows
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=near, atol=near)


@pytest.mark.slow
def test_one_of_each_mixer_together_are_one_graph_for_the_compiler():
    entries = {entry.split("(")[0]: entry for entry in MIXERS}.values()
    assert_compiles(entries, torch.float32, "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("entry", MIXERS)
def test_every_mixer_compiles_with_the_default_backend(entry, dtype):
    assert_compiles([entry], dtype, "inductor")
