"""All lenses with what each does; `--plugin FILE` adds those of a file of yours."""

import argparse
import json

from eval.lenses.lens import lenses
from eval.plugins import add_plugin, run_plugins


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("--format", choices=("text", "json"), default="text")
    add_plugin(parser)


def run(options: argparse.Namespace) -> None:
    """Prints a line for each lens, or all of them as JSON."""
    run_plugins(options.plugin)
    known = lenses()
    if options.format == "json":
        print(json.dumps([{"name": one.name, "title": one.title, "about": one.about}
                          for one in known.values()], indent=1))  # fmt: skip
        return
    width = max(map(len, known))
    for name, one in known.items():
        print(f"{name:{width}}  {one.about}")
