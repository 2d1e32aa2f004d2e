"""What the benchmarks' pages share: the machine in words, and files that are whole or not there."""

import csv
import io
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from arch.files import write_file


def machine(device: str) -> str:
    """The device in words, without its processor's name."""
    if device != "cpu":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def processor() -> str:
    """The CPU's name, and how many cores of it there are."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
        return f"{names[0]} ({len(names)} cores)"
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def write_page(path: Path, text: str) -> None:
    """Writes a page.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    write_file(path, text.encode())


def write_table(path: Path, kind: type, rows: Sequence[Any]) -> None:
    """Writes rows of a dataclass as CSV, the names of its fields first.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(kind)])
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_file(path, text.getvalue().encode())
