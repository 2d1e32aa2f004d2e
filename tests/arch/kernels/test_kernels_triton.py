"""The Triton kernels without a GPU: numbers by the interpreter, machine code by the compiler."""

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

KERNELS = ("forward", "dx", "dw")
FEATURES = 512


def _release(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version(package).split(".")[:2])


class Launch(NamedTuple):
    """What the host side hands to a kernel."""

    kernel: Any
    arguments: tuple
    constants: dict[str, Any]


def _calls(
    length: int, dtype: torch.dtype, batch: int, row: int
) -> dict[str, Callable[[], object]]:
    """Calls of the host side, by the name of the product; features inside rows of so many."""
    from arch.kernels import triton as kernels

    x, g = torch.empty(2, batch, length, row, dtype=dtype)[..., :FEATURES]
    w, b = torch.empty(1, length, length, dtype=dtype), torch.empty(1, length)
    return {
        "forward": lambda: kernels.forward(x, w, b),
        "dx": lambda: kernels.dx(g, w),
        "dw": lambda: kernels.dw(g, x, torch.zeros(1, length, length)),
    }


@pytest.fixture
def launches(monkeypatch, tmp_path):
    """Records instead of launching: `launches("dw", 512, torch.bfloat16, "sm_90")`.

    The launch of the kernel that the call is named after comes first.
    """
    from arch.kernels import triton as kernels

    recorded: list[Launch] = []
    monkeypatch.setattr(kernels, "run", lambda k, _, *a, **c: recorded.append(Launch(k, a, c)))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def record(call, length, dtype, architecture, batch=64, row=FEATURES):
        monkeypatch.setattr(kernels, "device_of", lambda _: (architecture, 132))
        _calls(length, dtype, batch, row)[call]()
        return sorted(recorded, key=lambda launch: "BLOCK_K" in launch.constants)[::-1]

    return record


class Code(NamedTuple):
    """A kernel's machine code, as far as its speed can be read from it."""

    ptx: str
    spilled: int  # bytes a thread
    shared: int  # bytes a program

    def copies(self) -> set[int]:
        """How many bytes the asynchronous copies to shared memory take at a time."""
        pattern = r"cp\.async\.c[ag]\.shared\.global \[.*?\], \[.*?\], 0x(\w+)"
        return {int(size, 16) for size in re.findall(pattern, self.ptx)}


