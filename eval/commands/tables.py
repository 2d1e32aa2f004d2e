"""The commands `summary`, `compare` and `report`: tables, files and pages of what was measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from eval import RequestError
from eval.commands import Directory, File, Flag, Name, Plugins, Result, command, listed, run_plugins

if TYPE_CHECKING:
    from eval.measurements import Frame, Quantity
    from eval.tables import Table
    from eval.verdicts import Accepts

BRIEF = ("self", "nonself", "exact", "set_recall", "margin_bits", "at_floor", "false_accepts",
         "evaluations", "seconds")  # fmt: skip
"""Figures of recoveries that a line of a terminal has room for."""


@command()
def summary(
    results: Annotated[str | Path | Sequence[str | Path], Flag(metavar="RESULTS", several=True)],
    csv: File | None = None,
    markdown: File | None = None,
) -> Result:
    """Prints rows of every kind as tables with intervals; recoveries with proof, margins and cost.

    Args:
        results: results directories
        csv: write every figure in full, a line for each model, step, kind and place
        markdown: write the tables as Markdown, with every figure
    """
    from arch.files import write_text
    from eval.measurements import frame
    from eval.rows import read_rows
    from eval.tables import markdown as markdown_text
    from eval.tables import terminal, to_csv
    from eval.verdicts import QUANTITIES, accepts, verdict_lines

    rows = read_rows(listed(results))
    lines = frame(rows)
    if lines.empty:
        raise RequestError("no rows: there is nothing to sum up; run `python -m eval invert` first")
    brief: list[Table] = []
    full: list[Table] = []
    records: list[dict[str, Any]] = []
    lenses = lines["lens"] if "lens" in lines else lines["kind"]
    groups = lines.groupby([lines["kind"] != "recovery", "kind", lenses], dropna=False)
    for (_, kind, name), some in groups:
        title = f"{kind} {name if kind == 'lens' else ''}".strip().capitalize()
        found, few, every = _figures(some, title * (groups.ngroups > 1))
        brief.append(few)
        full.append(every)
        records += [{"kind": kind, **record} for record in found]
    verdicts = verdict_lines(lines, rows)
    if len(verdicts):
        _, table, _ = _figures(verdicts, "Verdicts across methods", QUANTITIES)
        brief.append(table)
        full.append(table)
    accepted = _accepts_text(accepts(rows)) if (lines["kind"] == "recovery").any() else ""
    if csv:
        write_text(csv, to_csv(records))
    if markdown:
        write_text(markdown, "\n".join([*map(markdown_text, full), accepted, ""]))
    return Result(records, terminal(*brief), accepted)


def _figures(
    lines: "Frame", title: str, known: "Sequence[Quantity]" = ()
) -> "tuple[list[dict[str, Any]], Table, Table]":
    """Lines of one kind as records, as a table of the main figures, and as one of all."""
    from eval.measurements import quantities
    from eval.summary import COUNTS, wide
    from eval.tables import lay_out

    records = wide(lines, known)
    kind, known = lines["kind"].iloc[0], known or quantities(lines)
    places = [name for name in lines if name in records[0]]
    main = [q for q in known if (q.name in BRIEF if kind == "recovery" else q.main)] or known
    few, every = (
        lay_out(records, [*((q.name, q.words, q.share) for q in some), *counts], title, places)
        for some, counts in (
            (main, [(name, name, False) for name in COUNTS[1:]]),
            (known, [(name, name, False) for name in COUNTS]),
        )
    )
    return records, few, every


def _accepts_text(accepts: "Accepts") -> str:
    """Whether any answer that was accepted is wrong, and how many may be."""
    from eval.tables import share_text

    text = (
        f"False accepts: {accepts.wrong:,} of {accepts.answers:,} answers at the floor "
        f"({accepts.tokens:,} tokens)"
    )
    if not accepts.answers:
        return f"{text}."
    return (
        f"{text}, in {accepts.wrong_pairs:,} of {accepts.pairs:,} pairs of prompt and model: at "
        f"most {share_text(accepts.bound)} % of pairs. {accepts.ambiguous:,} of the answers are "
        "other prompts with the same outputs."
    )


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
    """Compares checkpoints over everything measured: a table, a file, a plot; of local files.

    Args:
        places: a model directory, a run, results of invert, probe, geometry, lens or
            loss --out, or a directory that holds some
        columns: parts of columns' names, or patterns as in '*adam*'; all; default: the main ones
        sort: by a column; -NAME: the largest first
        last: the last step of each model alone
        every_seed: training seeds apart; default: their mean, with an interval over them
        markdown: the table as Markdown
        csv: in full: a line a checkpoint and quantity
        plot: figures over training: .svg, .png, .html
        x: what they are over
    """
    from arch.files import write_text
    from eval.comparison import enter, lay_side_by_side
    from eval.comparison_plot import FORMATS, write_plot
    from eval.gather import gather_models
    from eval.tables import markdown as markdown_text
    from eval.tables import terminal, to_csv

    if plot and not plot.endswith(FORMATS):
        raise RequestError(f"--plot {plot}: must end in {' or '.join(FORMATS)}")
    given = listed(places)
    entries = enter(gather_models(given), every_seed)
    if not entries:
        raise RequestError(f"{given[0]}: its runs have not reported anything yet")
    named = None if columns is None else list(columns)
    shown = list({entry.label: entry for entry in entries}.values()) if last else entries
    table = lay_side_by_side(shown, named, sort)
    full = (table if named else lay_side_by_side(shown, ["all"])).records()
    tables = table.tables()
    if csv:
        write_text(csv, to_csv(full))
    if markdown:
        write_text(markdown, "\n".join(map(markdown_text, tables)))
    written = write_plot(plot, entries, x, named) if plot else ""
    more = f"{table.left_out} more columns: --columns all, or parts of their names"
    return Result(full, terminal(*tables, more if table.left_out else ""), str(written))


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
    """Writes one self-contained HTML page from results directories; sends it to W&B if asked.

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
    from arch.files import write_text
    from eval.drawing import write_figures
    from eval.lenses.lens import read_documents
    from eval.report.page import render_page
    from eval.rows import read_rows
    from eval.tracking import track_results

    run_plugins(plugin)
    places = listed(results)
    rows = read_rows(places)
    documents = [d for place in places for d in read_documents(place)]
    write_text(out, render_page(rows, title, documents))
    written = [out]
    if figures:
        from eval.report.inside import lens_sections

        every = [figure for section in lens_sections(documents, rows) for figure in section.figures]
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
