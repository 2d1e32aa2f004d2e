"""The command `solvers`: the solvers of `invert`, with their settings."""

import json
from textwrap import indent, wrap
from typing import TYPE_CHECKING

from eval.flags import Plugins, Words, listed
from eval.messages import RequestError
from eval.plugins import run_plugins
from eval.result import Result, command

if TYPE_CHECKING:
    from eval.inversion.solver import Solver

WIDTH = 100
"""Letters of a line."""


@command
def list_solvers(names: Words = None, plugin: Plugins = ()) -> Result:
    """Lists the solvers, with their settings and defaults.

    Args:
        names: solvers; default: all
        plugin: a Python file of yours that registers more (docs/extending.md); may be given several
            times. It is run as your own code, with all your rights: give only files that you trust
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
        {name: getattr(each, name) for name in fields} | {"settings_text": each.setting_texts}
        for each in chosen
    ]
    return Result(rows, "\n\n".join(map(_described, chosen)))


def _described(solver: "Solver") -> str:
    lines = [f"{solver.name} ({solver.family}; {solver.slices})"]
    lines.append(indent("\n".join(wrap(solver.text, WIDTH - 4)), "    "))
    for name, default in solver.settings.items():
        about = f"{solver.name}.{name}={json.dumps(default)}: {solver.setting_texts[name]}"
        lines.append(indent("\n".join(wrap(about, WIDTH - 6, subsequent_indent="    ")), "      "))
    return "\n".join(lines)
