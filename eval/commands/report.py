"""One self-contained HTML page from the rows of results directories; to W&B too, if asked."""

import argparse
from pathlib import Path
from typing import Any

from eval.errors import RequestError
from eval.lenses.documents import read_documents
from eval.plots import FORMATS, write_figures
from eval.plugins import add_plugin, run_plugins
from eval.report import render_page, write_page
from eval.results import Row, read_rows
from eval.tracking import MODES, track_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="a results directory")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page to write")
    parser.add_argument("--title", help="its title")
    parser.add_argument("--figures", metavar="DIR", help="also every lens's figure as a file")
    parser.add_argument("--format", choices=FORMATS, default="svg", help="of those files")
    add_plugin(parser)
    parser.add_argument(
        "--wandb",
        choices=MODES,
        help="also log figures, table and page to W&B; the run is kept with the first RESULTS",
    )
    parser.add_argument("--wandb-project", default="remnant", metavar="NAME")


def run(options: argparse.Namespace) -> None:
    """Writes the page and says where."""
    run_plugins(options.plugin)
    rows = read_rows(options.results)
    documents = [d for place in options.results for d in read_documents(place)]
    write_page(options.out, render_page(rows, options.title, documents))
    print(options.out)
    if options.figures:
        for path in _write_figures(options, documents, rows):
            print(path)
    if options.wandb:
        first = Path(options.results[0])
        directory = first if first.is_dir() else first.parent
        run_id = track_results(directory, rows, options.out, options.wandb, options.wandb_project)
        kept = f"; it lies in {directory / 'wandb'}" if options.wandb == "offline" else ""
        print(f"W&B run {run_id}{kept}")


def _write_figures(
    options: argparse.Namespace, documents: list[dict[str, Any]], rows: list[Row]
) -> list[Path]:
    from eval.report.inside import sections

    drawn = [figure for section in sections(documents, rows) for figure in section.figures]
    if not drawn:
        raise RequestError(
            f"--figures {options.figures}: no lens has looked yet; run `python -m eval lens` first"
        )
    return write_figures(options.figures, drawn, options.format)
