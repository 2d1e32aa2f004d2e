"""Writes the README's list of files from their docstrings: python -m scripts.layout."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("tokenizer", "arch", "train", "eval", "scripts")
START, END = "<!-- layout: python -m scripts.layout -->\n", "<!-- end of layout -->\n"


def listing() -> str:
    """A Markdown list: a heading a folder, a line a file with the first line of its docstring."""
    lines = []
    for room in ROOMS:
        for folder in sorted({path.parent for path in (ROOT / room).rglob("*.py")}):
            own = _summary(folder / "__init__.py")
            lines.append(f"\n**{folder.relative_to(ROOT)}/** {own}\n")
            lines += [
                f"- `{path.name}` {_summary(path)}"
                for path in sorted(folder.glob("*.py"))
                if path.name != "__init__.py"
            ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Replaces what stands between the two marks of the README."""
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(START)
    after = rest.partition(END)[2]
    readme.write_text(before + START + listing() + END + after)


def _summary(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split())


if __name__ == "__main__":
    main()
