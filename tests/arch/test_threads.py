"""How long threads wait before they sleep: set by commands, for users who chose nothing."""

import os
import subprocess
import sys

import pytest

from arch.kernels.threads import CHOSEN, SPINS

RUN = "import os, runpy, sys; sys.argv = [{0!r}, {1!r}]\ntry:\n    runpy.run_module({0!r}, "
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


@pytest.mark.parametrize(
    ("room", "word"), [("arch", "--help"), ("train", "recipes"), ("eval", "--help")]
)
def test_a_command_sets_it(room, word):
    assert python("-c", RUN.format(room, word) + TELL).endswith(f"spins {SPINS}\n")


def test_what_a_user_has_set_stays():
    shown = python("-c", RUN.format("train", "recipes") + TELL, OMP_WAIT_POLICY="passive")
    assert shown.endswith("spins None\n")


def test_nothing_is_set_by_an_import():
    assert python("-c", f"import arch, eval, tokenizer, train\n{TELL}") == "spins None\n"
