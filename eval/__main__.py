"""python -m eval COMMAND: questions asked of model directories."""

import argparse
import sys

import torch

from arch import ModelError
from eval import shards
from eval.commands import (
    claims,
    compare,
    curves,
    generate,
    geometry,
    invert,
    lens,
    lenses,
    loss,
    probe,
    report,
    retrieval,
    summary,
)
from eval.errors import RequestError
from tokenizer import CorpusError

EXAMPLES = """\
examples:
  python -m eval loss runs/*/models/* --corpus data/tinystories
  python -m eval generate runs/flat/models/step-000800 --prompt "Once upon a time"
  python -m eval invert runs/flat/models/step-000000 runs/flat/models/step-000800 --out results/flat
  python -m eval curves runs/flat/models/step-000800 --corpus data/tinystories --out results/curves
  python -m eval probe runs/flat/models/step-000800 --corpus data/tinystories --out results/probes
  python -m eval geometry runs/flat/models/step-000800 --hidden 1 3 --out results/geometry
  python -m eval retrieval runs/flat/models/step-000800 --corpus data/tinystories --out pairs
  python -m eval lens runs/flat/models/* --text "Once upon a time" --out results/lenses
  python -m eval lenses
  python -m eval summary results/flat --csv flat.csv
  python -m eval compare runs results --markdown table.md --plot curves.svg
  python -m eval claims run --group mixers --models runs
  python -m eval report results/flat --out flat.html
"""

SHARED = ("invert", "claims curves")  # whose work torchrun's processes divide


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; 0 when it answered, 2 when it could not."""
    parser = argparse.ArgumentParser(
        prog="python -m eval",
        description="Questions asked of model directories.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (
        loss,
        generate,
        invert,
        curves,
        probe,
        geometry,
        retrieval,
        lens,
        lenses,
        summary,
        compare,
        report,
        claims,
    ):
        name = command.__name__.rsplit(".", 1)[-1]
        assert command.__doc__
        sub = commands.add_parser(
            name, help=command.__doc__.splitlines()[0], description=command.__doc__
        )
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    options = parser.parse_args(arguments)
    try:
        _check_alone(options)
        with torch.no_grad():
            options.run(options)
    except (ModelError, CorpusError, RequestError, OSError) as error:
        process = f"process {shards.rank()}: " if shards.rank() else ""
        print(f"{process}error: {error}", file=sys.stderr)
        return 2
    return 0


def _check_alone(options: argparse.Namespace) -> None:
    """Refuses several processes that would all do the same work into the same files.

    Raises:
        RequestError: they were started for a command whose work is not shared out.
    """
    asked = " ".join([options.command, *([options.action] if "action" in options else [])])
    if shards.world() > 1 and asked not in SHARED:
        raise RequestError(
            f"WORLD_SIZE {shards.world()}: {asked} is of one process, several share "
            f"{' and '.join(SHARED)} alone; start it without torchrun"
        )


if __name__ == "__main__":
    sys.exit(main())
