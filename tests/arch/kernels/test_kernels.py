"""The masked convolution against float64, and as an operator torch can work with."""

import logging
import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from arch.errors import ModelError
from arch.kernels import masked_conv
from arch.kernels.arithmetic import plain_arithmetic
from arch.kernels.masked_conv import implementation, masked_convolution
from tests.arch.kernels.kernel_cases import LENGTHS, MEMBERS, arguments, compare, dense, gradients
from tests.arch.kernels.kernel_machines import compile_as_on_a_gpu, import_anew, run_without_triton

members = pytest.mark.parametrize("name", MEMBERS)
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.mark.parametrize("length", LENGTHS)
@members
def test_result_and_gradients_are_as_near_to_float64_as_dense_products(name, length):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        compare(name, length, dtype)


@pytest.mark.parametrize(
    ("length", "batch", "features"), [(65, 1, 1), (65, 3, 5), (65, 5, 48), (2048, 1, 8)]
)
def test_any_length_batch_and_width(length, batch, features):
    compare("flat", length, torch.float32, batch=batch, features=features)


@pytest.fixture(params=["convolution", "dense", "operator"])
def form(request, monkeypatch):
    """Each form that a CPU can take, whatever this one prefers, at any size."""
    length = 1 if request.param == "convolution" else math.inf
    monkeypatch.setattr(masked_conv, "onednn_length", lambda: length)
    monkeypatch.setattr(masked_conv, "ONEDNN", 1)
    monkeypatch.setattr(masked_conv, "is_one_node", lambda _: request.param == "operator")
    return request.param


@pytest.mark.parametrize(("length", "batch"), [(1, 3), (129, 3), (257, 17)])
@members
def test_each_form_for_a_cpu(name, length, batch, form):
    compare(name, length, torch.float32, batch=batch)
    with Calls() as calls:
        masked_convolution(*arguments(name, length, torch.float32, batch=batch))
    kinds = {"convolution": "aten.*conv", "dense": r"aten\.b?a?d?d?bmm", "operator": "remnant"}
    found = {kind for kind in kinds if any(re.match(kinds[kind], call) for call in calls.names)}
    assert found == {form}


@members
@pytest.mark.usefixtures("form")
def test_gradients_of_every_order(name):
    """The first two against finite differences, the third against the dense form's."""
    inputs = [a.requires_grad_() for a in arguments(name, 4, torch.float64, features=3)]
    assert torch.autograd.gradcheck(masked_convolution, inputs)
    assert torch.autograd.gradgradcheck(masked_convolution, inputs)
    inputs = arguments(name, 130, torch.float64, features=6)
    slopes = [[torch.randn_like(a) for a in inputs] for _ in range(2)]

    def third(form):
        leaves = [a.detach().clone().requires_grad_() for a in inputs]
        value = form(*leaves).square().sum()
        for slope in slopes:
            first = torch.autograd.grad(value, leaves, create_graph=True)
            value = torch.stack([(a * b).sum() for a, b in zip(first, slope, strict=True)]).sum()
        return list(torch.autograd.grad(value, leaves))

    for ours, theirs in zip(third(masked_convolution), third(dense), strict=True):
        torch.testing.assert_close(ours, theirs)


@members
@devices
def test_same_bits_on_every_run(name, device):
    inputs = arguments(name, 130, torch.bfloat16, device=device)
    slope = torch.randn(inputs[0].shape, dtype=torch.bfloat16, device=device)
    first = gradients(masked_convolution, inputs, slope)
    for _ in range(1 if device == "cpu" else 20):
        assert all(map(torch.equal, first, gradients(masked_convolution, inputs, slope)))


@pytest.mark.parametrize("garbage", [float("inf"), float("nan")])
@members
@devices
@pytest.mark.usefixtures("form")
def test_what_lies_above_the_diagonal_changes_nothing(name, garbage, device):
    length = 140
    inputs = arguments(name, length, torch.float32, device=device)
    above = torch.full((length, length), garbage, device=device).triu(1)
    clean = [inputs[0], torch.tril(inputs[1]), *inputs[2:]]
    dirty = [inputs[0], torch.tril(inputs[1]) + above, *inputs[2:]]
    slope = torch.randn(clean[0].shape, device=device)
    found = gradients(masked_convolution, dirty, slope)
    for ours, expected in zip(found, gradients(masked_convolution, clean, slope), strict=True):
        assert torch.equal(ours, expected)
    assert not found[2].triu(1).any()


