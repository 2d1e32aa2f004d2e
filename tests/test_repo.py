"""The rules of the house, held by the code itself: who imports whom, what is installed, links."""

import ast
import re
import sys
from functools import cache
from graphlib import TopologicalSorter
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


@cache
def import_lines(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """What a file imports, also within its functions."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path) -> set[str]:
    names = set()
    for node in import_lines(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
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


FLOORS = {
    "train": ("settings", "recipe", "processes", "steps", "rundir", "record", "trainer", "run",
              "commands", ""),
    "eval": ("messages", "drawing", "models", "sites", "rows", "analysis", "measures", "inversion",
             "lenses", "captured", "views", "commands", "explore", ""),
}  # fmt: skip
"""Folders and files of a room's root: each imports those before it alone; the last is all others
of the root."""
LISTS = {"arch/mixers", "eval/captured/files/kinds", "eval/commands", "eval/inversion/solvers",
         "eval/lenses"}  # fmt: skip
"""Folders whose files are of one kind, so that a reader chooses from a list."""
MOST_FILES = 7


def modules(room: str) -> dict[str, Path]:
    """The files of a room by their modules, those of packages by the package."""
    found = {}
    for path in (ROOT / room).rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported(room: str) -> dict[str, set[str]]:
    """The modules of a room that each of its modules imports, also within its functions."""
    files = modules(room)
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        found[name] = set()
        for node in import_lines(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == room:
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                found[name] |= {each if each in files else str(node.module) for each in whole}
            elif isinstance(node, ast.Import):
                whole = [alias.name for alias in node.names]
                found[name] |= {each for each in whole if each.split(".")[0] == room}
    return found


@pytest.mark.parametrize("room", FLOORS)
def test_no_import_runs_up(room: str) -> None:
    def floor(module: str) -> int:
        part = module.removeprefix(room).removeprefix(".").split(".")[0]
        return FLOORS[room].index(part if part in FLOORS[room] else "")

    for name, others in imported(room).items():
        for other in others:
            assert floor(other) <= floor(name), (name, other)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_no_files_import_each_other_in_a_circle(room: str) -> None:
    graph = {name: others - {name, room} for name, others in imported(room).items()}
    list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_no_folder_has_more_files_than_a_reader_can_choose_from(room: str) -> None:
    for place in {path.parent for path in modules(room).values()}:
        files = [path.name for path in place.glob("*.py") if not path.name.startswith("__")]
        name = str(place.relative_to(ROOT))
        assert len(files) <= MOST_FILES or name in LISTS, f"{name}: {', '.join(sorted(files))}"


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
    extras = {"transformers", "gguf", "anyio", "starlette", "uvicorn", "trackio"}
    assert found - extras - {"huggingface-hub", "markupsafe"} == names


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_ours_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(
        r"`((?:arch|tokenizer|train|eval|scripts|tests)/[\w/.-]+\.(?:py|sh|yaml))`",
        page.read_text(),
    )
    assert [file for file in named if not (ROOT / file).exists()] == []


def test_a_function_stands_in_the_file_that_the_page_names_for_it() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)`((?: `\w+`,?)+)", page)
    assert named
    for file, functions in named:
        text = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", functions):
            assert re.search(rf"^(?:def|class) {name}\b", text, re.MULTILINE), f"{file}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_lines_of_a_table_have_the_cells_of_its_headings(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1, table


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
