"""A fuzz of every door: `python -m scripts.fuzz --minutes 10`.

A door is a kind of file, or a request, that comes from outside. Mutants of a valid one go through
the command that reads it. Each must end in an answer, or in one line on stderr with exit code 2:
no traceback, no hang over 5 s, and no memory beyond 3 times the file and what the valid one takes.
Mutant N of a door is the same at every call. What fails is kept in --keep, with its outcome.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path

from scripts.fuzz.doors import DOORS, make_bases, mutant

SECONDS = 5  # of one mutant
SPARE = 128 << 20  # bytes of memory that a library may take for itself
ROOM = 3 << 30  # bytes of address space beyond what a process has when it begins
LINE = 1000  # letters of a refusal, at most


class Hang(BaseException):
    """A mutant has taken `SECONDS`."""


def try_mutant(name: str, bases: Path, number: int, folder: Path) -> tuple[str, str]:
    """How a mutant ends, in a word and in a line or a traceback.

    Returns:
        "answer", "refusal", "traceback", "hang", "memory" or "message" (it is not one line with
        exit code 2), and what was said.
    """
    door = DOORS[name]
    path = mutant(door, bases, number, folder)
    try:
        if door.words == "request":
            return _send(path.read_bytes(), bases)
        model = bases / "own" / "model"
        words = door.words.replace("FILE", Path(door.file).name).replace("MODEL", str(model))
        given = [w.replace("{}", str(folder)).replace("~", " ") for w in words.split()]
        return run_words(given, path.stat().st_size)
    finally:
        shutil.rmtree(folder)


def run_words(words: Sequence[str], size: int) -> tuple[str, str]:
    """How a command ends that reads a file of `size` bytes."""
    out, err = io.StringIO(), io.StringIO()
    before = _peak(reset=True)
    signal.signal(signal.SIGALRM, _raise_hang)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            code = import_module(f"{words[0]}.__main__").main(list(words[1:]))
    except SystemExit as end:
        code = end.code
    except Hang:
        return "hang", traceback.format_exc()
    except BaseException:
        return "traceback", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if _peak() - before > 3 * size + SPARE:
        return "memory", f"{(_peak() - before) >> 20} MiB for a file of {size} bytes"
    if code == 0:
        return "answer", ""
    said = err.getvalue().rstrip("\n")
    lines = [line for line in said.split("\n") if line.startswith(("error: ", "usage: "))]
    fits = code == 2 and len(lines) == 1 and said.endswith(lines[0]) and len(lines[0]) <= LINE
    return ("refusal" if fits else "message"), said


def _raise_hang(*_: object) -> None:
    raise Hang


def _peak(reset: bool = False) -> int:
    """The largest resident memory since the last reset, in bytes; 0 where Linux does not say."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0


_UNTIL_EXIT = contextlib.ExitStack()
_FAILED: list[str] = []  # what the explorer's server says of a request that fails


