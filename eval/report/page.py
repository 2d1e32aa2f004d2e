"""The page of evidence: one HTML file that needs nothing but itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from eval.drawing import colours, theme, vega_script
from eval.files import write_text
from eval.lenses.markup import STYLE
from eval.recovery import VERDICTS, join, question, weights
from eval.report import figures, findings, kinds, provenance, strips, tables, wording
from eval.report.evidence import AFTER, BEFORE, BEST, Score, group, headline, once, plain, scores
from eval.schema import Row
from eval.summary import Record, cells
from eval.tables import text

LENSES_TITLE = "Inside a language model"
TITLE = "What is left of a prompt inside a language model"
OPEN = 2  # prompts drawn unfolded; the rest open on a click
COLLISIONS = 60  # lines of that table
COUNTS = [(name, name, False) for name in ("prompts", "models")]
LINES = 300  # of the table of every number, which the summary command prints in full
VARIED = 120  # of the table of variations
FOLD = 40  # lines beyond which a table of variations opens on a click


def render_page(
    rows: list[Row], title: str | None = None, documents: Sequence[dict[str, Any]] = ()
) -> str:
    """The page for rows of evidence, as HTML.

    Args:
        rows: of any kinds.
        title: the page's; a sentence of its own when not given.
        documents: what lenses found (`eval.lenses.lens.read_documents`).

    Raises:
        RequestError: there is nothing to show.
    """
    inside, summed = _inside(documents, rows), cells(rows)
    measured = [(section, figures.by_model(section.panels)) for section in kinds.sections(summed)]
    recovered = [cell for cell in summed if cell.kind == "recovery"]
    if (inside or measured) and not recovered:
        return _environment().get_template("lenses.html").render(
            title=title or LENSES_TITLE, inside=inside, measured=measured, **_drawing(inside)
        )  # fmt: skip
    every = scores(rows)
    main = plain(every)
    placed = headline(main)
    joined: strips.Verdicts = {question(j.rows[0]): j for j in join(s.row for s in once(main))}
    lines = tables.pivot(tables.summary_records(placed))
    by_layer, departing = tables.by_layer(placed), headline(every)
    varied = tables.varied(every) if len(main) < len(every) else []
    columns = wording.column_order({s.column for s in placed})
    looking = [s for s in placed if s.family != "control"] or placed
    sample = strips.sample(once(looking), joined)
    return _environment().get_template("page.html").render(
        wording=wording,
        text=text,
        verdicts=VERDICTS,
        title=title or TITLE,
        sentences=findings.sentences(lines, placed),
        example=findings.example(sample.prompts),
        phases=[p for p in (BEFORE, AFTER) if any(p in cell for r in lines for cell in r["cells"])],
        columns=columns,
        colour_of={c: figures.colour(c, columns) for c in columns},
        several_prompt_sets=len({s.prompts for s in placed}) > 1,
        steps=_steps(placed),
        summary=tables.nested(lines),
        by_layer=tables.nested(tables.pivot(by_layer)),
        outcomes=tables.outcomes(lines, main, joined),
        by_method=tables.by_method(lines, main) if BEST in columns else [],
        varied=varied,
        varied_methods=wording.column_order({m for line in varied for (m,) in line["cells"]}),
        varied_lines=VARIED,
        fold=FOLD,
        every_number=kinds.table(recovered, COUNTS),
        lines=LINES,
        layer_panels=_panels(by_layer, "layer"),
        step_panels=_panels(tables.by_step(placed), "step"),
        noise_panels=_panels(tables.by_value(departing, "noise"), "noise"),
        channel_panels=_panels(tables.by_value(departing, "channels"), "channels"),
        margin_panels=figures.by_model(figures.margins(by_layer)),
        sample=sample,
        open=OPEN,
        collisions=provenance.collisions(every),
        limit=COLLISIONS,
        checkpoints=provenance.checkpoints(every),
        methods=provenance.methods(every),
        totals=provenance.totals(every),
        inside=inside,
        measured=measured,
        **_drawing(inside),
    )  # fmt: skip


def write_page(path: str | Path, html: str) -> None:
    """Writes the page whole or not at all.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    write_text(path, html)


def _inside(documents: Sequence[dict[str, Any]], rows: list[Row]) -> list[Any]:
    """Sections of figures; lenses import torch, which takes a second and is not always needed."""
    if not documents and not any(row["kind"] == "retrieval" for row in rows):
        return []
    from eval.report.inside import sections

    return sections(documents, rows)


def _drawing(inside: list[Any]) -> dict[str, Any]:
    if not inside:
        return {"colours": colours()}
    return {"colours": colours(), "theme": theme(), "library": vega_script(), "inside_style": STYLE}


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _steps(placed: list[Score]) -> dict[str, str]:
    """The first and the last step of each model, and how many training seeds it has."""
    ends = [s for s in placed if s.phase in (BEFORE, AFTER)]
    texts = {}
    for model, several in group(ends, lambda s: s.model).items():
        seeds = max(
            len({weights(s.row) for s in at}) for at in group(several, lambda s: s.step).values()
        )
        steps = " → ".join(f"{step:,}" for step in sorted({s.step for s in several}))
        texts[model] = steps + (f", {seeds} seeds" if seeds > 1 else "")
    return texts


def _panels(records: list[Record], field: str) -> list[tuple[str, list[figures.Panel]]]:
    return figures.by_model(figures.recovery(records, field))
