"""The rules of the house, held by the code itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import arch
import eval as evals
import tokenizer
import train
from tests.test_structure import MAY_IMPORT, ROOMS, imports

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("package", [arch, evals, tokenizer, train])
def test_no_foreign_package_shadows_ours(package: object) -> None:
    """PyPI has an `arch` and a `tokenizer` of its own."""
    assert Path(str(package.__file__)).is_relative_to(ROOT)  # pyright: ignore


def test_dependencies_are_what_is_imported() -> None:
    listed = re.findall(
        r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S
    )
    names = set(re.findall(r'^    "([a-z0-9-]+)', listed[0], re.M))
    paths = [path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.py")]
    found = set().union(*map(imports, paths)) - set(sys.stdlib_module_names) - ROOMS
    renamed = {"yaml": "pyyaml", "vl_convert": "vl-convert-python"}
    found = {renamed.get(n, n.replace("_", "-")) for n in found}
    # Extras, and what datasets and jinja2 bring along and show in their own interfaces.
    extras = {"transformers", "starlette", "uvicorn"}
    assert found - extras - {"huggingface-hub", "markupsafe"} == names


@pytest.mark.parametrize("room", ["tokenizer", "train", "eval"])
def test_every_command_has_help(room: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", room, "--help"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m " + room)


def test_there_is_nothing_to_compile_at_installation() -> None:
    assert 'build-backend = "setuptools.build_meta"' in (ROOT / "pyproject.toml").read_text()
    suffixes = {path.suffix for room in MAY_IMPORT for path in (ROOT / room).rglob("*")}
    assert not suffixes & {".c", ".cc", ".cpp", ".cu", ".pyx", ".so"}
    assert not (ROOT / "setup.py").exists()
