"""What the benchmarks share: turns, flags, errors in a line, the machine in words, whole pages.

A benchmark yields its page, and the rows behind it, whenever more is measured. The page is printed;
with --out DIR it is written there too, as NAME-DEVICE.md, and its rows as NAME-DEVICE.csv.
"""

import argparse
import contextlib
import os
import platform
import random
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch

from arch import ModelError
from arch.storage.files import write_text
from eval.drawing.tables import Table, markdown, to_csv

Pages = Iterable[tuple[str, Sequence[dict[str, Any]]]]
"""A page and its rows, anew whenever there is more."""
Name = TypeVar("Name")


class BenchmarkError(ValueError):
    """What cannot be measured, and why, in one line."""


def in_turns(
    timers: Mapping[Name, Callable[[], float]], rounds: int, shuffle: bool = True
) -> dict[Name, list[float]]:
    """What each timer says, once a round: all meet alike whatever else the machine does."""
    readings: dict[Name, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        names = [*timers]
        for name in random.sample(names, len(names)) if shuffle else names:
            readings[name].append(timers[name]())
    return readings


def parser(about: str | None, device: str = "auto") -> argparse.ArgumentParser:
    """Flags that all benchmarks have; `device` is the default."""
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--device", choices=("cpu", "cuda", "auto"), default=device)
    made.add_argument("--threads", type=natural, help="of PyTorch; all cores unless given")
    made.add_argument("--out", type=Path, help="where the page and its rows are written")
    return made


def parse(
    made: argparse.ArgumentParser, words: Sequence[str] | None, **defaults: tuple[Any, Any]
) -> argparse.Namespace:
    """Reads the flags; `defaults` are those that differ: on a CPU, and on CUDA."""
    words = sys.argv[1:] if words is None else words
    options = made.parse_args(words)
    there = torch.cuda.is_available()
    if options.device == "cuda" and not there:
        made.error("--device: there is no CUDA device here; use cpu")
    options.device = "cuda" if there and options.device != "cpu" else "cpu"
    for name, both in {"threads": (os.cpu_count(),) * 2, **defaults}.items():
        if getattr(options, name) is None:
            setattr(options, name, both[options.device == "cuda"])
    options.words = words
    return options


def run(
    name: str,
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace], Pages],
    *errors: type[Exception],
    stem: str | None = None,
) -> int:
    """Measures, and prints and writes the page; the exit code. `stem` is the files' other name.

    Messages of `errors`, beside those of models and benchmarks, are one line for the user.
    """
    options.command = command(f"scripts.bench.{name}", options.words)
    threads, text, out = torch.get_num_threads(), "", options.out
    torch.set_num_threads(options.threads)
    try:
        if out:
            out.mkdir(parents=True, exist_ok=True)
        for text, rows in measure(options):
            if out:
                file = out / (stem or f"{name}-{options.device}")
                write_text(file.with_suffix(".md"), text)
                if rows:
                    write_text(file.with_suffix(".csv"), to_csv(rows))
    except (BenchmarkError, ModelError, OSError, *errors) as error:
        print(f"error: {error}", file=sys.stderr)
        if out:
            with contextlib.suppress(OSError):
                out.rmdir()  # nothing was written into it
        return 2
    finally:
        torch.set_num_threads(threads)
    print(text)
    return 0


def natural(word: str) -> int:
    """A whole number of at least 1, for argparse."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of at least 1")
    return int(word)


def command(module: str, words: Sequence[str]) -> str:
    """A command line as a page shows it: without --out, and without where files lie."""

    def shown(before: str, word: str) -> Iterator[str]:
        path = Path(word)
        if "--out" not in (before, word):
            parts = path.parts[-3:] if path.parent.name == "models" else path.parts[-1:]
            yield "/".join(parts) if path.is_absolute() else word

    pairs = zip(["", *words], words, strict=False)
    return shlex.join(["python", "-m", module, *(w for pair in pairs for w in shown(*pair))])


def hardware(options: argparse.Namespace, *packages: str) -> str:
    """The device and the versions of Python, torch and packages, in words."""
    if options.device == "cpu":
        machine = f"{processor()}, {options.threads} threads"
    else:
        machine = f"{torch.cuda.get_device_name()}, {os.cpu_count()} CPU cores"
    versions = [f"Python {platform.python_version()}"]
    for name in ("torch", *packages):
        with contextlib.suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    return ", ".join([machine, *versions])


def processor() -> str:
    """The CPU's name and family, and how many cores of it there are."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            facts = [[part.strip() for part in line.split(":", 1)] for line in file if ":" in line]
        names = [value for key, value in facts if key == "model name"]
        return f"{names[0]}, family {dict(facts)['cpu family']} ({len(names)} cores)"
    except (OSError, IndexError, KeyError):
        return platform.processor() or platform.machine()


def table(titles: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, its last line ended."""
    return markdown(Table([*map(str, titles)], [[*map(str, row)] for row in rows]))
