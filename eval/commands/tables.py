"""The commands `summary`, `compare` and `report`: tables, files and pages of what was measured."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal

from eval.api import Result, command, drawn
from eval.cli import Directory, File, Flag, Name, Plugins, listed
from eval.errors import RequestError

if TYPE_CHECKING:
    from rich.table import Table

    from eval.comparison.table import Comparison
    from eval.inversion.summary import Accepts, Record

PIPE_WIDTH = 160  # characters of a line of `compare` where no terminal says how wide it is
LEAST = 60  # characters of a line of `compare`, at least


@command()
def summary(
    results: Annotated[str | Path | Sequence[str | Path], Flag(metavar="RESULTS", several=True)],
    csv: File | None = None,
    markdown: File | None = None,
) -> Result:
    """A table of results directories: accuracy with its intervals, proof, margins and cost.

    Args:
        results: results directories
        csv: write every figure in full
        markdown: write the tables as Markdown
    """
    from eval.files import write_text
    from eval.inversion.layout import to_csv, to_markdown
    from eval.inversion.summary import accepts, summarise, summarise_verdicts
    from eval.results import read_rows

    rows = read_rows(listed(results))
    records, verdicts = summarise(rows), summarise_verdicts(rows)
    accepted = _accepts_text(accepts(rows))
    text = [_summary(records)]
    pages = [to_markdown(records)]
    if verdicts:
        text.append(f"Verdicts across methods\n{_summary(verdicts)}")
        pages.append(f"Verdicts across methods. {to_markdown(verdicts)}")
    if csv:
        write_text(csv, to_csv(records))
    if markdown:
        write_text(markdown, "\n".join([*pages, accepted, ""]))
    return Result(records, "\n\n".join(text), accepted)


def _accepts_text(found: "Accepts") -> str:
    """Whether any answer that was accepted is wrong, and how many may be."""
    from eval.inversion.layout import number_text

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


def _summary(records: "list[Record]") -> str:
    from rich import box
    from rich.table import Table

    from eval.inversion.layout import lay_out

    layout = lay_out(records, brief=True)
    table = Table(box=box.SIMPLE, header_style="bold", collapse_padding=True, pad_edge=False)
    for heading, numeric in zip(layout.headings, layout.numeric, strict=True):
        justify = "right" if numeric else "left"
        table.add_column(fill(heading, 12), justify=justify, overflow="fold", no_wrap=True)
    for cells in layout.lines:
        table.add_row(*cells)
    constant = [f"{heading}: {value}" for heading, value in layout.constant.items()]
    return drawn(table, *constant, pipe=200)


@command(markdown="files")
def compare(
    places: Annotated[str | Path | Sequence[str | Path], Flag(metavar="DIR", several=True)],
    columns: Annotated[str | Sequence[str] | None, Flag(metavar="NAME", several=True)] = None,
    sort: Name | None = None,
    last: bool = False,
    every_seed: bool = False,
    markdown: File | None = None,
    csv: File | None = None,
    plot: File | None = None,
    x: Annotated[str, Flag(choices=("step", "tokens", "flops", "time"))] = "step",
) -> Result:
    """Checkpoints side by side over everything measured: a table, a file, a plot; local files only.

    Args:
        places: a model directory, a run, results of invert, probe, curves, geometry, lens or
            loss --out, or a directory that holds some
        columns: parts of columns' names, or patterns as in '*adam*'; all; default: the main ones
        sort: by a column; -NAME: the largest first
        last: the last step of each model alone
        every_seed: training seeds apart; default: their mean, with an interval over them
        markdown: the table as Markdown
        csv: in full: a line a checkpoint and quantity
        plot: curves over training: .svg, .png, .html
        x: what they are over
    """
    from eval.comparison.entries import enter
    from eval.comparison.evidence import gather
    from eval.comparison.plot import FORMATS, write_plot
    from eval.comparison.table import compare, to_csv, to_markdown, to_rows
    from eval.files import write_text

    if plot and not plot.endswith(FORMATS):
        raise RequestError(f"--plot {plot}: must end in {' or '.join(FORMATS)}")
    found = listed(places)
    entries = enter(gather(found), every_seed)
    if not entries:
        raise RequestError(f"{found[0]}: its runs have not reported anything yet")
    named = None if columns is None else list(columns)
    shown = list({entry.label: entry for entry in entries}.values()) if last else entries
    table = compare(shown, named, sort)
    full = table if named else compare(shown, ["all"])
    if csv:
        write_text(csv, to_csv(full))
    if markdown:
        write_text(markdown, to_markdown(table))
    written = write_plot(plot, entries, x, named) if plot else ""
    return Result(to_rows(full), _compared(table), str(written))


def _compared(table: "Comparison") -> str:
    from rich.console import Console

    from eval.comparison.table import lines

    console = Console()
    width = console.width if console.is_terminal else PIPE_WIDTH
    parts: list[Any] = []
    for section in table.sections:
        headings, rows = lines(table, section)
        said = table.shared.get(section)
        parts.append(f"\n{section.capitalize()}" + (f" (all: {said})" if said else ""))
        for names, cells in _pages(headings, rows, max(width, LEAST)):
            parts.append(_drawn(names, cells))
    if table.left_out:
        parts.append(f"{table.left_out} more columns: --columns all, or parts of their names")
    return drawn(*parts, width=width)


def _drawn(headings: list[str], rows: list[list[str]]) -> "Table":
    from rich import box
    from rich.table import Table

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


@command()
def report(
    results: Annotated[str | Path | Sequence[str | Path], Flag(metavar="RESULTS", several=True)],
    out: File = "report.html",
    title: str | None = None,
    figures: Directory | None = None,
    format: Literal["svg", "png"] = "svg",
    plugin: Plugins = None,
    wandb: Literal["offline", "online"] | None = None,
    wandb_project: Name = "remnant",
) -> Result:
    """One self-contained HTML page from the rows of results directories; to W&B too, if asked.

    Args:
        results: results directories
        out: the page to write
        title: its title
        figures: also every lens's figure as a file
        format: of those files
        plugin: a Python file of yours that registers more (docs/extending.md); may be given several
            times. It is run as your own code, with all your rights: give only files that you trust
        wandb: also log figures, table and page to W&B; the run is kept with the first RESULTS
        wandb_project: of W&B
    """
    from eval.lenses.documents import read_documents
    from eval.plots import write_figures
    from eval.plugins import run_plugins
    from eval.report import render_page, write_page
    from eval.results import read_rows
    from eval.tracking import track_results

    run_plugins(plugin)
    places = listed(results)
    rows = read_rows(places)
    documents = [d for place in places for d in read_documents(place)]
    write_page(out, render_page(rows, title, documents))
    written = [out]
    if figures:
        from eval.report.inside import sections

        every = [figure for section in sections(documents, rows) for figure in section.figures]
        if not every:
            raise RequestError(
                f"--figures {figures}: no lens has looked yet; run `python -m eval lens` first"
            )
        written += map(str, write_figures(figures, every, format))
    if wandb:
        first = Path(places[0])
        kept_in = first if first.is_dir() else first.parent
        run_id = track_results(kept_in, rows, out, wandb, wandb_project)
        kept = f"; it lies in {kept_in / 'wandb'}" if wandb == "offline" else ""
        written.append(f"W&B run {run_id}{kept}")
    return Result(rows, "\n".join(written), "", documents)
