"""Other people's tools, in an environment of their own without remnant: `make interop` makes it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.cases import ROOT

PYTHON = os.environ.get("INTEROP_PYTHON", "")
Ask = Callable[..., str]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Runs words by the other Python, in a directory outside of the checkout; what it printed."""
    if not PYTHON:
        pytest.skip("INTEROP_PYTHON is not set; run: make interop")
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "HF_"))}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}

    def run(*words: object) -> str:
        done = subprocess.run(
            [str(ROOT / PYTHON), *map(str, words)], cwd=tmp_path, env={**kept, **offline},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run
