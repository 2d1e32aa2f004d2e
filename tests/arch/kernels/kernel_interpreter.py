"""The Triton kernels on a CPU, in Triton's interpreter.

    python -m tests.arch.kernels.kernel_interpreter

A process of its own, because Triton decides at import whether it interprets. Sizes are small: a
step of a kernel's loop takes milliseconds here. The interpreter cannot multiply bfloat16.
"""

import os
from functools import partial

os.environ["TRITON_INTERPRET"] = "1"

import torch

from arch.kernels import masked_conv
from arch.kernels import triton as masked_conv_triton
from tests.arch.kernels.kernel_cases import compare

TILE = masked_conv_triton.Tile(rows=32, columns=16, depth=16, warps=4, splits=2)

# Whole tiles and ragged ends, of positions and of features; heads are the most general case.
CASES = [
    ("bare", 32, torch.float32, 32),
    ("headed", 40, torch.float32, 24),
    ("headed", 33, torch.float16, 24),
    ("flat", 8, torch.float32, 5),
]


def main() -> None:
    """Compare every case with float64 and print a line for each."""
    torch.manual_seed(0)
    masked_conv.implementation = lambda device, dtype: ("triton", "a test")
    masked_conv.is_one_node = lambda x: True
    masked_conv_triton.choose_tile = lambda *_: TILE
    for name, length, dtype, features in CASES:
        compare(name, length, dtype, features=features)
        print("agrees:", name, length, dtype, features, flush=True)
    for garbage in (float("nan"), float("inf")):
        ignores(garbage)
        print("ignores:", garbage, flush=True)


def ignores(garbage: float) -> None:
    """Assert that neither W above its diagonal nor x beyond its last row reaches a result."""
    length, features = 40, 24
    x = torch.full((2, length + 32, features), garbage)[:, :length]
    x.copy_(torch.randn(x.shape))
    w = torch.randn(1, length, length)
    dirty = w.masked_fill(torch.ones_like(w).triu(1).bool(), garbage)
    for product in (partial(masked_conv_triton.forward, bias=None), masked_conv_triton.dx):
        assert torch.equal(product(x, weight=dirty), product(x, weight=w.tril()))
        assert product(x, weight=dirty).isfinite().all()


if __name__ == "__main__":
    main()
