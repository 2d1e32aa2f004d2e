"""What the benchmarks share: errors in a line, the machine in words, tables, pages that are whole.

A benchmark yields its page, and the rows behind it, whenever more is measured. The page is printed;
with --out DIR it is written there too, as NAME-DEVICE.md, and its rows as NAME-DEVICE.csv.
"""

import argparse
import contextlib
import csv
import io
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from arch.files import write_file

Rows = Sequence[dict[str, Any]]


class BenchmarkError(ValueError):
    """What cannot be measured, and why, in one line."""


def parser(about: str | None, devices: bool = True) -> argparse.ArgumentParser:
    """A benchmark's parser, with the flags of all."""
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if devices:
        made.add_argument("--device", type=device, default="auto", help="cpu, cuda or auto")
    made.add_argument("--out", type=Path, metavar="DIR", help="write the page and its rows here")
    return made


def device(name: str) -> str:
    """cpu or cuda, for argparse."""
    if name not in ("cpu", "cuda", "auto"):
        raise argparse.ArgumentTypeError(f"{name!r}: allowed are cpu, cuda and auto")
    if name == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("there is no CUDA device here; use cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def natural(word: str) -> int:
    """A whole number of at least 1, for argparse."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of at least 1")
    return int(word)


def run(
    name: str,
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace], Iterable[tuple[str, Rows]]],
    *errors: type[Exception],
) -> int:
    """Measures, and prints and writes the page; the exit code.

    `measure` yields the page and its rows, anew whenever there is more. Messages of `errors` are
    one line for the user.
    """
    threads, text = torch.get_num_threads(), ""
    torch.set_num_threads(options.threads)
    try:
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
        for text, rows in measure(options):
            if options.out:
                stem = options.out / f"{name}-{getattr(options, 'device', 'cpu')}"
                write_file(stem.with_suffix(".md"), text.encode())
                if rows:
                    write_file(stem.with_suffix(".csv"), _as_csv(rows))
    except (BenchmarkError, OSError, *errors) as error:
        print(f"error: {error}", file=sys.stderr)
        if options.out:
            with contextlib.suppress(OSError):
                options.out.rmdir()  # nothing was written into it
        return 2
    finally:
        torch.set_num_threads(threads)
    print(text)
    return 0


def command(module: str, words: Sequence[str]) -> str:
    """A command line as a page shows it: without --out, and without where files lie."""

    def shown(before: str, word: str) -> Iterator[str]:
        path = Path(word)
        if "--out" not in (before, word):
            parts = path.parts[-3:] if path.parent.name == "models" else path.parts[-1:]
            yield "/".join(parts) if path.is_absolute() else word

    pairs = zip(["", *words], words, strict=False)
    return shlex.join(["python", "-m", module, *(w for pair in pairs for w in shown(*pair))])


def hardware(device: str, threads: int, *packages: str) -> str:
    """The device and the versions of Python, torch and packages, in words."""
    if device == "cpu":
        place = f"{processor()}, {threads} threads"
    else:
        place = f"{torch.cuda.get_device_name()}, {os.cpu_count()} CPU cores"
    versions = [f"Python {platform.python_version()}"]
    for name in ("torch", *packages):
        with contextlib.suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    return ", ".join([place, *versions])


def processor() -> str:
    """The CPU's name, and how many cores of it there are."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
        return f"{names[0]} ({len(names)} cores)"
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def markdown_table(titles: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (titles, *rows)]
    return [lines[0], "|---" * len(titles) + "|", *lines[1:]]


def _as_csv(rows: Rows) -> bytes:
    """Rows as CSV, the names of the first one's fields first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
