"""How long threads wait before they sleep: set by commands, for users who chose nothing."""

import os
import subprocess
import sys

import pytest

from arch.threads import CHOSEN, SPINS

RUN = "import os, runpy, sys; sys.argv = [{0!r}, '--help']\ntry:\n    runpy.run_module({0!r}, "
RUN += "run_name='__main__')\nexcept SystemExit:\n    pass\n"
TELL = "import os; print('spins', os.environ.get('GOMP_SPINCOUNT'))"


def python(*words, **variables):
    """What Python prints, where no variable says how threads wait but those given."""
    unset = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True, text=True, check=True, env=unset | variables,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("room", ["arch", "train", "eval", "scripts.bench_kernels"])
def test_a_command_sets_it(room):
    assert python("-c", RUN.format(room) + TELL).endswith(f"spins {SPINS}\n")


@pytest.mark.parametrize("name", sorted(CHOSEN))
def test_what_a_user_has_set_stays(name):
    value = "passive" if name == "OMP_WAIT_POLICY" else "7"
    shown = python("-c", RUN.format("train") + TELL, **{name: value})
    assert shown.endswith("spins 7\n" if name == "GOMP_SPINCOUNT" else "spins None\n")


@pytest.mark.parametrize("code", ["import arch, eval, tokenizer, train", "import torch, scripts"])
def test_nothing_is_set_by_an_import_nor_after_torch(code):
    assert python("-c", f"{code}\n{TELL}") == "spins None\n"


def test_torchs_library_takes_it():
    shown = python("-m", "arch", "--help", OMP_DISPLAY_ENV="verbose")
    if "GOMP_SPINCOUNT" not in shown:
        pytest.skip("torch has another OpenMP library")
    assert f"GOMP_SPINCOUNT = '{SPINS}'" in shown
