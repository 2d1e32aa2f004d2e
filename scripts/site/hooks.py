"""Pages of the site that are no files of docs/, and links out of docs/, which a site does not have.

MkDocs calls these functions by their names.
"""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("eval", "train", "arch", "tokenizer")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds README as the first page, and the reference."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    readme = readme.replace("](docs/", "](").replace('="docs/', '="')
    for name, content in {"index.md": readme, "reference.md": reference()}.items():
        files.append(File.generated(config, name, content=content))
    return files


def reference() -> str:
    """The functions and classes of each room's `__init__`, which their docstrings describe."""
    sys.path.insert(0, str(ROOT))
    lines = ["# Reference", "", "What each room gives to Python."]
    for room in ROOMS:
        module = importlib.import_module(room)
        lines += ["", f"## {room}", ""]
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            where = getattr(thing, "__module__", "")
            if callable(thing) and where.partition(".")[0] == room:
                lines += [f"::: {where}.{thing.__name__}", ""]
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """A link to a folder goes to its README; one out of docs/ is its words alone."""
    docs = Path(config["docs_dir"]).resolve()
    here = (docs / page.file.src_uri).parent

    def inside(found: re.Match[str]) -> str:
        image, text, target, anchor = found.groups("")
        path = (here / target).resolve()
        if path.is_dir() and (path / "README.md").is_file():
            return f"{image}[{text}]({target.rstrip('/')}/README.md{anchor})"
        known = path.is_file() or path == docs / "reference.md"  # which `on_files` writes
        return found[0] if known and docs in path.parents else text

    return LINK.sub(inside, markdown)