@devices
def test_corner_of_a_longer_matrix(device):
    length = 100
    stored = torch.randn(128, 128, device=device, requires_grad=True)
    x = torch.randn(2, length, 8, device=device)
    y = masked_convolution(x, stored[:length, :length])
    assert torch.equal(y, masked_convolution(x, stored[:length, :length].contiguous()))
    y.square().sum().backward()
    assert stored.grad is not None
    assert stored.grad[:length, :length].any()
    assert not stored.grad[length:].any()
    assert not stored.grad[:, length:].any()


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0)])
@members
@devices
def test_any_order_in_memory(name, order, device):
    inputs = arguments(name, 140, torch.float32, device=device)
    slope = torch.randn(inputs[0].shape, device=device)

    def ordered(tensor):
        return tensor.permute(order).contiguous().permute([order.index(i) for i in range(3)])

    expected = gradients(masked_convolution, inputs, slope)
    moved = [ordered(a) if a.shape == slope.shape else a for a in inputs]
    found = gradients(masked_convolution, moved, ordered(slope))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@members
@devices
def test_gradients_of_some_arguments_only(name, device):
    inputs = arguments(name, 40, torch.float32, device=device)
    slope = torch.ones(inputs[0].shape, device=device)
    all_of_them = gradients(masked_convolution, inputs, slope)[1:]
    for wanted in range(len(inputs)):
        leaves = [a.clone().requires_grad_(i == wanted) for i, a in enumerate(inputs)]
        masked_convolution(*leaves).sum().backward()
        for i, leaf in enumerate(leaves):
            assert (leaf.grad is not None) == (i == wanted)
            if leaf.grad is not None:
                torch.testing.assert_close(leaf.grad, all_of_them[wanted])


