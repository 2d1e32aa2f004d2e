"""The masked convolution against the dense products that can stand in for it.

    python -m scripts.bench.kernels
    python -m scripts.bench.kernels --device cuda --out DIR

Every form makes tril(W) x, and its gradients, from the same random operands; the forms take turns
in one process, each time in another order. On a CPU: one thread, eager. On CUDA: eager and
compiled, in CUDA graphs, over operands that rotate through more memory than the cache holds.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from itertools import groupby, product
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from arch.kernels.masked_conv import implementation, masked_convolution
from scripts.bench import shared as bench

Form = Callable[[Tensor, Tensor], Tensor]
Call = Callable[[int], object]  # works on the operands of that number
Timer = Callable[[], float]  # returns the seconds that one call took
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
OURS = "masked_convolution"
DENSE: dict[str, Form] = {
    "tril(W) @ x": lambda x, w: torch.tril(w) @ x,
    "bmm": lambda x, w: torch.bmm(torch.tril(w).expand(len(x), -1, -1), x),
    "einsum": lambda x, w: torch.einsum("ij,bjd->bid", torch.tril(w), x),
    "Conv1d": lambda x, w: functional.conv1d(x, torch.tril(w)[..., None]),
}


def main(words: list[str] | None = None) -> int:
    """Measures and prints the tables; the exit code."""
    parser = bench.parser(__doc__)
    add = parser.add_argument
    add("--dtype", choices=DTYPES, help="of operands; float32, on CUDA bfloat16")
    add("--lengths", type=bench.natural, nargs="+", default=[64, 128, 256, 512, 1024], help="T")
    add("--widths", type=bench.natural, nargs="+", help="D; 256, on CUDA 512, 256 and 1024")
    add("--tokens", type=bench.natural, help="B T; 8192, on CUDA 65536")
    add("--rounds", type=bench.natural, help="turns; 25, on CUDA 15")
    add("--seconds", type=float, default=3600.0, help="begin nothing after so long (%(default)s)")
    both = {"dtype": ("float32", "bfloat16"), "tokens": (8192, 65536), "rounds": (25, 15)}
    options = bench.parse(parser, words, threads=(1, 1), widths=([256], [512, 256, 1024]), **both)
    return bench.run("kernels", options, measure)


def measure(options: argparse.Namespace) -> bench.Pages:
    """The page of all sizes."""
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    start = time.monotonic()
    for width, backward, length in product(options.widths, (True, False), options.lengths):
        spent = time.monotonic() - start
        print(f"{spent:4.0f} s  T={length} D={width}", file=sys.stderr, flush=True)
        if spent > options.seconds:
            left_out.append(f"T={length}, D={width}: no time left (--seconds)")
        else:
            sizes = options.dtype, length, width, max(1, options.tokens // length), backward
            rows += timings(*sizes, options.device, options.rounds)
    yield kernels_page(rows, left_out, options), rows


def timings(
    dtype: str, length: int, width: int, batch: int, backward: bool, device: str, rounds: int
) -> Iterator[dict[str, Any]]:
    """Times all forms of one size in turns; ours is the first row.

    `ratio` is a form's time over ours, `tflops` are multiplications and additions on and below the
    diagonal by its time, `tbs` the bytes of x, y and their gradients that have to move.
    """
    torch.compiler.reset()
    timers = {
        (form, mode): graph_timer(call, operands) if device == "cuda" else cpu_timer(call)
        for form, mode, call, operands in calls(dtype, length, width, batch, backward, device)
    }
    readings = bench.in_turns(timers, rounds)
    about = {"dtype": dtype, "length": length, "width": width, "batch": batch, "backward": backward}
    products = 3 if backward else 1
    flops = products * batch * width * length * (length + 1)
    moved = products * DTYPES[dtype].itemsize * length * (2 * batch * width + (length + 1) // 2)
    for (form, mode), taken in readings.items():
        seconds = median(taken)
        yield {
            **about,
            "form": form,
            "mode": mode,
            "microseconds": seconds * 1e6,
            "ratio": seconds / median(readings[OURS, "eager"]),
            "tflops": flops / seconds / 1e12,
            "tbs": moved / seconds / 1e12,
        }


def calls(
    dtype: str, length: int, width: int, batch: int, backward: bool, device: str
) -> Iterator[tuple[str, str, Call, int]]:
    """Yields (form, mode, what to time, how many sets of operands it rotates through)."""
    x = torch.randn(batch, length, width, device=device, dtype=DTYPES[dtype])
    sets = 1 if device == "cpu" else 2 + 200_000_000 // x.nbytes
    inputs = [torch.randn_like(x).requires_grad_() for _ in range(sets)]
    slopes = [torch.randn_like(x) for _ in range(sets)]
    w = (torch.randn(length, length, device=device) / length**0.5).to(x.dtype).requires_grad_()

    def call(form: Form, number: int) -> object:
        with torch.set_grad_enabled(backward):
            y = form(inputs[number], w)
        return torch.autograd.grad(y, (inputs[number], w), slopes[number]) if backward else y

    for name, form in {OURS: masked_convolution, **DENSE}.items():
        yield name, "eager", lambda number, form=form: call(form, number), sets
        if device == "cuda":
            compiled = torch.compile(form, dynamic=False)
            yield name, "compiled", lambda number, form=compiled: call(form, number), sets


def cpu_timer(call: Call) -> Timer:
    """Returns a timer of single calls, in seconds of this process: others' turns do not count.

    A call comes before each that is timed: how much memory the allocator holds, and where, is then
    this form's own doing.
    """

    def seconds() -> float:
        call(0)
        start = time.process_time()
        call(0)
        return time.process_time() - start

    return seconds


REPLAYED = 0.004
"""Seconds that one reading of a CUDA graph takes, at least."""


def graph_timer(call: Call, operands: int) -> Timer:
    """Returns a timer of a CUDA graph, free of the host's time to launch.

    Nothing in the call may wait for the device. The graph goes through all sets of operands, so
    that none is found in the cache where the last call left it, and is replayed for
    `REPLAYED` seconds.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for number in [*range(operands)] * 2:
            call(number)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(operands):
            call(number)

    def seconds(replays: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / (replays * operands)

    seconds(1)
    replays = 1 + int(REPLAYED / (seconds(1) * operands))
    return lambda: seconds(replays)


def kernels_page(
    rows: list[dict[str, Any]], left_out: list[str], options: argparse.Namespace
) -> str:
    """Returns the figures as a page in Markdown."""
    cpu = options.device == "cpu"
    name, why = implementation(torch.device(options.device), DTYPES[options.dtype])
    lines = [
        f"# Masked convolution on {'one CPU thread' if cpu else 'a GPU'}\n",
        f"Measured by `{options.command}`",
        f"on {bench.hardware(options, 'triton')}.\n",
        f"`{OURS}` was {name}: {why}.",
        "The forms of a line took turns in one process. A form's column is its time over that of"
        f" `{OURS}`" + (";" if cpu else ", eager / compiled;") + " `least` is the best of them.",
        "A time is the median of the turns" + (", in CPU seconds." if cpu else "."),
        "TFLOP/s count the lower triangle only; TB/s count each operand once a product.",
    ]
    titles = ["T", "D", "B", "ours, µs", "TFLOP/s", "TB/s", "least", *DENSE]
    rows = sorted(rows, key=lambda row: not row["backward"])
    for (dtype, backward), group in groupby(rows, lambda r: (r["dtype"], r["backward"])):
        cells = []
        for _, (ours, *others) in groupby(group, lambda r: (r["length"], r["width"])):
            dense = {f: [r["ratio"] for r in others if r["form"] == f] for f in DENSE}
            cells.append([
                *(ours[name] for name in ("length", "width", "batch")),
                f"{ours['microseconds']:.1f}", f"{ours['tflops']:.3g}", f"{ours['tbs']:.3g}",
                f"{min(map(min, dense.values())):.2f}",
                *(" / ".join(f"{ratio:.2f}" for ratio in dense[form]) for form in DENSE),
            ])  # fmt: skip
        lines.append(f"\n## {dtype}, forward{' + backward' if backward else ''}\n")
        lines.append(bench.table(titles, cells).rstrip())
    if left_out:
        lines += ["\n## Not measured\n", *(f"- {line}" for line in left_out)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
