"""How many rows of tokens are treated at once, by the memory that there is."""

import os
from pathlib import Path

import torch

from arch import LanguageModel

GPU = 16
"""Rows of a GPU's batch, at most, for each that a CPU's may have."""
STREAMS = 64
"""Streams that a block holds at once without gradients, at most."""
CGROUP = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By controllers of a control group: its folder, limit, use, and the part of it that can go."""


def rows_at_once(model: LanguageModel, length: int, most: int = 64, gradients: bool = True) -> int:
    """How many rows of `length` tokens are treated at once, a power of two.

    As many as half of a GPU's free memory holds, or a quarter of `host_memory`: scores of the
    vocabulary and a block's streams, those of all blocks where gradients pass through them. It is
    measured once for a model. Rows of a batch do not touch each other.

    Args:
        length: tokens of a row.
        most: rows on a CPU, at most, as more are no faster; on a GPU `GPU` times as many.
        gradients: whether the scores of rows are differentiated.
    """
    config, device = model.config, model.embedding.weight.device
    if gradients:
        token = 4 * (3 * config.vocab_size + 32 * config.d_model * (1 + config.n_layers))
    else:
        token = 4 * (config.vocab_size + STREAMS * config.d_model)

    def measured() -> int:
        gpu = device.type == "cuda"
        memory = free_memory(device) // (2 if gpu else 4)
        rows = max(1, min(most * GPU if gpu else most, memory // (token * length)))
        return 1 << (rows.bit_length() - 1)

    return model.keep(f"rows at once {length} {most} {gradients}", measured)


def holds_row(model: LanguageModel, length: int) -> bool:
    """Whether memory holds a block's streams of one row of `length` tokens, without gradients."""
    return 4 * STREAMS * model.config.d_model * length <= free_memory(model.embedding.weight.device)


def free_memory(device: torch.device) -> int:
    """What a GPU has free, in bytes, with what PyTorch holds for tensors to come; `host_memory`."""
    if device.type != "cuda":
        return host_memory()
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held


def host_memory(root: Path = Path("/")) -> int:
    """The machine's memory in bytes, or what the process's container still lets it take if less.

    Of the process's control group and those above it, version 1 or 2: the limit less what is used,
    not counting files' pages that the kernel can drop. `root` is that of the file system.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return memory
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers not in CGROUP:
            continue
        folder, *names = CGROUP[controllers]
        for group in (Path(path), *Path(path).parents):
            limits = root / "sys/fs/cgroup" / folder / group.relative_to("/")
            try:
                limit, used = (int((limits / name).read_text()) for name in names[:2])
                statistics = (limits / "memory.stat").read_text().split()
            except (OSError, ValueError):  # no such group in sight, or "max": no limit
                continue
            memory = min(memory, limit - used + int(statistics[statistics.index(names[2]) + 1]))
    return max(memory, 0)


def candidates_at_once(model: LanguageModel) -> int:
    """How many tokens a search tries in one pass of the model: 1024 on a CPU, at most."""
    return rows_at_once(model, 1, most=1024, gradients=False)


def tokens_at_once(model: LanguageModel) -> int:
    """How many tokens of text a reader's pass has: 4096 on a CPU, at most."""
    return rows_at_once(model, 1, most=4096, gradients=False)


def windows_at_once(model: LanguageModel, length: int) -> int:
    """How many windows of text the loss is measured on at once: 32 on a CPU, at most."""
    return rows_at_once(model, length, most=32, gradients=False)
