"""The page of evidence: one HTML file that needs nothing but itself."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from eval.files import write_text
from eval.report import figures, findings, provenance, strips, tables, wording
from eval.report.evidence import AFTER, BEFORE, Row, Score, group, headline, scores

TITLE = "What is left of a prompt inside a language model"
OPEN = 2  # prompts drawn unfolded; the rest open on a click
COLLISIONS = 60  # lines of that table


def render_page(rows: list[Row], title: str | None = None) -> str:
    """The page for rows of evidence, as HTML.

    Raises:
        RequestError: there are no rows, or none with a score.
    """
    every = scores(rows)
    placed = headline(every)
    records = tables.summary_records(placed)
    columns = wording.column_order({s.column for s in placed})
    prompts, left_out = strips.prompts(_rows(placed))
    return _environment().get_template("page.html").render(
        wording=wording,
        title=title or TITLE,
        sentences=findings.sentences(records, placed),
        example=findings.example(prompts),
        phases=[p for p in (BEFORE, AFTER) if any(r["phase"] == p for r in records)],
        columns=columns,
        colours={c: figures.colour(c, columns) for c in columns},
        several_prompt_sets=len({s.prompts for s in placed}) > 1,
        steps=_steps(placed),
        summary=tables.nested(tables.pivot(records)),
        by_layer=tables.nested(tables.pivot(tables.layer_records(placed))),
        every_cell=tables.every_cell(every),
        layer_panels=_by_model(figures.recovery_by_layer(placed)),
        step_panels=_by_model(figures.recovery_by_step(placed)),
        margin_panels=_by_model(figures.margins(placed)),
        prompts=prompts,
        open=OPEN,
        left_out=left_out,
        collisions=provenance.collisions(every),
        limit=COLLISIONS,
        checkpoints=provenance.checkpoints(every),
        methods=provenance.methods(every),
        totals=provenance.totals(every),
    )  # fmt: skip


def write_page(path: str | Path, html: str) -> None:
    """Writes the page whole or not at all.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    write_text(path, html)


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _rows(placed: list[Score]) -> list[tuple[str, str, Row]]:
    """Each row once, though it may have two scores, with its model and phase."""
    return list({s.row["key"]: (s.model, s.phase, s.row) for s in placed}.values())


def _steps(placed: list[Score]) -> dict[str, str]:
    """The first and the last step of each model."""
    ends = [s for s in placed if s.phase in (BEFORE, AFTER)]
    return {
        model: " → ".join(f"{step:,}" for step in sorted({s.step for s in own}))
        for model, own in group(ends, lambda s: s.model).items()
    }


def _by_model(panels: list[figures.Panel]) -> list[tuple[str, list[figures.Panel]]]:
    return list(group(panels, lambda panel: panel.model).items())
