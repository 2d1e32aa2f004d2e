"""What the benchmarks share: flags, errors in a line, the machine in words, pages that are whole.

A benchmark yields its page, and the rows behind it, whenever more is measured. The page is printed;
with --out DIR it is written there too, as NAME-DEVICE.md, and its rows as NAME-DEVICE.csv.
"""

import argparse
import contextlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from arch import ModelError
from arch.files import write_file
from eval import RequestError
from eval.tables import Table, markdown, to_csv

Item = TypeVar("Item")
Pages = Iterable[tuple[str, Sequence[dict[str, Any]]]]
"""A page and its rows, anew whenever there is more."""


class BenchmarkError(ValueError):
    """What cannot be measured, and why, in one line."""


class By(NamedTuple):
    """A flag's default on a CPU, and on CUDA."""

    cpu: Any
    cuda: Any

    def __str__(self) -> str:
        return f"{self.cpu}, on CUDA {self.cuda}"


DEVICE = {"--device": ("what it runs on", "auto", ("cpu", "cuda", "auto"))}
THREADS = {"--threads": ("of PyTorch", os.cpu_count() or 1)}
Flags = Mapping[str, tuple[Any, ...]]
"""By name: what it is, its default (`...`: must be given), and all allowed values or what reads
one."""


def run(
    name: str,
    about: str | None,
    flags: Flags,
    measure: Callable[[argparse.Namespace], Pages],
    words: Sequence[str] | None = None,
    *errors: type[Exception],
) -> int:
    """Reads the flags, measures, and prints and writes the page; the exit code.

    Messages of `errors`, beside those of models and requests, are one line for the user.
    """
    words = sys.argv[1:] if words is None else words
    options = read(about, {**flags, "--out": ("directory for the page and its rows", None)}, words)
    options.command = command(f"scripts.bench_{name}", words)
    threads, text = torch.get_num_threads(), ""
    torch.set_num_threads(getattr(options, "threads", 1))
    known = (BenchmarkError, ModelError, RequestError, OSError, *errors)
    out = options.out and Path(options.out)
    try:
        if out:
            out.mkdir(parents=True, exist_ok=True)
        for text, rows in measure(options):
            if out:
                stem = out / f"{name}-{getattr(options, 'device', 'cpu')}"
                write_file(stem.with_suffix(".md"), text.encode())
                if rows:
                    write_file(stem.with_suffix(".csv"), to_csv(rows).encode())
    except known as error:
        print(f"error: {error}", file=sys.stderr)
        if out:
            with contextlib.suppress(OSError):
                out.rmdir()  # nothing was written into it
        return 2
    finally:
        torch.set_num_threads(threads)
    print(text)
    return 0


def read(about: str | None, flags: Flags, words: Sequence[str] | None) -> argparse.Namespace:
    """Options by a table of flags.

    The type of a default is that of its flag: a list takes several values, False is a switch,
    whole numbers are at least 1.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (what, default, *rest) in flags.items():
        like = default.cpu if isinstance(default, By) else default
        more: dict[str, Any] = {"nargs": "+"} if isinstance(like, list) else {}
        like = next(iter(like), None) if more else None if like is ... else like
        if like is False:
            more["action"] = "store_true"
        else:
            more["type"] = natural if isinstance(like, int) else type(like or "")
        for allowed in rest:
            more["type" if callable(allowed) else "choices"] = allowed
        if default is not ...:
            more["default"] = default
            what += f"; default: {default}" if like else ""
        elif name.startswith("-"):
            more["required"] = True
        parser.add_argument(name, help=what, **more)
    options = parser.parse_args(words)
    if "device" in options:
        there = torch.cuda.is_available()
        if options.device == "cuda" and not there:
            parser.error("--device: there is no CUDA device here; use cpu")
        options.device = "cuda" if there and options.device != "cpu" else "cpu"
    for name, value in vars(options).items():
        if isinstance(value, By):
            setattr(options, name, value[options.device == "cuda"])
    return options


def natural(word: str) -> int:
    """A whole number of at least 1, for argparse."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of at least 1")
    return int(word)


def elsewhere(name: str, options: argparse.Namespace, *words: object) -> str:
    """What a benchmark prints in a process of its own, with the flags of this one and more words.

    Raises:
        BenchmarkError: it failed.
    """
    given = [f"--device={options.device}", f"--threads={options.threads}", *map(str, words)]
    line = [sys.executable, "-m", f"scripts.bench_{name}", *given]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(done.stderr.strip().removeprefix("error: "))
    return done.stdout.strip()


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
    return markdown(Table([str(t) for t in titles], [[str(c) for c in row] for row in rows]))


def group(rows: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """Rows by key, in the order of first appearance."""
    groups: dict[Any, list[Item]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
