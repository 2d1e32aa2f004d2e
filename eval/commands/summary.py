"""A table of results directories: accuracy with 95 % intervals, proof, margins and cost."""

import argparse

from rich import box
from rich.console import Console
from rich.table import Table

from eval.files import write_text
from eval.inversion.layout import lay_out, to_csv, to_markdown
from eval.inversion.summary import Record, summarise
from eval.results import read_rows

PIPE_WIDTH = 200  # characters of a line where no terminal says how wide it is


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="a results directory")
    parser.add_argument("--csv", metavar="FILE", help="write every figure in full")
    parser.add_argument("--markdown", metavar="FILE", help="write the table as Markdown")


def run(options: argparse.Namespace) -> None:
    """Prints the table, and writes the files asked for."""
    records = summarise(read_rows(options.results))
    for path, text in ((options.csv, to_csv), (options.markdown, to_markdown)):
        if path:
            write_text(path, text(records))
    _print(records)


def _print(records: list[Record]) -> None:
    layout = lay_out(records, brief=True)
    table = Table(box=box.SIMPLE, header_style="bold", collapse_padding=True, pad_edge=False)
    for heading, numeric in zip(layout.headings, layout.numeric, strict=True):
        justify = "right" if numeric else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=not numeric)
    for cells in layout.lines:
        table.add_row(*cells)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
    for heading, value in layout.constant.items():
        console.print(f"{heading}: {value}")
