"""How a process uses cores and memory: imported first by every command that computes.

Threads that wait give up their core soon. Torch's OpenMP library (libgomp) lets a thread that waits
for others spin for milliseconds, and on a core that another process needs, everybody waits for it.
The library reads its variable when torch is imported; processes that a command starts inherit it.

Memory that is freed is kept for the next tensor. The C library (glibc) gives every large tensor
back to the kernel and asks for the next one anew, each of whose pages then costs a fault: 12,000 of
them in a step of `llama-small` on a CPU, a sixth of its time.

What a user has set is left alone. A command also makes its streams ready for any text.
"""

import contextlib
import ctypes
import io
import os
import sys
from typing import Any, TextIO

SPINS = "10000"
"""Turns of waiting after which a thread sleeps; libgomp's own default is 300,000."""
CHOSEN = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"}
"""Variables by which a user says how threads wait."""
ALLOCATORS = {"LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
"""Variables by which a user says how memory is allocated."""
TRIM, MAP = -1, -3
"""glibc's numbers of how much may be free before it goes back, and what is mapped by itself."""


def keep_memory() -> None:
    """Lets freed memory stay with the process, where the C library is glibc."""
    allocate = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if allocate and not ALLOCATORS & os.environ.keys():
        allocate(TRIM, 2**31 - 1)
        allocate(MAP, 2**31 - 1)


class _Unheard(io.FileIO):
    """A file whose reader may go, as `head` does: the rest goes nowhere, and no work ends."""

    def write(self, data: Any) -> Any:
        try:
            return super().write(data)
        except BrokenPipeError:
            discard_output(self)
            return len(data)


def prepare_streams() -> None:
    """Lets any text be printed: nowhere, where a user has closed the stream.

    What the console's encoding lacks is printed by its code, as `\\xe9`. On stderr, which holds no
    answer, it is no error that nobody reads.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - to the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        raw: Any = _Unheard(sys.stderr.fileno(), "w", closefd=False)
        plain = sys.stderr.write_through  # as PYTHONUNBUFFERED asks for
        sys.stderr = io.TextIOWrapper(
            raw if plain else io.BufferedWriter(raw), sys.stderr.encoding, "backslashreplace",
            line_buffering=True, write_through=plain,
        )  # fmt: skip


def discard_output(stream: TextIO | io.FileIO) -> None:
    """Sends nowhere what is still printed to a stream, if a file is behind it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if "torch" not in sys.modules and not CHOSEN & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = SPINS
keep_memory()
