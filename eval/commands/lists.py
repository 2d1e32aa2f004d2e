"""The commands `solvers` and `lenses`: what there is, with its settings."""

import json
from textwrap import indent, wrap
from typing import TYPE_CHECKING

from eval.commands.flags import Plugins, Words, listed
from eval.commands.result import Result, command
from eval.messages import RequestError
from eval.rows.plugins import run_plugins

if TYPE_CHECKING:
    from eval.inversion.solver import Solver

WIDTH = 100
"""Letters of a line."""


@command
def list_solvers(names: Words = None, plugin: Plugins = ()) -> Result:
    """Lists the solvers, with their settings and defaults.

    Args:
        names: names of solvers; default: all
    """
    from eval.inversion.solver import solvers

    run_plugins(plugin)
    known, wanted = solvers(), listed(names or ())
    for name in wanted:
        if name not in known:
            raise RequestError(f"--names {name}: there is no such solver; use {', '.join(known)}")
    chosen = [known[name] for name in wanted or known]
    fields = ("name", "family", "title", "text", "slices", "random", "settings")
    rows = [
        {name: getattr(entry, name) for name in fields} | {"settings_text": entry.setting_texts}
        for entry in chosen
    ]
    return Result(rows, "\n\n".join(map(_described, chosen)))


@command
def list_lenses(plugin: Plugins = ()) -> Result:
    """Lists the lenses and what each does; `--plugin FILE` adds those of a file of yours."""
    from eval.lenses.lens import lenses

    run_plugins(plugin)
    known = lenses()
    width = max(map(len, known))
    rows = [
        {"name": entry.name, "title": entry.title, "about": entry.about} for entry in known.values()
    ]
    return Result(
        rows, "\n".join(f"{name:{width}}  {entry.about}" for name, entry in known.items())
    )


def _described(solver: "Solver") -> str:
    lines = [f"{solver.name} ({solver.family}; {solver.slices})"]
    lines.append(indent("\n".join(wrap(solver.text, WIDTH - 4)), "    "))
    for name, default in solver.settings.items():
        about = f"{solver.name}.{name}={json.dumps(default)}: {solver.setting_texts[name]}"
        lines.append(indent("\n".join(wrap(about, WIDTH - 6, subsequent_indent="    ")), "      "))
    return "\n".join(lines)
