"""Which rooms may import which: arch and tokenizer stand alone, eval never imports train."""

import ast
from pathlib import Path

import pytest

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
