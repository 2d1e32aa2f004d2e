"""From a shell: folders of the rooms' names in the way, Ctrl-C at any time, make without pip."""

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from train.settings import REMNANT

ROOT = Path(__file__).resolve().parent.parent
MIXER = """
from arch import MIXERS
class Mine(MIXERS["flat"]):
    pass
"""


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A command in a folder, where this project is found after it."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Of a process in the background, Ctrl-C is ignored.
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    words = sys.executable, *words
    return subprocess.Popen(words, cwd=folder, env=environment, preexec_fn=listen, **pipes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["-m train recipes", "-m eval solvers --names chance", "-m tokenizer inspect --help"]
)
def test_a_command_works_beside_folders_of_its_names(tmp_path, words):
    for name in ("train", "eval", "tokenizer"):
        (tmp_path / name).mkdir()
    for name in ("arch.py", "tokenizers.py"):
        (tmp_path / name).write_text("open('ran', 'w')")
    process = start(tmp_path, *words.split())
    said, wrong = process.communicate(timeout=100)
    assert process.returncode == 0, wrong
    assert "flat-small" in said or "chance" in said or "tokenizer.json" in said
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_what_a_run_starts_is_no_eval_of_the_working_directory(tmp_path):
    (tmp_path / "eval.py").write_text("open('ran', 'w')")
    process = start(tmp_path, REMNANT, "eval", "solvers", "--names", "chance")
    said, wrong = process.communicate(timeout=100)
    assert process.returncode == 0, wrong
    assert "chance" in said
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("words", ["recipes --help", "plan --config flat-small"])
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path, words):
    process = start(tmp_path, *f"-m train {words}".split())
    assert process.stdout is not None
    process.stdout.close()
    assert process.communicate(timeout=100)[1] == ""
    assert process.returncode == 0


@pytest.mark.slow
def test_remnant_finds_mixers_in_the_working_directory(tmp_path):
    (tmp_path / "mine.py").write_text(MIXER)
    (tmp_path / "arch").mkdir()
    command = f"import sys; sys.path[0] = {str(ROOT)!r}; import remnant; sys.exit(remnant.main())"
    process = start(tmp_path, "-c", command, "arch", "check", "mine.Mine", "--trust_code")
    said, wrong = process.communicate(timeout=100)
    assert "mine" not in wrong, wrong
    assert process.returncode == 0
    assert "Jacobian" in said


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.4, 1.0])
def test_ctrl_c_is_one_line_while_libraries_load(tmp_path, seconds):
    process = start(tmp_path, "-m", "train", "plan", "--config", "flat")
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, wrong = process.communicate(timeout=100)
    # Python itself ends by the signal where it met a file that is being imported.
    assert process.returncode in (130, -signal.SIGINT)
    assert wrong.startswith("interrupted: ")
    assert wrong.count("\n") == 1


STUB = """#!/bin/sh
here=$(dirname "$0")
case "$*" in
  "-m pip --version") test -e "$here/pip" ;;
  "-m ensurepip") test -e "$here/ensurepip" && touch "$here/pip" ;;
  "-c "*) test ! -e "$here/old" ;;
  "-m venv --clear .venv" | "-m venv .venv")
    rm -rf .venv; mkdir -p .venv/bin && cp "$0" .venv/bin/python
    test -n "$WHOLE" && touch .venv/bin/pip ;;
  "-m pip install"*) echo "$@" >> "$here/installed" ;;
esac
"""


@pytest.mark.parametrize(
    ("stamp", "extras"), [(".installed", "[explore]"), (".installed-dev", "[dev,explore]")]
)
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("before", "whole", "works"),
    [
        ((), "yes", True),
        ((), "", False),  # Debian without python3-venv: an environment without pip is left
        (("python",), "yes", True),  # and after it was installed
        (("python", "ensurepip"), "", True),  # uv's
        (("python", "pip", "old"), "yes", True),  # of a Python that is too old, and replaced
        (("../../old",), "yes", False),  # no other Python is there
    ],
)
def test_make_installs_or_says_what_is_missing(tmp_path, before, whole, works, stamp, extras):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    stub, bin = tmp_path / "python3", tmp_path / ".venv" / "bin"
    bin.mkdir(parents=True)
    for path in (stub, *(bin / name for name in before)):
        path.write_text(STUB)
        path.chmod(0o755)
    words = ["make", "-s", f".venv/{stamp}", f"PYTHON={stub}"]
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | {"WHOLE": whole}, capture_output=True, text=True
    )
    assert (done.returncode == 0) == works, done.stderr
    assert (bin / "installed").exists() == works
    assert not works or f".{extras}" in (bin / "installed").read_text()
    assert works or "make PYTHON=" in done.stderr
