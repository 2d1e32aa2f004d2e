"""The masked convolution against the dense products that can stand in for it.

    python -m scripts.bench_kernels --device cpu
    python -m scripts.bench_kernels --device cuda

Every form makes tril(W) x, and its gradients, from the same random operands. On a CPU: one thread,
eager. On CUDA: eager and compiled, in CUDA graphs, over operands that rotate through more memory
than the cache holds. Writes kernels-DEVICE.csv, .md and, if matplotlib is there, .png.
"""

import argparse
import runpy
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from arch.kernels import masked_convolution, normed_convolution, table
from eval.commands.options import positive
from scripts.kernel_report import OURS, Row, Task, page, plot
from scripts.kernel_timing import (
    DTYPES,
    Call,
    Peak,
    cpu_timer,
    graph_timer,
    in_turns,
    misfits,
    peak,
    reason,
)
from scripts.pages import write_page, write_table

# Makes y from x and W, and from a bias and a residual, or a bias and a norm's scale and shift.
Form = Callable[..., Tensor]
POSITION_MAJOR = ", position-major"  # what follows the name of a form that reads (T, B, D)

DENSE: dict[str, Form] = {
    "tril(W) @ x": lambda x, w: torch.tril(w) @ x,
    "bmm": lambda x, w: torch.bmm(torch.tril(w).expand(len(x), -1, -1), x),
    "einsum": lambda x, w: torch.einsum("ij,bjd->bid", torch.tril(w), x),
    "Conv1d": lambda x, w: functional.conv1d(x, torch.tril(w)[..., None]),
    "mm" + POSITION_MAJOR: lambda x, w: torch.mm(torch.tril(w), x.flatten(1)).view_as(x),
}


