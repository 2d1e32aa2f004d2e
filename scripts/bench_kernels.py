"""The masked convolution against the dense products that can stand in for it.

    python -m scripts.bench_kernels
    python -m scripts.bench_kernels --device cuda --out DIR

Every form makes tril(W) x, and its gradients, from the same random operands; the forms take turns
in one process. On a CPU: one thread, eager. On CUDA: eager and compiled, in CUDA graphs, over
operands that rotate through more memory than the cache holds.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from arch.masked_conv import masked_convolution
from scripts import pages
from scripts.pages import Rows, natural

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


@dataclass(frozen=True)
class Timing:
    """One form's figures in one task.

    `ratio` is its time over that of `masked_convolution`; `tflops` are multiplications and
    additions on and below the diagonal, by its time; `tbs` are bytes of x, y and their gradients
    that have to move, by its time.
    """

    dtype: str
    length: int
    width: int
    batch: int
    backward: bool
    form: str
    mode: str
    microseconds: float
    ratio: float
    tflops: float
    tbs: float


def main(words: list[str] | None = None) -> int:
    """Measures and prints the tables; the exit code."""
    options = _options(sys.argv[1:] if words is None else words)
    return pages.run("kernels", options, measure_all)


def measure_all(options: argparse.Namespace) -> Iterator[tuple[str, Rows]]:
    """The page of all sizes."""
    torch.manual_seed(0)
    rows: list[Timing] = []
    left_out: list[str] = []
    start = time.monotonic()
    for width in options.widths:
        for backward in (True, False):
            for length in options.lengths:
                batch = max(1, options.tokens // length)
                task = (options.dtype, length, width, batch, backward)
                spent = time.monotonic() - start
                print(f"{spent:4.0f} s  T={length} D={width}", file=sys.stderr, flush=True)
                if spent > options.seconds:
                    left_out.append(f"T={length}, D={width}: no time left (--seconds)")
                else:
                    rows += measure(*task, options.device, options.rounds)
    yield kernels_page(rows, left_out, options), [asdict(row) for row in rows]


def measure(
    dtype: str, length: int, width: int, batch: int, backward: bool, device: str, rounds: int
) -> list[Timing]:
    """Times all forms of one size in turns; ours is the first row."""
    timers: dict[tuple[str, str], Timer] = {}
    torch.compiler.reset()
    for form, mode, call, operands in calls(dtype, length, width, batch, backward, device):
        timers[form, mode] = graph_timer(call, operands) if device == "cuda" else cpu_timer(call)
    readings = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            readings[name].append(timer())
    # A CPU has other work to do, which only ever adds; a GPU's clock goes up and down.
    typical = median if device == "cuda" else min
    products = 3 if backward else 1
    flops = products * batch * width * length * (length + 1)
    moved = products * DTYPES[dtype].itemsize * length * (2 * batch * width + (length + 1) // 2)
    rows = []
    for (form, mode), taken in readings.items():
        seconds = typical(taken)
        rows.append(
            Timing(
                *(dtype, length, width, batch, backward, form, mode),
                microseconds=seconds * 1e6,
                ratio=seconds / typical(readings[OURS, "eager"]),
                tflops=flops / seconds / 1e12,
                tbs=moved / seconds / 1e12,
            )
        )
    return rows


def calls(
    dtype: str, length: int, width: int, batch: int, backward: bool, device: str
) -> Iterator[tuple[str, str, Call, int]]:
    """Yields (form, mode, what to time, how many sets of operands it rotates through)."""
    x = torch.randn(batch, length, width, device=device, dtype=DTYPES[dtype])
    sets = 1 if device == "cpu" else 2 + 200_000_000 // x.nbytes
    inputs = [torch.randn_like(x).requires_grad_() for _ in range(sets)]
    slopes = [torch.randn_like(x) for _ in range(sets)]
    w = (torch.randn(length, length, device=device) / length**0.5).to(x.dtype).requires_grad_()
    for name, form in {OURS: masked_convolution, **DENSE}.items():
        modes: dict[str, Form] = {"eager": form}
        if device == "cuda" and name != OURS:
            modes["compiled"] = torch.compile(form, dynamic=False)
        for mode, chosen in modes.items():
            yield name, mode, _call(chosen, inputs, w, slopes if backward else None), sets


def _call(form: Form, inputs: list[Tensor], w: Tensor, slopes: list[Tensor] | None) -> Call:
    def call(number: int) -> object:
        with torch.set_grad_enabled(slopes is not None):
            y = form(inputs[number], w)
        if slopes is None:
            return y
        return torch.autograd.grad(y, (inputs[number], w), slopes[number])

    return call


def cpu_timer(call: Call) -> Timer:
    """Returns a timer of single calls, in seconds of this process: others' turns do not count."""
    call(0)

    def seconds() -> float:
        start = time.process_time()
        call(0)
        return time.process_time() - start

    return seconds


