"""The Triton kernels on a GPU: `pytest -m gpu tests/arch/kernels/test_kernels_gpu.py`."""

import itertools

import pytest
import torch

from arch.kernels import masked_conv
from arch.kernels.masked_conv import implementation, masked_convolution
from tests.arch.kernels.kernel_cases import (
    LENGTHS,
    MEMBERS,
    arguments,
    compare,
    dense,
    gradients,
    squares,
)

pytestmark = pytest.mark.gpu

# Three heads of 64 features, which whole tiles cover; without heads the last tile is ragged.
FEATURES = 192


def test_the_kernels_run():
    assert implementation(torch.device("cuda", 0), torch.bfloat16)[0] == "triton"


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_result_and_gradients_at_every_length(length, dtype):
    compare("flat", length, dtype, "cuda", features=FEATURES)


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize(
    ("length", "dtype"), [(77, torch.bfloat16), (200, torch.float16), (257, torch.bfloat16)]
)
def test_result_and_gradients_of_every_member(name, length, dtype):
    compare(name, length, dtype, "cuda", features=FEATURES)


@pytest.mark.parametrize(("batch", "features"), [(1, 1), (3, 5), (5, 48), (2, 24), (300, 128)])
def test_any_batch_and_width(batch, features):
    compare("flat", 65, torch.bfloat16, "cuda", batch=batch, features=features)


SMOKE = (1, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 1000, 2048)


@pytest.mark.parametrize("length", SMOKE)
def test_bfloat16_is_as_near_to_float64_as_cublas_and_the_same_twice(length):
    """Every batch, width and number of heads; at most twice the error of dense products."""
    for batch, features, heads in itertools.product((1, 3, 64), (16, 80, 512), (1, 4)):
        x, slope = torch.randn(2, batch, length, features, device="cuda", dtype=torch.bfloat16)
        w = (torch.randn(heads, length, length, device="cuda") / length**0.5).bfloat16().float()
        found = gradients(masked_convolution, [x, w], slope)
        assert all(map(torch.equal, found, gradients(masked_convolution, [x, w], slope)))
        theirs = gradients(dense, [x, w.bfloat16()], slope)
        exact = gradients(dense, [x.double(), w.double()], slope.double())
        scale, own = squares(exact), squares(theirs, exact)
        floor = scale * torch.finfo(torch.bfloat16).eps ** 2 / 4
        wrong = ~(squares(found, exact) <= 4 * torch.maximum(own, floor))
        assert not wrong.any(), f"T={length} B={batch} D={features} H={heads}: {wrong.tolist()}"


@pytest.mark.parametrize("length", [2048, 8192])
def test_long_sequences(length):
    compare("flat", length, torch.bfloat16, "cuda", batch=2, features=256)


def test_autocast():
    x, w, b = arguments("flat", 200, torch.float32, device="cuda", features=FEATURES)
    with torch.autocast("cuda", torch.bfloat16):
        y, dx, dw, _ = gradients(masked_convolution, [x, w, b], torch.ones_like(x))
    assert (y.dtype, dx.dtype, dw.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    assert torch.equal(y, masked_convolution(x.bfloat16(), w, b))


def test_peak_memory_holds_nothing_of_batch_by_length_squared():
    batch, length, features = 64, 1024, 64
    x = torch.randn(batch, length, features, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(length, length, device="cuda")
    x.requires_grad_()
    w.requires_grad_()
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(masked_convolution(x, w).sum(), (x, w))
        used = torch.cuda.max_memory_allocated() - before
    # x, y, dy and dx; W in bfloat16, its gradient and the parts of it. The square would be 134 MB.
    assert used < 5 * x.nbytes + 6 * 4 * length**2


def test_second_device_of_two():
    if torch.cuda.device_count() < 2:
        pytest.skip("one device only")
    compare("flat", 77, torch.bfloat16, "cuda:1", features=FEATURES)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler about torch
@pytest.mark.parametrize("name", MEMBERS)
def test_compiled_for_the_device_it_gives_the_same(name):
    inputs = arguments(name, 200, torch.bfloat16, device="cuda", features=FEATURES)
    slope = torch.randn_like(inputs[0])
    torch.compiler.reset()
    compiled = torch.compile(masked_convolution, fullgraph=True)
    expected = gradients(masked_convolution, inputs, slope)
    for ours, eager in zip(gradients(compiled, inputs, slope), expected, strict=True):
        torch.testing.assert_close(ours, eager, rtol=0.02, atol=0.02)


def test_operators_pass_opcheck_in_bfloat16():
    x, w, b = arguments("headed", 40, torch.bfloat16, device="cuda", features=FEATURES)
    for tensor in (x, w, b):
        tensor.requires_grad_()
    torch.library.opcheck(masked_conv.forward, (x, w, b))
    torch.library.opcheck(masked_conv.dx, (x, w))
    torch.library.opcheck(masked_conv.dw, (x, x, 3, torch.float32))
