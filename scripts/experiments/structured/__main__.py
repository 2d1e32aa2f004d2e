"""E12: the structured mixers of 2026, as docs/results/experiments/e12.yaml asks.

    python -m scripts.experiments.structured train DATA OUT
    python -m scripts.experiments.structured ask DATA OUT [--parts PART ...]
    python -m scripts.experiments.structured table ROWS.parquet FIGURE.svg

DATA is packed. `train` trains runs one after another into OUT/runs; what is finished is skipped,
and what was stopped goes on. A run that fails is named at the end, and the others are trained all
the same. `ask` adds to OUT/rows-PART.jsonl what models that are there have not been asked. Both may
be killed and given again. `table` prints verdicts and tables of the stored rows.
"""

import argparse
import sys
from pathlib import Path

import arch.kernels.threads  # noqa: F401 - before the first product
from scripts.experiments.structured.training import read_design, train_all


def main() -> int:
    """Trains, asks, or prints the tables; 1 where a run failed."""
    parser = argparse.ArgumentParser(prog="structured")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "ask"):
        command = commands.add_parser(name)
        command.add_argument("data", type=Path)
        command.add_argument("out", type=Path)
    command.add_argument("--parts", nargs="+")
    table = commands.add_parser("table")
    table.add_argument("rows", type=Path)
    table.add_argument("figure", type=Path)
    options = parser.parse_args()
    if options.command == "table":
        from scripts.experiments.structured.table import show

        show(options.rows, options.figure)
        return 0
    if not (options.data / "meta.json").is_file():
        parser.error(f"{options.data}: not packed data; give what `tokenizer pack` wrote")
    if options.command == "train":
        failed = train_all(options.data, options.out, read_design())
        if failed:
            print(f"failed: {', '.join(failed)}; their logs are in {options.out / 'logs'}")
        return bool(failed)
    from scripts.experiments.structured.asking import PARTS, ask_all

    if unknown := {*(options.parts or ())} - PARTS.keys():
        parser.error(f"--parts {' '.join(unknown)}: allowed are {', '.join(PARTS)}")
    ask_all(str(options.data), options.out, read_design(), options.parts or list(PARTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
