"""Checkpoints side by side over everything measured: a table, a file, a plot; local files only."""

import argparse
from textwrap import fill

from rich import box
from rich.console import Console
from rich.table import Table

from eval.compare.entries import enter
from eval.compare.evidence import gather
from eval.compare.plot import AXES, FORMATS, write_plot
from eval.compare.table import Comparison, compare, lines, to_csv, to_markdown
from eval.errors import RequestError
from eval.files import write_text

PIPE_WIDTH = 160  # characters of a line where no terminal says how wide it is
LEAST = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "places",
        nargs="+",
        metavar="DIR",
        help="a model directory, a run, results of invert, probe, curves, geometry, lens or "
        "loss --out, or a directory that holds some",
    )
    parser.add_argument(
        "--columns",
        nargs="+",
        metavar="NAME",
        help="parts of columns' names, or patterns as in '*adam*'; all; default: the main ones",
    )
    parser.add_argument("--sort", metavar="NAME", help="by a column; -NAME: the largest first")
    parser.add_argument("--last", action="store_true", help="the last step of each model alone")
    parser.add_argument(
        "--every-seed",
        action="store_true",
        help="training seeds apart; default: their mean, with an interval over them",
    )
    files = parser.add_argument_group("files")
    files.add_argument("--markdown", metavar="FILE", help="the table as Markdown")
    files.add_argument("--csv", metavar="FILE", help="in full: a line a checkpoint and quantity")
    files.add_argument("--plot", metavar="FILE", help=f"curves over training: {', '.join(FORMATS)}")
    files.add_argument("--x", choices=tuple(AXES), default="step", help="what they are over")


def run(options: argparse.Namespace) -> None:
    """Reads everything, prints the table, and writes the files asked for."""
    if options.plot and not options.plot.endswith(FORMATS):
        raise RequestError(f"--plot {options.plot}: must end in {' or '.join(FORMATS)}")
    entries = enter(gather(options.places), options.every_seed)
    if not entries:
        raise RequestError(f"{options.places[0]}: its runs have not reported anything yet")
    shown = [entries[i] for i in _last(entries)] if options.last else entries
    table = compare(shown, options.columns, options.sort)
    if options.csv:
        write_text(options.csv, to_csv(table if options.columns else compare(shown, ["all"])))
    if options.markdown:
        write_text(options.markdown, to_markdown(table))
    _print(table)
    if options.plot:
        print(write_plot(options.plot, entries, options.x, options.columns))


def _last(entries: list) -> list[int]:
    """Where each model's last step stands."""
    return list({entry.label: i for i, entry in enumerate(entries)}.values())


def _print(table: Comparison) -> None:
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for section in table.sections:
        headings, rows = lines(table, section)
        said = table.shared.get(section)
        console.print(f"\n{section.capitalize()}" + (f" (all: {said})" if said else ""))
        for names, cells in _pages(headings, rows, max(console.width, LEAST)):
            console.print(_drawn(names, cells))
    if table.left_out:
        console.print(f"{table.left_out} more columns: --columns all, or parts of their names")


def _drawn(headings: list[str], rows: list[list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in headings:
        left = heading in ("model", "mixers")
        table.add_column(_broken(heading), justify="left" if left else "right", no_wrap=True)
    for cells in rows:
        table.add_row(*cells)
    return table


def _pages(
    headings: list[str], rows: list[list[str]], width: int
) -> list[tuple[list[str], list[list[str]]]]:
    """As many tables as it takes for each to fit the width; model and step begin each."""
    wide = [
        max(*(len(line) for line in _broken(h).split("\n")), *(len(row[i]) for row in rows)) + 3
        for i, h in enumerate(headings)
    ]
    at = headings.index("step")
    pages, used = [[0, at]], wide[0] + wide[at]
    for i in range(1, len(headings)):
        if i == at:
            continue
        if used + wide[i] > width and len(pages[-1]) > 2:
            pages.append([0, at])
            used = wide[0] + wide[at]
        pages[-1].append(i)
        used += wide[i]
    return [([headings[i] for i in page], [[row[i] for i in page] for row in rows])
            for page in pages]  # fmt: skip


def _broken(heading: str) -> str:
    return fill(heading, 14, break_long_words=False)
