"""One self-contained HTML page from the rows of results directories."""

import argparse

from eval.report import render_page, write_page
from eval.results import read_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="a results directory")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page to write")
    parser.add_argument("--title", help="its title")


def run(options: argparse.Namespace) -> None:
    """Writes the page and says where."""
    write_page(options.out, render_page(read_rows(options.results), options.title))
    print(options.out)