def test_products_are_in_autocasts_precision_and_gradients_in_the_parameters():
    x, w, b = arguments("flat", 64, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y, dx, dw, _ = gradients(masked_convolution, [x, w, b], torch.ones_like(x))
        wide = masked_convolution(x.double(), w.double())
    half = gradients(masked_convolution, [x.bfloat16(), w, b], torch.ones_like(x).bfloat16())
    assert torch.equal(y, half[0])
    assert [t.dtype for t in half] == [torch.bfloat16] * 2 + [torch.float32] * 2
    assert (dx.dtype, dw.dtype, wide.dtype) == (torch.float32, torch.float32, torch.float64)


def test_plain_arithmetic_is_whole_for_every_kind_of_layer_and_leaves_what_was_set():
    def settings():
        cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
        parts: Any = cudnn.conv, cudnn.rnn, mkldnn.conv, mkldnn.rnn
        return cudnn.allow_tf32, *(part.fp32_precision for part in parts)

    before = settings()
    with plain_arithmetic():
        assert settings() == (False, *["ieee"] * 4)
    assert settings() == before


def test_empty_batch():
    x, w = torch.zeros(0, 5, 4, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    y, dx, dw = gradients(masked_convolution, [x, w], torch.zeros(0, 5, 4))
    assert y.shape == dx.shape == (0, 5, 4)
    assert not dw.any()


class Calls(TorchDispatchMode):
    """Keeps the names of the operators that run inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@devices
def test_operators_pass_opcheck(device):
    def leaf(*shape):
        return torch.randn(shape, device=device, requires_grad=True)

    x, w, b = leaf(2, 9, 4), leaf(2, 9, 9), leaf(2, 9)
    for bias in (b, None):
        torch.library.opcheck(masked_conv.forward, (x, w, bias))
    torch.library.opcheck(masked_conv.dx, (x, w))
    torch.library.opcheck(masked_conv.dw, (leaf(2, 9, 4), x, 2, torch.float32))


# Torch's compiler itself uses deprecated parts of torch.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("cpu", "aot_eager"),
        pytest.param("cpu", "inductor", marks=pytest.mark.slow),  # writes and builds C++
        pytest.param("cuda", "inductor", marks=pytest.mark.gpu),
    ],
)
def test_compiles_into_one_graph(device, backend):
    from torch._dynamo.backends.registry import lookup_backend

    def network(x, w, b):
        x = functional.layer_norm(x, x.shape[-1:])
        x = x + masked_convolution(x, w[0, : x.shape[1], : x.shape[1]], b[0])
        return masked_convolution(functional.gelu(x), w, b)

    shapes = [(2, 77, 8), (2, 77, 77), (2, 77)]
    inputs = [torch.randn(shape, device=device) / 9 for shape in shapes]
    slope = torch.randn(2, 77, 8, device=device)
    graphs, compile_graph = [], lookup_backend(backend)

    def keep(graph, given, **how):
        graphs.append(str(graph.graph))
        return compile_graph(graph, given, **how)

    torch.compiler.reset()
    compiled = torch.compile(network, fullgraph=True, backend=keep)
    expected = gradients(network, inputs, slope)
    torch.testing.assert_close(gradients(compiled, inputs, slope), expected, rtol=1e-4, atol=1e-4)
    assert "masked_conv" in graphs[0]  # an operator, whatever form this processor prefers


@pytest.fixture
def cuda(monkeypatch):
    """Makes torch describe a CUDA device that is not there: `cuda((7, 5), triton=True)`."""

    def pretend(capability, triton=True):
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        found = SimpleNamespace() if triton else None
        monkeypatch.setattr(masked_conv, "find_spec", lambda _: found)

    implementation.cache_clear()
    yield pretend
    implementation.cache_clear()


@pytest.mark.parametrize(
    ("capability", "triton", "dtype", "name", "why"),
    [
        ((9, 0), True, torch.bfloat16, "triton", "sm_90"),
        ((8, 0), True, torch.float16, "triton", "sm_80"),
        ((9, 0), True, torch.float32, "dense", "for half precision, not torch.float32"),
        ((7, 5), True, torch.float16, "dense", "need sm_80, the device is sm_75"),
        ((9, 0), False, torch.float16, "dense", "Triton is not installed"),
        ((9, 0), True, torch.float64, "dense", "for half precision, not torch.float64"),
    ],
)
def test_it_says_once_which_implementation_runs_and_why(
    capability, triton, dtype, name, why, cuda, caplog
):
    cuda(capability, triton)
    caplog.set_level(logging.INFO, "arch.kernels.masked_conv")
    for _ in range(3):
        found, reason = implementation(torch.device("cuda", 0), dtype)
        assert (found, why in reason) == (name, True)
    (record,) = caplog.records
    lacking = name == "dense" and dtype.itemsize == 2
    assert record.levelno == (logging.WARNING if lacking else logging.INFO)
    assert f"cuda:0 in {dtype}: {name} (" in record.getMessage()


HALF = torch.bfloat16


@pytest.mark.parametrize(
    ("chosen", "capability", "dtype", "name", "why"),
    [
        ("auto", (9, 0), HALF, "triton", "sm_90"),
        ("triton", (9, 0), HALF, "triton", "sm_90"),
        ("dense", (9, 0), HALF, "dense", "REMNANT_KERNELS is dense"),
        ("dense", (9, 0), torch.float32, "dense", "for half precision"),
        ("dense", (7, 5), HALF, "dense", "need sm_80"),
        (
            "triton",
            (7, 5),
            HALF,
            None,
            "cannot run on cuda:0 in torch.bfloat16: the Triton kernels",
        ),
        ("triton", (9, 0), torch.float32, None, "are for half precision, not torch.float32; unset"),
        ("Dense", (9, 0), HALF, None, "REMNANT_KERNELS is 'Dense'; allowed: auto, dense, triton;"),
        ("", (9, 0), HALF, None, "REMNANT_KERNELS is ''"),
    ],
)
def test_a_variable_chooses_the_kernels_where_they_can_run(
    chosen, capability, dtype, name, why, cuda, monkeypatch, caplog
):
    cuda(capability)
    monkeypatch.setenv("REMNANT_KERNELS", chosen)
    device = torch.device("cuda", 0)
    if name is None:
        with pytest.raises(ModelError, match=re.escape(why)) as refused:
            implementation(device, dtype)
        assert "\n" not in str(refused.value)
        return
    found, reason = implementation(device, dtype)
    assert (found, why in reason) == (name, True)
    unasked = capability < (8, 0)  # who asked for dense products is not warned of them
    assert [r.levelno for r in caplog.records] == ([logging.WARNING] if unasked else [])


def test_a_cpu_has_no_triton_kernels_and_still_counts_what_a_gpu_does(cuda, monkeypatch):
    cuda((9, 0))
    monkeypatch.setenv("REMNANT_KERNELS", "triton")
    with pytest.raises(ModelError, match=r"cannot run on cpu in .*16: the Triton kernels"):
        implementation(torch.device("cpu"), HALF)
    x, w = torch.ones(1, 2, 1), torch.ones(1, 2, 2)
    assert masked_conv.forward(x, w, None).flatten().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("processor", "length"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n", 1),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n", 256),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n", 1024),
        ("Intel64 Family 6 Model 158 Stepping 10, GenuineIntel", 1024),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n", math.inf),
        ("", math.inf),
    ],
)
def test_the_processor_chooses_the_form(processor, length, monkeypatch):
    monkeypatch.setattr(masked_conv, "describe_processor", lambda: processor)
    assert masked_conv.onednn_length.__wrapped__() == length


@pytest.mark.slow
@pytest.mark.parametrize("check", [compile_as_on_a_gpu, run_without_triton])
def test_on_machines_unlike_this_one(check, forked, tmp_path):
    """The compiler sees through a GPU's operators; without Triton all works and nothing is said."""
    process = forked.Process(target=import_anew, args=(check, tmp_path / "said"), daemon=True)
    process.start()
    process.join()
    assert (process.exitcode, (tmp_path / "said").read_text()) == (0, "")
