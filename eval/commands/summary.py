"""A table of results directories: accuracy with its intervals, proof, margins and cost."""

import argparse
from textwrap import fill

from rich import box
from rich.console import Console
from rich.table import Table

from eval.files import write_text
from eval.inversion.layout import lay_out, number_text, to_csv, to_markdown
from eval.inversion.summary import Accepts, Record, accepts, summarise, summarise_verdicts
from eval.results import read_rows

PIPE_WIDTH = 200  # characters of a line where no terminal says how wide it is


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="a results directory")
    parser.add_argument("--csv", metavar="FILE", help="write every figure in full")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables as Markdown")


def run(options: argparse.Namespace) -> None:
    """Prints the tables, and writes the files asked for."""
    rows = read_rows(options.results)
    records, verdicts = summarise(rows), summarise_verdicts(rows)
    if options.csv:
        write_text(options.csv, to_csv(records))
    if options.markdown:
        write_text(options.markdown, _markdown(records, verdicts, accepts(rows)))
    _print(records)
    if verdicts:
        print("\nVerdicts across methods")
        _print(verdicts)
    print(f"\n{_accepts_text(accepts(rows))}")


def _markdown(records: list[Record], verdicts: list[Record], found: Accepts) -> str:
    text = to_markdown(records)
    if verdicts:
        text += f"\nVerdicts across methods. {to_markdown(verdicts)}"
    return f"{text}\n{_accepts_text(found)}\n"


def _accepts_text(found: Accepts) -> str:
    """Whether any answer that was accepted is wrong, and how many may be."""
    text = (
        f"False accepts: {found.wrong:,} of {found.answers:,} answers at the floor "
        f"({found.tokens:,} tokens)"
    )
    if not found.answers:
        return f"{text}."
    return (
        f"{text}, in {found.wrong_pairs:,} of {found.pairs:,} pairs of prompt and model: at most "
        f"{number_text(100 * found.bound)} % of pairs."
    )


def _print(records: list[Record]) -> None:
    layout = lay_out(records, brief=True)
    table = Table(box=box.SIMPLE, header_style="bold", collapse_padding=True, pad_edge=False)
    for heading, numeric in zip(layout.headings, layout.numeric, strict=True):
        justify = "right" if numeric else "left"
        table.add_column(fill(heading, 12), justify=justify, overflow="fold", no_wrap=True)
    for cells in layout.lines:
        table.add_row(*cells)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
    for heading, value in layout.constant.items():
        console.print(f"{heading}: {value}")
