"""The masked convolutions against float64, and as operators torch can work with."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from arch.kernels import (
    blockwise,
    expanded_convolution,
    masked_convolution,
    parallel_convolution,
    toeplitz_convolution,
)
from arch.kernels.expanded import expanded
from arch.kernels.triangular import triangular
from tests.kernel_cases import LENGTHS, MEMBERS, arguments, compare, dense, gradients

members = pytest.mark.parametrize("name", MEMBERS)
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.mark.parametrize("length", LENGTHS)
@members
def test_result_and_gradients_are_as_near_to_float64_as_dense_products(name, length):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        compare(name, length, dtype)


@pytest.mark.parametrize(("batch", "features"), [(1, 1), (3, 5), (5, 48)])
def test_any_batch_and_width(batch, features):
    compare("flat", 65, torch.float32, batch=batch, features=features)


def test_long_sequence():
    compare("flat", 2048, torch.float32, batch=1, features=8)


@members
def test_gradcheck(name):
    inputs = [a.requires_grad_() for a in arguments(MEMBERS[name], 5, torch.float64, features=3)]
    assert torch.autograd.gradcheck(MEMBERS[name].ours, inputs)


@members
@devices
def test_same_bits_on_every_run(name, device):
    inputs = arguments(MEMBERS[name], 130, torch.bfloat16, device=device)
    slope = torch.randn(inputs[0].shape[-3:], dtype=torch.bfloat16, device=device)
    first = gradients(MEMBERS[name].ours, inputs, slope)
    for _ in range(1 if device == "cpu" else 20):
        assert all(map(torch.equal, first, gradients(MEMBERS[name].ours, inputs, slope)))


@pytest.mark.parametrize("garbage", [1e30, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["flat", "headed", "parallel", "parallel gelu", "expanded"])
@devices
def test_what_lies_above_the_diagonal_changes_nothing(name, garbage, device):
    member, length = MEMBERS[name], 128
    clean = [
        torch.tril(a) if a.shape[-2:] == (length, length) else a
        for a in arguments(member, length, torch.float32, device=device)
    ]
    above = torch.full((length, length), garbage, device=device).triu(1)
    dirty = [a + above if a.shape[-2:] == (length, length) else a for a in clean]
    slope = torch.randn(clean[0].shape[-3:], device=device)
    ours = gradients(member.ours, dirty, slope)
    for found, expected in zip(ours, gradients(member.ours, clean, slope), strict=True):
        assert torch.equal(found, expected)
    triangles = [g for g in ours[1:] if g.shape[-2:] == (length, length)]
    assert triangles
    assert not any(g.triu(1).any() for g in triangles)


@pytest.mark.parametrize("length", [1, 64, 100])
@devices
def test_corner_of_a_longer_matrix(length, device):
    stored = torch.randn(128, 128, device=device, requires_grad=True)
    x = torch.randn(2, length, 8, device=device)
    y = masked_convolution(x, stored[:length, :length])
    assert torch.equal(y, masked_convolution(x, stored[:length, :length].contiguous()))
    y.square().sum().backward()
    assert stored.grad is not None
    assert stored.grad[:length, :length].any()
    assert not stored.grad[length:].any()
    assert not stored.grad[:, length:].any()


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 1, 0)])
@pytest.mark.parametrize("name", ["flat", "headed", "parallel gelu", "expanded", "toeplitz"])
@devices
def test_any_order_in_memory(name, order, device):
    """Batch-major, position-major, features apart: the same numbers, and the first two stay so."""
    member = MEMBERS[name]
    inputs = arguments(member, 77, torch.float32, device=device)
    slope = torch.randn(inputs[0].shape, device=device)

    def ordered(tensor: Tensor) -> Tensor:
        return tensor.permute(order).contiguous().permute([order.index(i) for i in range(3)])

    expected = gradients(member.ours, inputs, slope)
    moved = [ordered(a) if a.shape == slope.shape else a for a in inputs]
    found = gradients(member.ours, moved, ordered(slope))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    if order[2] == 2:
        assert found[0].stride() == moved[0].stride()


@devices
def test_gradient_without_strides(device):
    inputs = arguments(MEMBERS["flat"], 70, torch.float32, device=device)
    x, w, b, _ = (a.requires_grad_() for a in inputs)
    ours = torch.autograd.grad(masked_convolution(x, w, b).sum(), (x, w, b))
    exact = [a.detach().double().requires_grad_() for a in (x, w, b)]
    expected = torch.autograd.grad(dense(*exact).sum(), exact)
    torch.testing.assert_close(ours, expected, check_dtype=False)


@members
@devices
def test_gradients_of_some_arguments_only(name, device):
    member = MEMBERS[name]
    inputs = arguments(member, 40, torch.float32, device=device)
    slope = torch.ones(inputs[0].shape[-3:], device=device)
    all_of_them = gradients(member.ours, inputs, slope)[1:]
    for wanted in range(len(inputs)):
        leaves = [a.clone().requires_grad_(i == wanted) for i, a in enumerate(inputs)]
        member.ours(*leaves).sum().backward()
        for i, leaf in enumerate(leaves):
            assert (leaf.grad is not None) == (i == wanted)
            if leaf.grad is not None:
                torch.testing.assert_close(leaf.grad, all_of_them[wanted])


def test_float32_parameters_beside_half_precision_get_float32_gradients():
    x, w, b, _ = arguments(MEMBERS["flat"], 64, torch.bfloat16)
    y, dx, dw, db = gradients(masked_convolution, [x, w, b], torch.ones_like(x))
    assert [t.dtype for t in (y, dx, dw, db)] == [torch.bfloat16] * 2 + [torch.float32] * 2


@devices
def test_float32_residual_is_not_rounded(device):
    x, w, _, _ = arguments(MEMBERS["flat"], 64, torch.bfloat16, device=device)
    residual = torch.randn(x.shape, device=device)
    y = masked_convolution(x, w, residual=residual)
    assert y.dtype == torch.float32
    # The rest is what the product rounds, not what the residual would lose in bfloat16.
    torch.testing.assert_close(y - masked_convolution(x, w), residual, rtol=0, atol=2**-7)


def test_autocast_multiplies_in_its_own_dtype():
    x, w, b, r = arguments(MEMBERS["flat"], 64, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y, dx, dw, *_ = gradients(masked_convolution, [x, w, b], torch.ones_like(x))
        added = masked_convolution(x, w, b, r)
        wide = masked_convolution(x.double(), w.double())
    assert torch.equal(y, masked_convolution(x.bfloat16(), w, b))
    assert (dx.dtype, dw.dtype, added.dtype) == (torch.float32,) * 3
    assert wide.dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        halves = expanded_convolution(x, w[None], None, w[None])
    assert torch.equal(halves, expanded_convolution(x.bfloat16(), w[None], None, w[None]))


def test_empty_batch():
    x, w = torch.zeros(0, 5, 4, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    y, dx, dw = gradients(masked_convolution, [x, w], torch.zeros(0, 5, 4))
    assert y.shape == dx.shape == (0, 5, 4)
    assert not dw.any()


def test_nothing_is_kept_for_a_backward_that_cannot_come():
    x, w = torch.randn(1, 2, 9, 4), torch.randn(3, 1, 9, 9)
    _, z = triangular(x, w, None, None, True, True, False)
    _, h, inner = expanded(x, w, None, w, None, None, False)
    assert z.numel() == h.numel() == inner.numel() == 0


def test_gradient_of_a_gradient_is_refused():
    x, w = (t.requires_grad_() for t in (torch.randn(1, 4, 2), torch.randn(4, 4)))
    (dx,) = torch.autograd.grad(masked_convolution(x, w).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="triangular_backward"):
        dx.sum().backward()


class Made(TorchDispatchMode):
    """Keeps the memory of every tensor made inside, but for what was given."""

    def __init__(self, *given: Tensor):
        super().__init__()
        self.given = {tensor.data_ptr() for tensor in given}
        self.storages = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            storage = made.untyped_storage()
            if storage.data_ptr() not in self.given:
                self.storages[storage.data_ptr()] = storage
        return made

    def bytes(self) -> list[int]:
        """The sizes, largest first."""
        return sorted((storage.nbytes() for storage in self.storages.values()), reverse=True)


def test_no_dense_mask_and_nothing_of_batch_by_length_squared():
    batch, length, features = 8, 512, 16
    x, g = (torch.randn(1, batch, length, features) for _ in range(2))
    w = torch.randn(1, 1, length, length)
    with Made(x, w) as forward:
        blockwise.product(x, w, None, None, join=True, gelu=False, keep=False)
    with Made(g, x, w) as backward:
        blockwise.transposed(g, w, None, like=x, join=True, sums=True)
    with Made(g, x, w) as weight:
        blockwise.outer(g, x, w)
    assert forward.bytes()[0] == backward.bytes()[0] == x.nbytes
    # The gradient of W is the one thing of its size.
    first, second, *_ = weight.bytes()
    assert first == w.nbytes
    assert second <= x.nbytes


@devices
def test_operators_pass_opcheck(device):
    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, requires_grad=True)

    x, w, b, r = leaf(1, 2, 9, 4), leaf(2, 2, 9, 9), leaf(2, 2, 9), leaf(2, 9, 4)
    offset = leaf(1, 2, 9)
    for bias, residual in itertools.product((b, None), (r, None)):
        torch.library.opcheck(triangular, (x, w, bias, residual, True, True, True))
    torch.library.opcheck(triangular, (leaf(2, 2, 9, 4), w, offset, r, True, False, False))
    torch.library.opcheck(triangular, (x, w, b, None, False, True, True))
    torch.library.opcheck(triangular, (x, offset, None, None, True, False, False))
    torch.library.opcheck(expanded, (x, w, b, w, offset, r, True))
    torch.library.opcheck(expanded, (x, w, None, w, None, None, True))


# Torch's compiler itself uses deprecated parts of torch.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@devices
def test_compiles_into_one_graph(device):
    def network(x, w, b, taps):
        x = functional.layer_norm(x, x.shape[-1:])
        x = masked_convolution(x, w[0, : x.shape[1], : x.shape[1]], b[0], x)
        x = expanded_convolution(x, w, b, w, b[0], x)
        x = parallel_convolution(x.tanh(), w, b, x, activation="gelu")
        return toeplitz_convolution(x, taps, b[0])

    shapes = [(2, 77, 8), (2, 77, 77), (2, 77), (77,)]
    inputs = [torch.randn(shape, device=device) / 9 for shape in shapes]
    slope = torch.randn(2, 77, 8, device=device)
    compiled = torch.compile(network, fullgraph=True)
    expected = gradients(network, inputs, slope)
    torch.testing.assert_close(gradients(compiled, inputs, slope), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: masked_convolution(x, torch.ones(4, 5)), r"weight is \(4, 5\): expected \(5, 5"),
        (
            lambda x: masked_convolution(x, torch.ones(3, 5, 5)),
            "weight has 3 heads: expected a divisor of D = 4",
        ),
        (
            lambda x: masked_convolution(x, torch.ones(5, 5), torch.ones(1, 5)),
            r"bias is \(1, 5\): expected \(5,\)",
        ),
        (
            lambda x: masked_convolution(x, torch.ones(5, 5), None, x[0]),
            r"residual is \(5, 4\): expected \(2, 5, 4\)",
        ),
        (lambda x: toeplitz_convolution(x, torch.ones(4)), r"taps is \(4,\): expected \(5,\)"),
        (
            lambda x: parallel_convolution(x, torch.ones(3, 5, 5), activation="relu"),
            "activation='relu': expected 'none' or 'gelu'",
        ),
        (
            lambda x: parallel_convolution(torch.stack([x, x]), torch.ones(3, 5, 5)),
            r"x is \(2, 2, 5, 4\): expected \(3, 2, 5, 4\)",
        ),
        (
            lambda x: expanded_convolution(x, torch.ones(2, 5, 5), None, torch.ones(1, 5, 5)),
            r"contract is \(1, 5, 5\): expected \(2, 5, 5\)",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randn(2, 5, 4))


def test_import_needs_no_triton():
    program = "import arch.kernels, sys; sys.exit('triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[1])
