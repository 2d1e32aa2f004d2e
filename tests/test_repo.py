"""The rules of the house, held by the code itself: who imports whom, what is installed, links."""

import ast
import re
import sys
from pathlib import Path

import pytest

import arch
import eval as evals
import tokenizer
import train

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"arch", "tokenizer", "train", "eval", "scripts", "tests"}
MAY_IMPORT = {
    "arch": set(),
    "tokenizer": set(),
    "train": {"arch", "tokenizer"},
    "eval": {"arch", "tokenizer"},
}


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_only_what_they_may(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        foreign = imports(path) & ROOMS - {room} - MAY_IMPORT[room]
        assert not foreign, f"{path.relative_to(ROOT)} imports {', '.join(foreign)}"
        if room == "eval":
            assert not imports(path) & {"lightning", "pytorch_lightning"}, path


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
    extras = {"transformers", "gguf", "anyio", "starlette", "uvicorn"}
    assert found - extras - {"huggingface-hub", "markupsafe"} == names


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            there = file.read_text(encoding="utf-8")
            titles = re.findall(r"^#+ (.*)$", there, re.MULTILINE)
            known = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            known |= set(re.findall(r'<a id="([^"]+)">', there))
            assert anchor in known, f"{target}#{anchor}"
