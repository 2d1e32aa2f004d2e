"""How long threads wait and whether memory is kept: set by commands, unless a user chose."""

import os
import platform
import subprocess
import sys

import pytest

from arch.kernels.process import ALLOCATORS, CHOSEN, SPINS

RUN = "import os, runpy, sys; sys.argv = [{0!r}, {1!r}]\ntry:\n    runpy.run_module({0!r}, "
RUN += "run_name='__main__')\nexcept SystemExit:\n    pass\n"
TELL = """import os, resource
def fill(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    FILLED
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
fill(2**26)
faults = fill(2**24)  # of 4,096 pages, fewer than are kept from the first on
print(os.environ.get("GOMP_SPINCOUNT"), "kept" if faults < 1000 else "given back")"""
OF_BYTES = TELL.replace("FILLED", 'b"1" * size')
"""Without torch, which takes a second to import and asks the same C library for memory."""
OF_TENSORS = "import torch\n" + TELL.replace("FILLED", "torch.ones(size // 4)")
KEPT = "kept" if platform.libc_ver()[0] == "glibc" else "given back"


def python(*words, **variables):
    """The last line that Python prints, where no variable but those given says what is chosen."""
    chosen = CHOSEN | ALLOCATORS
    unset = {name: value for name, value in os.environ.items() if name not in chosen}
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True, text=True, check=True, env=unset | variables,
    )  # fmt: skip
    return done.stdout.splitlines()[-1]


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("room", "word", "code"),
    [
        ("train", "recipes", OF_BYTES),
        ("train", "recipes", OF_TENSORS),
        ("arch", "--help", OF_TENSORS),
        ("eval", "--help", OF_TENSORS),
    ],
    ids=["train", "train, tensors", "arch", "eval"],
)
def test_a_command_sets_both(room, word, code):
    assert python("-c", RUN.format(room, word) + code) == f"{SPINS} {KEPT}"


@pytest.mark.slow
def test_what_a_user_has_set_stays():
    chosen = {"OMP_WAIT_POLICY": "passive", "MALLOC_MMAP_THRESHOLD_": "65536"}
    assert python("-c", RUN.format("train", "recipes") + OF_TENSORS, **chosen) == "None given back"


@pytest.mark.parametrize(
    ("words", "code", "answer"),
    [
        (["-c", "import sys; from arch.kernels.process import prepare_streams; prepare_streams()\n"
          "for n in range(3): print(n, file=sys.stderr)\nprint('answer')"], 0, "answer\n"),
        (["-m", "eval", "nothing"], 2, ""),
    ],
)  # fmt: skip
def test_work_goes_on_where_nobody_hears_what_is_said(words, code, answer):
    """It ended, with code 0 and half its rows: `eval ... 2>&1 | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=writer, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stdout) == (code, answer)


def test_nothing_is_set_by_an_import():
    assert python("-c", f"import arch, eval, tokenizer, train\n{OF_BYTES}") == "None given back"
