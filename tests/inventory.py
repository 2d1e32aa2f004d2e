"""Everything that a user can ask for, by name: commands, flags, solvers, lenses, quantities, pages.

    python -m tests.inventory     # adds what is new to tests/inventory.txt

A line stays in the file when what it names is gone: a test then wants it under `### Removed` in
CHANGELOG.md, in backticks, as it stands here (`flag: eval invert --noise`). A command that is named
there stands for its flags too.
"""

import contextlib
import io
import os
import re
import runpy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from arch.mixers import MIXERS
from arch.model import CHANNEL_MIXERS
from eval.circuit import ABLATIONS, PARTS
from eval.claims.registry import claims
from eval.inversion.questions import SUITES
from eval.inversion.solvers import solvers
from eval.inversion.spaces import DECODERS, OBJECTIVES, VARIABLES, WITH_SETTINGS
from eval.lenses.lens import lenses
from eval.text import SETS
from tests.golden import table
from tests.golden.suite import SUITE
from train.cli import recipes

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests" / "inventory.txt"
CHANGELOG = ROOT / "CHANGELOG.md"
OF_FIGURE = ("value", "low", "high", "n")
"""What the figures of lenses and comparisons have; their names stand before."""


def collect() -> list[str]:
    """Every line that today's product gives, sorted."""
    named = {
        "solver": solvers(),
        "lens": lenses(),
        "mixer": MIXERS,
        "channel mixer": CHANNEL_MIXERS,
        "part": PARTS,
        "ablation": ABLATIONS,
        "decoder": DECODERS,
        "objective": [*OBJECTIVES, *WITH_SETTINGS],
        "variable": VARIABLES,
        "prompts": SETS,
        "suite": [path.stem for path in SUITES.glob("*.yaml")],
        "recipe": recipes(),
        "claim": claims(),
    }
    lines = {f"{kind}: {name}" for kind, names in named.items() for name in names}
    lines |= {f"setting: {m.name}.{name}" for m in solvers().values() for name in m.settings}
    lines |= {f"page: {title}" for title in _titles()}
    lines |= {f"quantity: {name}" for name in _quantities()}
    scripts = [f"scripts.{path.stem}" for path in (ROOT / "scripts").glob("[a-z]*.py")]
    for module in ("eval", "train", "tokenizer", *scripts):
        lines |= set(_commands(module))
    return sorted(lines)


def stored() -> list[str]:
    """The lines of the file."""
    return FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []


def removed() -> set[str]:
    """What CHANGELOG.md names under its headings `### Removed`."""
    text = CHANGELOG.read_text(encoding="utf-8") if CHANGELOG.exists() else ""
    parts = re.findall(r"^### Removed\n(.*?)(?=^#|\Z)", text, re.M | re.S)
    return set(re.findall(r"`([a-z ]+: [^`]+)`", "".join(parts)))


def unnamed(gone: set[str], named: set[str]) -> set[str]:
    """Those of the gone lines that nothing named stands for."""
    commands = {line.removeprefix("command: ") for line in named if line.startswith("command: ")}
    return {
        line
        for line in gone - named
        if not (line.startswith("flag: ") and line[6:].rpartition(" ")[0] in commands)
    }


def _commands(*words: str) -> Iterator[str]:
    """A command's name and flags, and those of the commands below it, as its help tells them."""
    text = _help(words)
    name = " ".join(words)
    yield f"command: {name}"
    for flag in re.findall(r"^ +(?:-\w,? ?(?:[A-Z]+, )?)?(--[a-z][\w.-]*)", text, re.M):
        if flag not in ("--help", "--print_config") and not flag.endswith(".help"):
            yield f"flag: {name} {flag}"
    usage = text.partition("\n\n")[0].rstrip()
    below = re.search(r" (?:\{([a-z,-]+)\}|((?:[a-z]+\|)+[a-z]+)) \.\.\.$", usage)
    listed = (
        re.findall(r"^    ([a-z]+)(?: |$)", text, re.M) if usage.endswith(" COMMAND ...") else []
    )
    for command in re.split(r"[,|]", below[1] or below[2]) if below else listed:
        yield from _commands(*words, command)


def _help(words: tuple[str, ...]) -> str:
    out = io.StringIO()
    with (
        warnings.catch_warnings(),
        mock.patch.object(sys, "argv", [*words, "--help"]),
        mock.patch.dict(os.environ, {"COLUMNS": "200"}),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        warnings.simplefilter("ignore")  # runpy's, of modules that are imported already
        runpy.run_module(words[0], run_name="__main__", alter_sys=False)
    return out.getvalue()


def _titles() -> Iterator[str]:
    """Headings of the page's sections."""
    for path in (ROOT / "eval" / "report").rglob("*.html"):
        yield from re.findall(r"<h[23][^>]*>\s*([^<{]+?)\s*[<{]", path.read_text("utf-8"))


def _quantities() -> Iterator[str]:
    """Figures, by the golden rows: without the places that they are of."""
    for part in SUITE:
        for place, values in table.read(part).items():
            for name in values:
                about, _, last = name.rpartition(": ")
                if "claim" not in place.prompt:
                    yield re.split(r",| -?\d", about)[0] if last in OF_FIGURE else last


if __name__ == "__main__":
    new = set(collect()) - set(stored())
    FILE.write_text("\n".join(sorted({*stored(), *new})) + "\n", encoding="utf-8")
    print(f"{len(new)} new lines in {FILE.relative_to(ROOT)}")
