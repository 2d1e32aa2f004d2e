"""One self-contained HTML page from the rows of results directories; to W&B too, if asked."""

import argparse
from pathlib import Path

from eval.report import render_page, write_page
from eval.results import read_rows
from eval.tracking import MODES, track_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="a results directory")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page to write")
    parser.add_argument("--title", help="its title")
    parser.add_argument(
        "--wandb",
        choices=MODES,
        help="also log figures, table and page to W&B; the run is kept with the first RESULTS",
    )
    parser.add_argument("--wandb-project", default="remnant", metavar="NAME")


def run(options: argparse.Namespace) -> None:
    """Writes the page and says where."""
    rows = read_rows(options.results)
    write_page(options.out, render_page(rows, options.title))
    print(options.out)
    if options.wandb:
        first = Path(options.results[0])
        directory = first if first.is_dir() else first.parent
        run_id = track_results(directory, rows, options.out, options.wandb, options.wandb_project)
        kept = f"; it lies in {directory / 'wandb'}" if options.wandb == "offline" else ""
        print(f"W&B run {run_id}{kept}")