def compiled(launch: Launch, architecture: str) -> Code:
    """Compile as the launch would on that architecture: the same types and known integers."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    pointers = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
    constants, signature, attributes = dict(launch.constants), {}, {}
    given = ("num_warps", "num_stages")
    options = {name: constants.pop(name) for name in given if name in constants}
    for place, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[place] if place < len(launch.arguments) else None
        fixed = isinstance(value, int) and value == 1 and not parameter.do_not_specialize
        if value is None or fixed:
            signature[parameter.name] = "constexpr"
            constants.setdefault(parameter.name, value)
            continue
        pointer = isinstance(value, torch.Tensor)
        signature[parameter.name] = pointers[value.dtype] if pointer else "i32"
        divisible = (value.data_ptr() if pointer else value) % 16 == 0
        if divisible and not parameter.do_not_specialize:
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, attributes)
    target = GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
    made = triton.compile(source, target=target, options=options)
    return Code(made.asm["ptx"], _spilled(made.asm["cubin"]), made.metadata.shared)


def _spilled(cubin: bytes) -> int:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    file = Path(os.environ["TRITON_CACHE_DIR"]) / "kernel.cubin"
    file.write_bytes(cubin)
    command = [str(tool), "--dump-resource-usage", str(file)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", usage)
    assert found, usage
    return int(found[1])


@pytest.mark.first(1)
@pytest.mark.parametrize("call", KERNELS)
@pytest.mark.parametrize("length", [200, 2048])
def test_half_precision_on_sm_90_multiplies_asynchronously(call, length, launches):
    code = compiled(launches(call, length, torch.bfloat16, "sm_90")[0], "sm_90")
    assert code.ptx.count("wgmma.mma_async") >= 4
    # A wait for all but one or more products: the next load overlaps with them.
    assert re.search(r"wgmma\.wait_group\.sync\.aligned\s+[1-9]", code.ptx)
    _loads_sixteen_bytes_and_spills_nothing(code)


@pytest.mark.first(1)
@pytest.mark.parametrize("call", KERNELS)
def test_half_precision_on_sm_80_uses_tensor_cores(call, launches):
    code = compiled(launches(call, 512, torch.bfloat16, "sm_80")[0], "sm_80")
    assert code.ptx.count("mma.sync.aligned.m16n8k16") >= 16
    assert "cp.async.wait_group" in code.ptx
    _loads_sixteen_bytes_and_spills_nothing(code)


def _loads_sixteen_bytes_and_spills_nothing(code: Code) -> None:
    assert code.copies() == {16}
    assert not re.search(r"ld\.global[.\w]*\.[bu]16", code.ptx)
    assert code.spilled == 0


@pytest.mark.slow
@pytest.mark.parametrize("call", KERNELS)
@pytest.mark.parametrize(("architecture", "length"), [("sm_100", 1024), ("sm_120", 200)])
def test_other_devices_use_tensor_cores_and_spill_nothing(call, architecture, length, launches):
    code = compiled(launches(call, length, torch.bfloat16, architecture)[0], architecture)
    assert re.search("mma|tcgen05", code.ptx)
    assert code.spilled == 0


@pytest.mark.slow
@pytest.mark.parametrize("call", KERNELS)
@pytest.mark.parametrize("architecture", ["sm_86", "sm_89", "sm_120"])
def test_devices_with_less_shared_memory_take_large_tiles(call, architecture, launches):
    launch = launches(call, 512, torch.bfloat16, architecture)[0]
    sides = {launch.constants.get(name, 128) for name in ("BLOCK", "BLOCK_M", "BLOCK_N")}
    assert (sides, launch.constants["BLOCK_K"]) == ({128}, 32)
    code = compiled(launch, architecture)
    _loads_sixteen_bytes_and_spills_nothing(code)
    assert code.shared <= 99 * 1024  # what a program may have of the 100 KB


def _inside(row: int, start: int, gap: int = 0) -> torch.Tensor:
    """x `(2, 64, 32)` inside rows of that many features, and of a gap between the sequences."""
    stored = torch.randn(2 * (64 * row + gap)).bfloat16()
    return stored.as_strided((2, 64, 32), (64 * row + gap, row, 1), start)


@pytest.mark.parametrize("call", KERNELS)
@pytest.mark.parametrize(
    ("x", "copied"),
    [
        (_inside(32, 0), False),
        (_inside(48, 8), False),
        (_inside(48, 1), True),
        (_inside(35, 0), True),  # a kernel mixer's first tap
        (_inside(40, 0), True),  # on 16 bytes, which Triton does not know
        (_inside(32, 0, gap=8), True),
        (torch.randn(2, 32, 64).bfloat16().mT, True),
        (torch.randn(2, 64, 40).bfloat16(), False),  # a copy would be no better
    ],
)
def test_an_input_on_an_odd_place_is_copied_and_others_are_not(call, x, copied, monkeypatch):
    from arch.kernels import triton as kernels

    given: list[tuple[torch.Tensor, ...]] = []
    monkeypatch.setattr(kernels, "run", lambda k, _, *a, **c: given.append(a))
    weight = torch.empty(1, 64, 64, dtype=torch.bfloat16)
    {
        "forward": lambda: kernels.forward(x, weight, None),
        "dx": lambda: kernels.dx(x, weight),
        "dw": lambda: kernels.dw(x, x, torch.zeros(1, 64, 64)),
    }[call]()
    for read in given[0][: 2 if call == "dw" else 1]:
        assert torch.equal(read, x)
        assert (read.data_ptr() != x.data_ptr()) == copied
        assert read.data_ptr() % 16 == 0
        assert read.shape[2] % 16 or all(stride % 16 == 0 for stride in read.stride()[:2])


@pytest.mark.slow
@pytest.mark.parametrize("call", KERNELS)
@pytest.mark.parametrize("row", [FEATURES + 3, FEATURES + 8])
def test_features_inside_longer_rows_load_sixteen_bytes(call, row, launches):
    launch = launches(call, 512, torch.bfloat16, "sm_90", row=row)[0]
    _loads_sixteen_bytes_and_spills_nothing(compiled(launch, "sm_90"))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "sm_120"])
def test_tiles_follow_the_shape_and_fill_the_device(kernel, architecture):
    from arch.kernels import triton as kernels

    for batch, length, width in itertools.product(
        (1, 64), (1, 16, 100, 512, 2048, 8192), (1, 24, 512)
    ):
        tile = kernels.choose_tile(kernel, architecture, 132, batch, length, width, 1)
        assert min(tile.rows, tile.columns, tile.depth) >= 16
        assert tile.rows % tile.depth == 0 or kernel == "dw"
        assert tile.warps & (tile.warps - 1) == 0
        assert 1 <= tile.splits <= batch
        alone = kernels.choose_tile(kernel, architecture, 132, 1, length, width, 1)
        assert tile.depth == alone.depth  # sums have one order in every batch
        blocks = -(-length // tile.rows)
        if kernel == "dw":
            programs = tile.splits * blocks * (blocks + 1) // 2
            assert tile.rows == tile.columns
            assert programs >= 2 * 132 or tile.splits == batch
        else:
            programs = batch * blocks * -(-width // tile.columns)
            assert programs >= 2 * 132 or (tile.rows <= 64 and tile.columns <= 32)


def test_a_single_position_compiles(launches):
    for launch in launches("dw", 1, torch.float16, "sm_90"):
        assert compiled(launch, "sm_90").spilled == 0


def test_the_compiler_sees_every_launch(monkeypatch):
    """On tensors that are not there, of a device that is not there."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from arch.kernels import masked_conv

    traced: Any = masked_conv  # a private attribute has what the compiler traces
    monkeypatch.setattr(masked_conv, "implementation", lambda *_: ("triton", "a test"))

    def products(x, w):
        y = traced.forward._abstract_fn(x, w, None)
        gradient = traced.dw._abstract_fn(y, x, 1, torch.float32)
        return traced.dx._abstract_fn(y, w), gradient

    with FakeTensorMode():
        x = torch.empty(2, 64, 32, dtype=torch.bfloat16)
        graph = make_fx(products)(x, torch.empty(1, 64, 64)).graph
    launches = [node for node in graph.nodes if "triton_kernel_wrapper" in str(node.target)]
    assert len(launches) == 4


@pytest.mark.slow
@pytest.mark.skipif(
    _release("triton") < (3, 7) and _release("numpy") >= (2, 4),
    reason="the interpreter of Triton before 3.7 cannot loop with numpy 2.4",
)
def test_interpreted_kernels_are_as_near_to_float64_as_dense_products():
    command = [sys.executable, "-m", "tests.arch.kernels.kernel_interpreter"]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
