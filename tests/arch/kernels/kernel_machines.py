"""The masked convolution on machines unlike this one, in a process that imports `arch` anew."""

import contextlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def import_anew(check: Callable[[], None], said: Path) -> None:
    """Runs a check as if nothing of `arch` had been imported; what is printed goes to a file."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "arch"]:
        del sys.modules[name]
    torch.set_num_threads(1)
    with said.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        check()


def run_without_triton() -> None:
    """A product and its gradients where Triton is not installed."""
    sys.modules["triton"] = None  # pyright: ignore[reportArgumentType]
    from arch.kernels import masked_conv

    masked_conv.is_one_node = lambda x: True
    weight = torch.ones(2, 2, requires_grad=True)
    masked_conv.masked_convolution(torch.ones(1, 2, 3), weight).sum().backward()


def compile_as_on_a_gpu() -> None:
    """Graphs for the compiler where torch is CUDA's: none of them holds an operator of ours."""
    from torch._dynamo.backends.common import aot_autograd

    torch.version.cuda = "13.0"
    from arch.kernels import masked_conv

    torch.version.cuda = None
    seen: list[str] = []

    def compiler(made: Any, inputs: Any) -> Any:
        seen.append(str(made.graph))
        return made.forward

    def inputs(*shape: int) -> Tensor:
        return torch.randn(shape, requires_grad=True)

    warnings.simplefilter("ignore")  # torch's compiler uses deprecated parts of torch
    compiled = torch.compile(
        masked_conv.masked_convolution, backend=aot_autograd(fw_compiler=compiler)
    )
    compiled(inputs(2, 9, 4), inputs(2, 9, 9), inputs(2, 9)).sum().backward()
    assert len(seen) == 2
    assert not any("remnant" in graph for graph in seen), seen
