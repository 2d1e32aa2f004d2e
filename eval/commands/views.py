"""The commands `summary`, `compare` and `report`: tables, files and pages of what was measured."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from eval.commands.flags import AboveZero, Places, Plugins, listed
from eval.commands.result import Result, command
from eval.messages import RequestError
from eval.rows.plugins import run_plugins

if TYPE_CHECKING:
    from eval.analysis.summary import Record
    from eval.analysis.verdicts import Accepts
    from eval.drawing.tables import Table
    from eval.rows.schema import Row

NO_PAGES = (".pdf", ".png", ".svg", ".md", ".csv", ".json", ".jsonl", ".txt", ".parquet")
"""Endings of what `report` does not write."""


@command
def summary(results: Places, csv: str | None = None, markdown: str | None = None) -> Result:
    """Prints rows of every kind as tables with intervals; recoveries with proof, margins and cost.

    Args:
        csv: CSV file to write: every figure, a line for each model, step, kind and place
        markdown: Markdown file to write: the tables that are shown, with all their lines
    """
    from arch.storage.files import write_text
    from eval.analysis.frame import frame
    from eval.analysis.verdicts import QUANTITIES, accepts, verdict_lines
    from eval.drawing.tables import markdown as markdown_text
    from eval.drawing.tables import terminal, to_csv
    from eval.rows.store import read_rows
    from eval.views.page.numbers import lens_overview, number_tables, of_kind

    rows = read_rows(listed(results))
    lines = frame(rows)
    if lines.empty:
        raise RequestError("no rows: there is nothing to sum up; run `python -m eval invert` first")
    tables = list(number_tables(lines))
    records = [{"kind": table.kind, **record} for table in tables for record in table.records]
    verdicts = verdict_lines(lines, rows)
    if len(verdicts):
        tables.append(of_kind(verdicts, "Verdicts across solvers", QUANTITIES))
    accepted = _accepts_text(accepts(rows)) if (lines["kind"] == "recovery").any() else ""
    if csv:
        write_text(csv, to_csv(records))
    if markdown:
        write_text(markdown, "\n".join([*(markdown_text(t.brief) for t in tables), accepted, ""]))
    shown = [table.brief for table in tables if table.kind != "lens"]
    if len(shown) < len(tables):
        shown.append(lens_overview(rows))
    return Result(records, terminal(*shown), accepted)


def _accepts_text(accepts: "Accepts") -> str:
    """Whether any answer that was accepted is wrong, and how many may be."""
    from eval.drawing.tables import percent_text

    text = (
        f"False accepts: {accepts.wrong:,} of {accepts.answers:,} answers at the floor "
        f"({accepts.tokens:,} tokens)"
    )
    if not accepts.answers:
        return f"{text}."
    return (
        f"{text}, in {accepts.wrong_pairs:,} of {accepts.pairs:,} pairs of prompt and model: at "
        f"most {percent_text(accepts.bound)} % of pairs. {accepts.ambiguous:,} of the answers are "
        "other prompts with the same outputs."
    )


@command
def compare(
    places: Places,
    paired: Sequence[str] | None = None,
    margin: AboveZero = 5.0,
    solver: str | None = None,
    prompts: str = "story",
    sort: str | None = None,
    last: bool = False,
    every_seed: bool = False,
    markdown: str | None = None,
    csv: str | None = None,
    plot: str | None = None,
    x: Literal["step", "tokens", "flops", "time"] | None = None,
) -> Result:
    """Compares checkpoints: bits/byte, tokens recovered and bits, a line each; two of them paired.

    Figures are those of the last layer, without noise, ablations, controls or pads. Settings in
    which models differ are columns. Two checkpoints are also compared on the same prompts and
    windows: difference, 95 % interval, p, and whether they are equivalent.

    Args:
        places: model directories, runs, RUN@STEP, results of `invert`, `bits` or `loss` (their
            --out), or directories that hold these; or the logs of two models by `lm_eval
            --log_samples`
        paired: two checkpoints, MODEL or MODEL@STEP, to compare on the same prompts; default: those
            of a table of two lines
        margin: two checkpoints are equivalent if they differ by less: in percentage points, for
            bits in per cent of the first value
        solver: solver of the recoveries shown; default: a search
        prompts: set of prompts of the recoveries shown: story, inside, random or text
        sort: column to sort by; -NAME: the largest first
        last: show only the last step of each run; training seeds that end at several are one line
        every_seed: show each training seed; default: their mean, with an interval over them
        markdown: Markdown file to write: the tables
        csv: CSV file to write: every figure, a line for each checkpoint
        plot: figure to write (.svg or .png): loss, recovery and bits over training
        x: x axis of --plot; default: tokens, or steps where tokens are not known
    """
    from eval.views.comparison import table as comparison
    from eval.views.comparison.gather import gather_models, gather_rows, of_present_models
    from eval.views.comparison.pairs import find_pair, paired_records, paired_table
    from eval.views.comparison.plot import FORMATS, write_plot
    from eval.views.comparison.samples import find_samples

    if plot and not plot.endswith(FORMATS):
        raise RequestError(f"--plot {plot}: must end in {' or '.join(FORMATS)}")
    given = listed(places)
    if sampled := find_samples(given):
        names = list(map(str, listed(paired or given)))
        pairs = _pair_samples(sampled, names, margin, plot)
        return _compared(pairs, [paired_table(pairs, *names)], csv, markdown)
    saved = gather_models(given)
    rows = of_present_models(gather_rows(given), saved)
    _refuse_unasked(rows, solver=solver, prompts=None if prompts == "story" else prompts)
    records_of = partial(
        comparison.checkpoint_records, every_seed=every_seed, solver=solver, prompts=prompts
    )
    if not (records := records_of(saved, rows, shown=None if last else comparison.SHOWN)):
        raise RequestError(f"{given[0]}: no rows here, and no figures of a run yet")
    ended = comparison.pool_ends(saved, rows, every_seed) if last or paired else ([], [])
    ends = records_of(*ended, shown=comparison.SHOWN if last else None)
    shown = ends if last else records
    shown = comparison.sort_records(shown, sort) if sort else shown
    tables = [comparison.checkpoint_table(shown)]
    if paired or len(shown) == 2:
        names = listed(paired or [f"{r['model']}@{r['step']}" for r in shown])
        pair = find_pair(records, ends, names)
        lines = comparison.measured(saved, [*rows, *ended[1]], every_seed)
        pairs = paired_records(lines, *pair, margin, solver, prompts)
        if pairs:
            tables.append(paired_table(pairs, *(f"{model}, step {step}" for model, step in pair)))
        elif paired:
            raise RequestError(f"--paired {' '.join(names)}: nothing was asked of both alike")
        shown = pairs if paired else shown
    if plot:
        unknown = any(record["tokens"] is None for record in records)
        pooled = comparison.pool_ends(saved, rows, every_seed, others=True)
        records = records_of(*pooled, shown="the picture shows")
        drawn = comparison.pool_ends([*saved, *comparison.reported(saved)], rows, every_seed, True)
        curves = records_of(*drawn, figures=())
        write_plot(plot, records, curves, x or ("step" if unknown else "tokens"))
    return _compared(shown, tables, csv, markdown, plot or "")


def _refuse_unasked(rows: "Sequence[Row]", **given: str | None) -> None:
    """Refuses a solver or a set of prompts that no recovery here has: columns would be dashes."""
    for name, value in given.items():
        known = {row[name] for row in rows if row["kind"] == "recovery"}
        if value is not None and value not in known:
            raise RequestError(
                f"--{name} {value}: no recovery here has it; there are "
                f"{', '.join(sorted(known)) or 'none'}"
            )


def _pair_samples(
    sampled: "dict[str, dict[str, Path]]", names: list[str], margin: float, plot: str | None
) -> "list[Record]":
    """The differences of two of the models whose samples were found; those have no plot."""
    from eval.views.comparison.samples import paired_samples

    if plot or len(names) != 2 or not sampled.keys() >= set(names):
        flag = f"--plot {plot}" if plot else f"--paired {' '.join(names)}"
        raise RequestError(
            f"{flag}: of samples two are paired, in a table: give two of {', '.join(sampled)}"
        )
    return paired_samples(sampled[names[0]], sampled[names[1]], margin)


def _compared(
    records: "list[Record]",
    tables: "list[Table]",
    csv: str | None,
    markdown: str | None,
    notes: str = "",
) -> Result:
    """The result of a comparison, written to files where they are asked for."""
    from arch.storage.files import write_text
    from eval.drawing.tables import markdown as markdown_text
    from eval.drawing.tables import terminal, to_csv

    if csv:
        lines = [record | record.get("settings", {}) for record in records]
        for line in lines:
            line.pop("settings", None)
        write_text(csv, to_csv(lines))
    if markdown:
        write_text(markdown, "\n".join(map(markdown_text, tables)))
    return Result(records, terminal(*tables), notes)


@command
def report(
    results: Places,
    out: str = "report.html",
    title: str | None = None,
    figures: str | None = None,
    format: Literal["svg", "png"] = "svg",
    plugin: Plugins = (),
    wandb: Literal["offline", "online"] | None = None,
    wandb_project: str | None = None,
) -> Result:
    """Writes one self-contained HTML page from results directories; sends it to W&B if asked.

    Args:
        out: the page to write
        title: title of the page
        figures: directory to write each lens's figure into, as a file
        format: format of the files of --figures
        wandb: also log figures, table and page to W&B, one run for each model; offline: into the
            first results directory
        wandb_project: project in W&B; that of WANDB_PROJECT, else remnant, when not given
    """
    from shlex import join

    from arch.storage.files import write_text
    from eval.drawing.figures import write_figures
    from eval.lenses.documents import read_documents
    from eval.rows.store import read_rows, results_in
    from eval.views.page.page import draw_lenses, render_page
    from eval.views.tracking import track_results

    if (kind := Path(out).suffix.lower()) in NO_PAGES:
        raise RequestError(f"--out {out}: the page is HTML; name it .html in place of {kind}")
    run_plugins(plugin)
    places = listed(results)
    rows = read_rows(places)
    folders = [folder for place in places for folder in results_in(Path(place))]
    documents = [document for folder in folders for document in read_documents(folder)]
    sections, every = draw_lenses(documents, rows), []
    if figures:
        every = [figure for section in sections for figure in section.figures]
        if not every:
            raise RequestError(
                f"--figures {figures}: no lens's document is here; run `python -m eval lens` "
                "first, or give the directory that it wrote"
            )
    write_text(out, render_page(rows, title, sections))
    written = [out]
    if figures:
        written += map(str, write_figures(figures, every, format))
    if wandb:
        first = Path(places[0])
        directory = first if first.is_dir() else first.parent
        project = wandb_project or os.environ.get("WANDB_PROJECT") or "remnant"
        runs = track_results(directory, rows, out, wandb, project)
        if wandb == "online":
            written.append(f"W&B: {', '.join(runs)}")
        if left := list(filter(None, runs.values())):
            about = "offline" if wandb == "offline" else "not all of it has arrived"
            written.append(f"W&B, {about}: wandb sync {join(left)}")
    return Result(rows, "\n".join(written), "", documents)
