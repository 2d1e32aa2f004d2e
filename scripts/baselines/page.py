"""The page that shows what the races of `scripts.bench_training` came to."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from scripts.baselines.races import COMPILED, OFF, OURS, REFERENCE, TRAINER
from scripts.baselines.rows import Row
from scripts.pages import processor, write_page, write_table


@dataclass(frozen=True)
class Asked:
    """What the project asks of a race: a ratio to a contender, or tokens a second of ours."""

    device: str
    race: str
    contender: str
    goal: float
    floor: float | None = None
    size: str = ""  # how the sizes begin, where races differ in them


ASKED = (
    Asked("cpu", "llama", TRAINER, 1.1),
    Asked("cuda", "llama", OURS, 1.3e6, 1.0e6),
    Asked("cuda", "llama", TRAINER, 1.5),
    Asked("cuda", "llama", TRAINER + COMPILED, 1.1),
    Asked("cuda", "flat", OURS, 2.4e6, 2.0e6),
    Asked("cuda", "flat", REFERENCE, 3.0),
    Asked("cuda", "flat, kernels", OFF, 1.03, size="d=512 n=8 T=512"),
    Asked("cuda", "flat, kernels", OFF, 1.12, size="d=512 n=8 T=2048"),
    Asked("cuda", "flat, kernels", OFF, 1.2, size="d=256 n=8 T=2048"),
)


def write(rows: list[Row], text: str, folder: Path, device: str) -> None:
    """Writes `training-DEVICE.csv` and `.md`."""
    write_table(folder / f"training-{device}.csv", Row, rows)
    write_page(folder / f"training-{device}.md", text)


def page(
    rows: list[Row],
    left_out: list[str],
    command: str,
    device: str,
    threads: int,
    peak: tuple[float, str],
    trainer: bool,
) -> str:
    """The page in Markdown.

    Args:
        rows: of all races, ours first in each.
        left_out: races that there was no time for.
        command: that measured them.
        device: cpu or cuda.
        threads: of the CPU.
        peak: of the device, in FLOP/s, and where that number comes from.
        trainer: whether transformers' Trainer itself ran, or the loop that stands for it.
    """
    cpu = device == "cpu"
    lines = [
        f"# Training on {'a CPU' if cpu else 'a GPU'}: tokens per second beside other trainers",
        "",
        f"Measured by `{command}`",
        f"on {hardware(device, threads)}.",
        "",
        *_asked(rows, device),
        "## What the lines are",
        "",
        f"- **{OURS}**: a run as `python -m train fit` makes it, Lightning, memory-mapped data,"
        f" progress lines and all, on the recipe that comes with the project; "
        + ("eager unless it says compiled." if cpu else "compiled, as the recipes are, in bf16."),
        "- **transformers' Trainer**: its defaults, on its own `LlamaForCausalLM` of the same"
        " shape; `torch_compile=True` where it says compiled.",
        "- **the reference under Trainer**: its block restated (`scripts/baselines/reference.py`):"
        " a `Conv1d` over the positions, masked in place in every forward pass; "
        + ("fp32." if cpu else "fp16 autocast, as it is published."),
        *([] if cpu else ["- **kernels off**: ours, with `tril(W) @ x + b` for every mixing."]),
        "- **Trainer** here is "
        + (
            "transformers' own."
            if trainer
            else "**not transformers' own**, which needs accelerate, and that is not installed:"
            " it is its inner loop restated (`scripts/baselines/loop.py`), without its callbacks,"
            " its bookkeeping and accelerate's wrappers, and so a little faster."
        ),
        "",
        "All train on the same packed stories, with fused AdamW and the gradient's norm clipped to"
        " 1, each in a process of its own. They took turns of some steps, round after round; the"
        f" first steps of a turn do not count, nor does compiling. {_speeds(cpu)}",
        "",
        "TFLOP/s count the products that the model needs (`arch.describe`; of causal and triangular"
        " ones the lower half), three times for training. MFU is their share of"
        f" {peak[0] / 1e12:.4g} TFLOP/s, {peak[1]}.",
    ]
    for race, size in dict.fromkeys((row.race, row.size) for row in rows):
        some = [row for row in rows if (row.race, row.size) == (race, size)]
        lines += ["", f"## {race}: {size}", "", *_table(some, peak[0], cpu)]
    if left_out:
        lines += ["", "## Not measured, for want of time", "", *(f"- {name}" for name in left_out)]
    return "\n".join(lines) + "\n"


def hardware(device: str, threads: int) -> str:
    """The device and the versions, in words."""
    names = [
        f"Python {platform.python_version()}",
        *(f"{name} {found}" for name in PACKAGES if (found := _version(name))),
    ]
    if device == "cuda":
        place = f"{torch.cuda.get_device_name()}, {os.cpu_count()} CPU cores"
    else:
        place = f"{processor()}, {threads} threads"
    return ", ".join([place, *names])


PACKAGES = ("torch", "triton", "lightning", "transformers", "accelerate")


def _version(name: str) -> str | None:
    try:
        return torch.__version__ if name == "torch" else version(name)
    except PackageNotFoundError:
        return None


def _speeds(cpu: bool) -> str:
    memory = "the most of the GPU that PyTorch held"
    if cpu:
        memory = "the most that the process held, its libraries included"
    return (
        "Tokens/s is the median over the turns with the least and the most; `ours / it` that of our"
        f" tokens/s over the line's own, round by round. Memory is {memory}."
    )


def _asked(rows: list[Row], device: str) -> list[str]:
    wanted = [asked for asked in ASKED if asked.device == device]
    lines = ["## Asked and found", "", "| race | what | asked | found |", "|---|---|---|---|"]
    for asked in wanted:
        found = [
            row
            for row in rows
            if (row.race, row.contender) == (asked.race, asked.contender)
            and row.size.startswith(asked.size)
        ]
        if not found:
            lines.append(f"| {asked.race} | {_what(asked)} | {_limits(asked)} | not measured |")
        for row in found:
            figure = f"{row.tokens:,.0f}" if asked.contender == OURS else f"{row.ratio:.2f}"
            lines.append(
                f"| {asked.race}, {row.size.split(',')[0]} | {_what(asked)} | {_limits(asked)} |"
                f" {'failed' if row.failed else figure} |"
            )
    return [*lines, ""]


def _what(asked: Asked) -> str:
    return "tokens/s" if asked.contender == OURS else f"ours / {asked.contender}"


def _limits(asked: Asked) -> str:
    goal = f"{asked.goal:,.0f}" if asked.goal > 1000 else f"{asked.goal:g}"
    return goal if asked.floor is None else f"{goal}, at least {asked.floor:,.0f}"


def _table(rows: list[Row], peak: float, cpu: bool) -> list[str]:
    titles = ["", "tokens/s", "least to most", "peak memory, GiB", "TFLOP/s", "MFU"]
    titles += ["ours / it", "least to most", *(["by processor time"] if cpu else [])]
    lines = [_line(titles), "|---" * len(titles) + "|"]
    for row in rows:
        if row.failed:
            reason = row.failed.replace("|", "/")
            lines.append(_line([row.contender, f"failed: {reason}", *[""] * (len(titles) - 2)]))
            continue
        ratios = [f"{row.ratio:.2f}", f"{row.ratio_least:.2f} to {row.ratio_most:.2f}"]
        ratios += [f"{row.ratio_work:.2f}"] * cpu
        if row.contender == OURS:
            ratios = [""] * len(ratios)
        elif not row.ratio:  # ours failed
            ratios = ["not measured", *[""] * (len(ratios) - 1)]
        lines.append(
            _line(
                [
                    f"{row.contender} ({row.precision})",
                    f"{row.tokens:,.0f}",
                    f"{row.least:,.0f} to {row.most:,.0f}",
                    f"{row.memory / 2**30:.2f}",
                    f"{row.flops / 1e12:.3g}",
                    f"{row.flops / peak:.1%}",
                    *ratios,
                ]
            )
        )
    return lines


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