def main() -> int:
    """Measure and write the tables; the exit code."""
    options = _options()
    cuda = options.device == "cuda"
    if cuda and not torch.cuda.is_available():
        print("error: --device cuda: there is no CUDA device here; use cpu", file=sys.stderr)
        return 2
    try:
        if options.tuned:
            table.TUNED.update(_tiles(options.tuned))
        options.out.mkdir(parents=True, exist_ok=True)
        _measure_all(options)
    except (_TableError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _measure_all(options: argparse.Namespace) -> None:
    cuda = options.device == "cuda"
    torch.manual_seed(0)
    if not cuda:
        torch.set_num_threads(1)
    limit = peak(DTYPES[options.dtype]) if cuda else None
    rows: list[Row] = []
    left_out: dict[Task, str] = {}
    start = time.monotonic()
    for task in _tasks(options):
        spent = time.monotonic() - start
        if spent > options.seconds:
            left_out[task] = "for want of time"
            continue
        print(f"{spent:4.0f} s  T={task.length} D={task.width} {task.kind()}", flush=True)
        found = measure(task, options.device, options.rounds, limit)
        if not found:
            left_out[task] = f"{OURS} does not run here"
        rows += found
        _write(rows, left_out, options, limit)
    _write(rows, left_out, options, limit)
    print(options.out.joinpath(f"kernels-{options.device}.md").read_text(encoding="utf-8"))
    if cuda and not plot(rows, options.out / "kernels-cuda.png"):
        print("no plot: matplotlib is not installed")


def measure(task: Task, device: str, rounds: int, limit: Peak | None) -> list[Row]:
    """Time all forms of a task in turns; ours is the first row, and without it there is none."""
    if limit:
        torch.compiler.reset()
    timers = {}
    for form, mode, call, operands in calls(task, device):
        try:
            timers[form, mode] = graph_timer(call, operands) if limit else cpu_timer(call)
        except misfits() as error:
            print(f"       not timed: {form} {mode}: {reason(error)}", flush=True)
            if form == OURS:
                return []
    readings = in_turns(timers, rounds)
    # A CPU has other work to do, which only ever adds; a GPU's clock goes up and down.
    typical = median if limit else min
    flops, moved, least = _work(task, limit)
    rows = []
    for (form, mode), taken in readings.items():
        seconds = typical(taken)
        rows.append(
            Row(
                **asdict(task),
                form=form,
                mode=mode,
                microseconds=seconds * 1e6,
                ratio=seconds / typical(readings[OURS, "eager"]),
                tflops=flops / seconds / 1e12,
                tbs=moved / seconds / 1e12,
                roofline=least / seconds if least else None,
            )
        )
    return rows


def calls(task: Task, device: str) -> Iterator[tuple[str, str, Call, int]]:
    """Yield (form, mode, what to time, how many sets of operands it rotates through)."""
    dtype, sizes = DTYPES[task.dtype], (task.batch, task.length, task.width)
    own = torch.float32 if task.autocast else dtype
    x = torch.randn(sizes, device=device, dtype=own)
    sets = 1 if device == "cpu" else 2 + 200_000_000 // x.nbytes
    inputs = [torch.randn_like(x) for _ in range(sets)]
    slopes = [torch.randn_like(x, dtype=dtype) for _ in range(sets)]
    w = torch.randn(task.length, task.length, device=device, dtype=own) / task.length**0.5
    bias = torch.randn(task.length, device=device, dtype=own)
    others = [[] for _ in inputs]
    if task.epilogue:
        others = [[bias, torch.randn_like(x)] for _ in inputs]
    if task.norm:
        others = [[bias, *torch.randn(2, task.width, device=device, dtype=own)] for _ in inputs]

    for name, mode, form in _forms(task, device):
        order = (lambda t: t.transpose(0, 1)) if name.endswith(POSITION_MAJOR) else (lambda t: t)
        operands = [
            [_leaf(order(t) if t.dim() == 3 else t) for t in (a, w, *more)]
            for a, more in zip(inputs, others, strict=True)
        ]
        gradients = [order(slope).contiguous() for slope in slopes]
        call = _backward(form, operands, gradients) if task.backward else _forward(form, operands)
        yield name, mode, call, sets


def _forms(task: Task, device: str) -> Iterator[tuple[str, str, Form]]:
    """Yield (name, mode, form), ours first."""
    if task.autocast:
        dtype = DTYPES[task.dtype]
        yield OURS, "eager", _autocast(masked_convolution, device, dtype)
        yield "reference", "eager", _autocast(_reference, device, dtype)
        return
    forms: dict[str, Form] = {}
    if task.norm:
        yield OURS, "eager", _normed
        forms["masked_convolution after LayerNorm"] = _unfused
    else:
        yield OURS, "eager", masked_convolution
        if device == "cuda":
            yield OURS + POSITION_MAJOR, "eager", _ours_position_major
    for name, product in DENSE.items():
        around = _with_norm if task.norm else _with_epilogue
        forms[name] = around(product, name.endswith(POSITION_MAJOR))
    for name, form in forms.items():
        yield name, "eager", form
        if device == "cuda":
            yield name, "compiled", torch.compile(form, dynamic=False)


def _normed(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return normed_convolution(x, w, b, scale=scale, shift=shift)


def _unfused(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return masked_convolution(functional.layer_norm(x, x.shape[-1:], scale, shift), w, b, x)


def _ours_position_major(x: Tensor, w: Tensor, *added: Tensor) -> Tensor:
    bias, residual = added or (None, None)
    residual = None if residual is None else residual.transpose(0, 1)
    return masked_convolution(x.transpose(0, 1), w, bias, residual).transpose(0, 1)


def _with_epilogue(product: Form, position_major: bool) -> Form:
    def form(x: Tensor, w: Tensor, *added: Tensor) -> Tensor:
        y = product(x, w)
        if not added:
            return y
        bias, residual = added
        return y + (bias[:, None, None] if position_major else bias[:, None]) + residual

    return form


def _with_norm(product: Form, position_major: bool) -> Form:
    def form(x: Tensor, w: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        y = product(functional.layer_norm(x, x.shape[-1:], scale, shift), w)
        return x + y + (bias[:, None, None] if position_major else bias[:, None])

    return form


def _reference(x: Tensor, w: Tensor) -> Tensor:
    """What the reference trains with: a Conv1d whose weight is masked in place in every forward."""
    w.data = torch.tril(w.data)
    return functional.conv1d(x, w[..., None])


def _autocast(form: Form, device: str, dtype: torch.dtype) -> Form:
    def cast(*operands: Tensor) -> Tensor:
        with torch.autocast(device, dtype, cache_enabled=False):
            return form(*operands)

    return cast


def _forward(form: Form, operands: list[list[Tensor]]) -> Call:
    def call(number: int) -> Tensor:
        with torch.no_grad():
            return form(*operands[number])

    return call


def _backward(form: Form, operands: list[list[Tensor]], slopes: list[Tensor]) -> Call:
    def call(number: int) -> tuple[Tensor, ...]:
        y = form(*operands[number])
        return torch.autograd.grad(y, operands[number], slopes[number])

    return call


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).requires_grad_()


def _work(task: Task, limit: Peak | None) -> tuple[int, int, float | None]:
    """Return the operations, the bytes, and the least seconds the device could take.

    A task is one product, or three of the same size: y, and the gradients of x and of W. Each reads
    one tensor and writes another, or reads two. A residual is one more to read, and so is x for its
    own gradient through a norm.
    """
    products = 3 if task.backward else 1
    size = 4 if task.autocast else DTYPES[task.dtype].itemsize
    flops = task.batch * task.width * task.length * (task.length + 1)
    tensor = task.batch * task.width * task.length * size
    bytes_ = 2 * tensor + task.length * (task.length + 1) // 2 * size
    added = tensor if task.epilogue or (task.norm and task.backward) else 0
    least = None
    if limit:
        least = max(flops / limit.flops, (bytes_ + added) / limit.bandwidth)
        least += (products - 1) * max(flops / limit.flops, bytes_ / limit.bandwidth)
    return products * flops, products * bytes_ + added, least


def _tasks(options: argparse.Namespace) -> Iterator[Task]:
    """Yield what to measure, the most important first."""

    def tasks(dtype: str, width: int, **flags: bool) -> Iterator[Task]:
        for length in options.lengths:
            batch = max(1, options.tokens // length)
            yield Task(dtype, length, width, batch, **flags)

    for place, width in enumerate(options.widths):
        for backward in (True, False):
            yield from tasks(options.dtype, width, backward=backward)
        if place == 0 and options.device == "cuda":
            yield from tasks(options.dtype, width, backward=True, autocast=True)
            for backward in (True, False):
                yield from tasks(options.dtype, width, backward=backward, norm=True)
                yield from tasks(options.dtype, width, backward=backward, epilogue=True)


def _write(
    rows: list[Row], left_out: dict[Task, str], options: argparse.Namespace, limit: Peak | None
) -> None:
    stem = options.out / f"kernels-{options.device}"
    write_table(stem.with_suffix(".csv"), Row, rows)
    write_page(stem.with_suffix(".md"), page(rows, left_out, options.command, limit))


class _TableError(ValueError):
    """A file that holds no tiles."""


def _tiles(path: Path) -> dict[Any, Any]:
    try:
        found = runpy.run_path(str(path)).get("TUNED")
    except SyntaxError:
        found = None
    if not isinstance(found, dict):
        raise _TableError(f"--tuned {path}: has no TUNED; python -m scripts.tune_kernels writes it")
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--dtype", choices=DTYPES, help="cpu: float32, cuda: bfloat16")
    parser.add_argument("--lengths", type=positive, nargs="+", metavar="T")
    parser.add_argument("--widths", type=positive, nargs="+", metavar="D")
    parser.add_argument("--tokens", type=positive, help="B T; cpu: 8192, cuda: 65536")
    parser.add_argument("--rounds", type=positive, help="turns; cpu: 40, cuda: 15")
    parser.add_argument("--seconds", type=float, default=3600, help="begin nothing after so long")
    parser.add_argument("--tuned", type=Path, help="a tuned.py to use instead of the built-in one")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    options = parser.parse_args()
    cuda = options.device == "cuda"
    options.dtype = options.dtype or ("bfloat16" if cuda else "float32")
    options.lengths = options.lengths or (512, 1024, 256, 2048, 128)
    options.widths = options.widths or ((512, 256, 1024) if cuda else (256,))
    options.tokens = options.tokens or (65536 if cuda else 8192)
    options.rounds = options.rounds or (15 if cuda else 40)
    chosen = [a for a in sys.argv[1:] if a != "--out" and a != str(options.out)]
    options.command = shlex.join(["python", "-m", "scripts.bench_kernels", *chosen])
    return options


if __name__ == "__main__":
    sys.exit(main())