def graph_timer(call: Call, operands: int, at_least: float = 0.004) -> Timer:
    """Returns a timer of a CUDA graph, free of the host's time to launch.

    Nothing in the call may wait for the device. The graph goes through all sets of operands, so
    that none is found in the cache where the last call left it, and is replayed for `at_least`
    seconds.
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
    replays = 1 + int(at_least / (seconds(1) * operands))
    return lambda: seconds(replays)


def kernels_page(rows: list[Timing], left_out: list[str], options: argparse.Namespace) -> str:
    """Returns the figures as a page in Markdown."""
    cpu = options.device == "cpu"
    lines = [
        f"# Masked convolution on {'one CPU thread' if cpu else 'a GPU'}",
        "",
        f"Measured by `{options.command}`",
        f"on {pages.hardware(options.device, options.threads, 'triton')}.",
        "",
        "The forms of a line took turns in one process. A form's column is its time over that of"
        f" `{OURS}`" + (";" if cpu else ", eager / compiled;") + " `least` is the best of them.",
        f"A time is the {'least' if cpu else 'median'} of the turns"
        + (", in CPU seconds." if cpu else "."),
        "TFLOP/s count the lower triangle only; TB/s count each operand once a product.",
    ]
    for dtype, backward in dict.fromkeys((row.dtype, row.backward) for row in rows):
        some = [row for row in rows if (row.dtype, row.backward) == (dtype, backward)]
        lines += ["", f"## {dtype}, forward{' + backward' if backward else ''}", "", *_table(some)]
    if left_out:
        lines += ["", "## Not measured", "", *(f"- {line}" for line in left_out)]
    return "\n".join(lines) + "\n"


def _table(rows: list[Timing]) -> list[str]:
    titles = ["T", "D", "B", "ours, µs", "TFLOP/s", "TB/s", "least", *DENSE]
    lines = []
    for length, width in dict.fromkeys((row.length, row.width) for row in rows):
        ours, *others = (row for row in rows if (row.length, row.width) == (length, width))
        cells: list[Any] = [length, width, ours.batch, f"{ours.microseconds:.1f}"]
        cells += [f"{ours.tflops:.3g}", f"{ours.tbs:.3g}"]
        cells += [f"{min(row.ratio for row in others):.2f}"]
        cells += [" / ".join(f"{r.ratio:.2f}" for r in others if r.form == form) for form in DENSE]
        lines.append(cells)
    return pages.markdown_table(titles, lines)


def _options(words: list[str]) -> argparse.Namespace:
    parser = pages.parser(__doc__)
    parser.add_argument("--dtype", choices=DTYPES, help="cpu: float32, cuda: bfloat16")
    parser.add_argument(
        "--lengths", type=natural, nargs="+", metavar="T", default=(64, 128, 256, 512, 1024)
    )
    parser.add_argument("--widths", type=natural, nargs="+", metavar="D")
    parser.add_argument("--tokens", type=natural, help="B T; cpu: 8192, cuda: 65536")
    parser.add_argument("--rounds", type=natural, help="turns; cpu: 40, cuda: 15")
    parser.add_argument("--seconds", type=float, default=3600, help="begin nothing after so long")
    options = parser.parse_args(words)
    cuda = options.device == "cuda"
    options.dtype = options.dtype or ("bfloat16" if cuda else "float32")
    options.widths = options.widths or ((512, 256, 1024) if cuda else (256,))
    options.tokens = options.tokens or (65536 if cuda else 8192)
    options.rounds = options.rounds or (15 if cuda else 40)
    options.threads, options.command = 1, pages.command("scripts.bench_kernels", words)
    return options


if __name__ == "__main__":
    sys.exit(main())