class _Failures(logging.Handler):
    """Keeps what is logged with a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        _FAILED.append(self.format(record))


def _send(request: bytes, bases: Path) -> tuple[str, str]:
    """How the explorer ends a request: 2xx or 4xx, or a connection that it closes."""
    import socket

    port = _explorer(bases)
    _FAILED.clear()
    with socket.create_connection(("127.0.0.1", port), SECONDS) as at:
        at.settimeout(SECONDS)
        at.sendall(request)
        with contextlib.suppress(OSError):
            at.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while chunk := at.recv(65536):
                received += chunk
        except TimeoutError:
            return "hang", repr(received[:500])
        except ConnectionError:
            pass
    status = received[9:12].decode("latin-1")
    if _FAILED:
        return "traceback", _FAILED[0]
    if status.startswith(("2", "4", "3")) or not received:
        return ("refusal" if status.startswith("4") else "answer"), status
    return "message", repr(received[:500])


@cache
def _explorer(bases: Path) -> int:
    """The port of an explorer that runs beside, to the end of this process."""
    from eval.explore.questions import Library
    from eval.explore.server import Explorer, serve_beside

    site = Explorer(Library([str(bases / "own")], "toy:60", "cpu"), seconds=2)
    port = _UNTIL_EXIT.enter_context(serve_beside(site))
    logging.getLogger("uvicorn.error").handlers = [_Failures(logging.ERROR)]
    return port


def _work(names: list[str], bases: Path, first: int) -> None:
    """Tries mutants without end, a line of JSON for each, before and after."""
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # libraries that are not Python's print there
    with tempfile.TemporaryDirectory() as folder:
        for name in names:  # libraries take memory when they are first used
            try_mutant(name, bases, -1, Path(folder) / "valid")
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + ROOM, resource.RLIM_INFINITY))
        for number in count(first):
            for name in names:
                print(json.dumps([name, number]), file=stdout, flush=True)
                ended, said = try_mutant(name, bases, number, Path(folder) / "mutant")
                print(json.dumps([name, number, ended, said[-4000:]]), file=stdout, flush=True)


def _address_space() -> int:
    pages = Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


def outcomes(
    names: list[str], bases: Path, seconds: float, first: int = 0
) -> Iterator[tuple[str, int, str, str]]:
    """Door, number, end and words of each mutant, tried in a process that is replaced."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        words = [sys.executable, "-m", "scripts.fuzz", "--worker", str(bases), str(first)]
        with subprocess.Popen([*words, "--doors", *names], stdout=subprocess.PIPE) as worker:
            assert worker.stdout
            at, known = (names[0], first), False
            while time.monotonic() < end:
                if not select.select([worker.stdout], [], [], 30 if known else 120)[0]:
                    yield at[0], at[1], "hang", "not ended by an alarm"
                    break
                line = worker.stdout.readline()
                if not line:
                    yield at[0], at[1], "crash", f"exit code {worker.wait()}"
                    break
                known, (name, number, *found) = True, json.loads(line)
                at = name, number
                if found:
                    yield name, number, *found
            worker.kill()
        first = at[1] + 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the fuzz; 1 where a mutant failed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz", description=__doc__)
    add: Callable = parser.add_argument
    add("--minutes", type=float, default=1.0, metavar="N", help="how long (%(default)s)")
    add("--doors", nargs="+", choices=DOORS, default=list(DOORS), metavar="DOOR", help="which")
    add("--first", type=int, default=0, metavar="N", help="number of the first mutant")
    add("--keep", metavar="DIR", help="where mutants that fail are kept")
    add("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        folder, first = options.worker
        _work(options.doors, Path(folder), int(first))
    counts: dict[str, Counter[str]] = {name: Counter() for name in options.doors}
    failed = Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        bases = Path(temporary) / "bases"
        bases.mkdir()
        make_bases(bases)
        seconds = 60 * options.minutes
        for name, number, ended, said in outcomes(options.doors, bases, seconds, options.first):
            counts[name][ended] += 1
            if ended in ("answer", "refusal"):
                continue
            reason = (said.strip().splitlines() or [""])[-1][:160]
            failed[f"{name}: {ended}: {reason}"] += 1
            if failed[f"{name}: {ended}: {reason}"] == 1:
                print(f"{name} {number}: {ended}: {reason}", file=sys.stderr, flush=True)
                if options.keep:
                    folder = Path(options.keep) / f"{name.replace(' ', '-')}-{number}"
                    shutil.rmtree(folder, ignore_errors=True)
                    mutant(DOORS[name], bases, number, folder)
                    (folder / "outcome.txt").write_text(said)
    kinds = ("answer", "refusal", "traceback", "message", "hang", "memory", "crash")
    print(f"{'door':24}" + "".join(f"{kind:>11}" for kind in kinds))
    for name, ends in counts.items():
        print(f"{name:24}" + "".join(f"{ends[kind]:>11,}" for kind in kinds))
    total = sum(counts.values(), Counter[str]())
    print(f"{'all':24}" + "".join(f"{total[kind]:>11,}" for kind in kinds))
    return int(total.total() > total["answer"] + total["refusal"])


if __name__ == "__main__":
    sys.exit(main())
