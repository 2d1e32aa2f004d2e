"""The rows of `scripts.bench_kernels` as a page of tables and as a plot."""

import io
import platform
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from arch.files import write_file
from scripts.kernel_timing import Peak
from scripts.pages import processor

OURS = "masked_convolution"
# What the project asks in bfloat16, forward + backward, D = 512: the ratio's goal and its floor.
ASKED = {
    128: (1.1, 0.95),
    256: (1.2, 1.05),
    512: (1.4, 1.25),
    1024: (1.55, 1.35),
    2048: (1.65, 1.45),
}


@dataclass(frozen=True)
class Task:
    """What is timed together.

    Attributes:
        backward: the gradients of all operands too.
        epilogue: a bias and a residual are added.
        norm: x + tril(W) layer_norm(x) + bias instead of tril(W) x.
        autocast: float32 operands under autocast, against the form the reference trains with.
    """

    dtype: str
    length: int
    width: int
    batch: int
    backward: bool
    epilogue: bool = False
    norm: bool = False
    autocast: bool = False

    def kind(self) -> str:
        """What of it is not a size, as a headline."""
        parts = [self.dtype, "forward + backward" if self.backward else "forward"]
        parts += ["bias and residual"] * self.epilogue
        parts += ["LayerNorm, bias and residual"] * self.norm
        parts += ["autocast, against the reference"] * self.autocast
        return ", ".join(parts)


@dataclass(frozen=True)
class Row(Task):
    """One form's figures in one task.

    Attributes:
        ratio: its time over ours.
        tflops: multiplications and additions on and below the diagonal, by its time.
        tbs: bytes of x, y and their gradients that have to move, by its time.
        roofline: the least time that the device could take, by its time; None on a CPU.
    """

    form: str = ""
    mode: str = ""
    microseconds: float = 0.0
    ratio: float = 0.0
    tflops: float = 0.0
    tbs: float = 0.0
    roofline: float | None = None


def page(rows: list[Row], left_out: dict[Task, str], command: str, limit: Peak | None) -> str:
    """Return the page in Markdown; `limit` is None on a CPU."""
    lines = [
        f"# Masked convolution on {'one CPU thread' if limit is None else 'a GPU'}",
        "",
        f"Measured by `{command}`",
        f"on {machine()}.",
        "",
        "The forms of a line took turns in one process. A form's column is its time over ours"
        + (", eager / compiled, and `least` is the best of them." if limit else "."),
        f"A figure is the {'median' if limit else 'least'} of the turns"
        + ("." if limit else ", in CPU seconds."),
        "TFLOP/s count the lower triangle only; TB/s count each operand once a product.",
    ]
    if limit:
        lines += [
            "The roofline is drawn with what the device reached:"
            f" {limit.flops / 1e12:.0f} TFLOP/s in a product of two 8192-square matrices,"
            f" {limit.bandwidth / 1e12:.2f} TB/s copying.",
            *_asked(rows),
        ]
    for kind in dict.fromkeys(row.kind() for row in rows):
        lines += ["", f"## {kind}", "", *_table([row for row in rows if row.kind() == kind])]
    if left_out:
        lines += ["", "## Not measured", ""]
        for task, why in left_out.items():
            lines.append(f"- T={task.length}, D={task.width}: {task.kind()}: {why}")
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Return the device and the versions, in words."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        device = f"{processor()}, 1 of {torch.get_num_threads()} threads"
    triton = f", triton {version('triton')}" if find_spec("triton") else ""
    return f"{device}, Python {platform.python_version()}, torch {torch.__version__}{triton}"


def plot(rows: list[Row], path: Path) -> bool:
    """Draw the least ratio by length, one line for each width; False without matplotlib."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    figure = Figure(figsize=(9, 4), layout="constrained")
    plain = [row for row in rows if not (row.epilogue or row.norm or row.autocast)]
    for place, backward in enumerate((False, True)):
        axes = figure.add_subplot(1, 2, place + 1)
        some = [row for row in plain if row.backward == backward]
        for width in sorted({row.width for row in some}):
            lengths = sorted({row.length for row in some if row.width == width})
            cells = [[r for r in some if (r.length, r.width) == (n, width)] for n in lengths]
            least = [_least(cell) or float("nan") for cell in cells]
            axes.plot(lengths, least, marker="o", label=f"D = {width}")
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("T")
        axes.set_ylabel("best dense time / ours")
        axes.set_title("forward + backward" if backward else "forward")
        axes.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_file(path, image.getvalue())
    return True


def _asked(rows: list[Row]) -> list[str]:
    lines = ["", "## Asked and found, forward + backward, bfloat16, D = 512", ""]
    lines += ["| T | goal | floor | found | over the reference |", "|---|---|---|---|---|"]
    for length, (goal, floor) in ASKED.items():
        some = [r for r in rows if (r.length, r.width, r.backward) == (length, 512, True)]
        some = [r for r in some if r.dtype == "bfloat16" and not (r.epilogue or r.norm)]
        found = _least([r for r in some if not r.autocast])
        reference = _least([r for r in some if r.autocast])
        lines.append(f"| {length} | {goal} | {floor} | {_number(found)} | {_number(reference)} |")
    return lines


def _table(rows: list[Row]) -> list[str]:
    forms = list(dict.fromkeys(row.form for row in rows if row.form != OURS))
    modern = any(row.roofline is not None for row in rows)
    titles = ["T", "D", "B", "ours, µs", "TFLOP/s", "TB/s", *["of roofline", "least"] * modern]
    lines = [_line([*titles, *forms]), "|---" * (len(titles) + len(forms)) + "|"]
    for length, width in dict.fromkeys((row.length, row.width) for row in rows):
        some = [row for row in rows if (row.length, row.width) == (length, width)]
        ours = next(row for row in some if row.form == OURS)
        cells: list[Any] = [length, width, ours.batch, f"{ours.microseconds:.1f}"]
        cells += [f"{ours.tflops:.3g}", f"{ours.tbs:.3g}"]
        if modern:
            cells += [f"{ours.roofline or 0:.0%}", _number(_least(some))]
        for form in forms:
            ratios = [_number(row.ratio) for row in some if row.form == form]
            cells.append(" / ".join(ratios))
        lines.append(_line(cells))
    return lines


def _least(rows: list[Row]) -> float | None:
    return min((row.ratio for row in rows if not row.form.startswith(OURS)), default=None)


def _number(ratio: float | None) -> str:
    return "not measured" if ratio is None else f"{ratio:.2f}"


def _line(cells: list[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
