"""How large the rooms are, and how far a reader has to go: in figures.

python -m tests.structure     # beside tests/test_structure.py's limits and targets
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("arch", "train", "tokenizer", "eval", "scripts", "tests")
LONG = 400  # lines of a file
LOSS = """
import sys
from eval.__main__ import main
words = ["loss", "tests/golden/models/flat/step-000400", "--corpus", "toy:40", "--stories", "2"]
assert main(words) == 0
print(sum(name.split(".")[0] == "eval" for name in sys.modules))
"""
NO_CLASH = {"main", "run", "measure", "find", "draw", "lens", "generate", "geometry"}
"""Names that every command, benchmark or lens has, and commands that are called as what they do."""


def measured() -> dict[str, int]:
    """Every measure by its name."""
    chain = imports_of("eval")
    folders: dict[str, set[str]] = {}
    for file, targets in chain.items():
        folder = _folder(file)
        folders.setdefault(folder, set()).update(map(_folder, targets) if targets else ())
        folders[folder].discard(folder)
    done = subprocess.run(
        [sys.executable, "-c", LOSS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    sizes = {room: {path: len(_lines(path)) for path in files(room)} for room in ROOMS}
    return {
        **{f"lines: {room}": sum(sizes[room].values()) for room in ROOMS},
        "files in eval": len(files("eval")),
        "floors in eval": longest(folders),
        "arrows between folders of eval": sum(map(len, folders.values())),
        "longest chain of imports in eval": longest(chain),
        "files of eval that `eval loss` imports": int(done.stdout.split()[-1]),
        "public names in several files": len(repeated()),
        f"files above {LONG} lines": len(long()),
        "lines of the README": len(_lines(ROOT / "README.md")),
    }


def files(room: str) -> list[Path]:
    """The Python files of a room."""
    return sorted((ROOT / room).rglob("*.py"))


def long() -> dict[str, int]:
    """Files above the limit, and their lines."""
    sizes = {path: len(_lines(path)) for room in ROOMS for path in files(room)}
    return {str(p.relative_to(ROOT)): n for p, n in sizes.items() if n > LONG}


def repeated() -> set[str]:
    """Public functions and classes that several files of the product define."""
    count = Counter(
        name for room in ROOMS[:-1] for path in files(room) for name in set(_defined(path))
    )
    return {name for name, n in count.items() if n > 1} - NO_CLASH


def imports_of(room: str) -> dict[str, set[str]]:
    """What each file of a room imports of the same room, late imports included, by dotted names."""
    names = {_dotted(path): path for path in files(room)}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        targets = set()
        for node in _imports(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif node.module:
                for alias in node.names:
                    inside = f"{node.module}.{alias.name}"
                    targets.add(inside if inside in names else node.module)
        graph[name] = targets & names.keys() - {name}
    return graph


def longest(graph: dict[str, set[str]]) -> int:
    """Nodes on the longest path; a circle counts with all of its nodes, once."""
    circles = nx.condensation(nx.DiGraph({name: list(others) for name, others in graph.items()}))
    height: dict[int, int] = {}
    for circle in reversed(list(nx.topological_sort(circles))):
        below = max((height[other] for other in circles.successors(circle)), default=0)
        height[circle] = len(circles.nodes[circle]["members"]) + below
    return max(height.values())


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield from _imports(node)


def _defined(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _folder(name: str) -> str:
    path = ROOT.joinpath(*name.split("."))
    return name if (path / "__init__.py").is_file() else name.rpartition(".")[0]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    from tests.test_structure import LIMITS

    print(f"{'':42}{'now':>8}{'limit':>8}{'target':>8}")
    for measure, value in measured().items():
        limit, target = LIMITS[measure]
        print(f"{measure:42}{value:8,}{limit:8,}{target:8,}")
    print("\nin several files: " + ", ".join(sorted(repeated())))
    print("long: " + ", ".join(f"{path} {lines}" for path, lines in long().items()))
