"""The page of evidence: one HTML file that needs nothing but itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from eval.cells import cells, figures_table
from eval.drawing import colours, theme, vega_script
from eval.lenses.markup import STYLE
from eval.recovery import weights
from eval.report import evidence, figures, strips, tables
from eval.report.evidence import AFTER, BEFORE, BEST, Placed, headline, once, plain_questions
from eval.schema import Row
from eval.tables import duration_text, group, percent, text
from eval.verdicts import SHORT, join_rows, question

LENSES_TITLE = "Inside a language model"
TITLE = "What is left of a prompt inside a language model"
OPEN = 2  # prompts drawn unfolded; the rest open on a click
COLLISIONS = 60  # lines of that table
WORDS = (
    evidence.method, evidence.prompt_set, evidence.site_label, evidence.task_kind,
    evidence.task_label, evidence.variation_label, percent, duration_text, text,
)  # fmt: skip
"""Functions that templates call."""
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
        documents: of lenses (`eval.lenses.lens.read_documents`).

    Raises:
        RequestError: there is nothing to show.
    """
    summed, inside = cells(rows), []
    if documents:
        from eval.report.inside import lens_sections  # which imports torch

        inside = lens_sections(documents, rows)
    shared: dict[str, Any] = {"inside": inside, "measured": figures.sections(summed)}
    shared |= {"title": title or TITLE, "colours": colours()}
    if inside:
        shared |= {"theme": theme(), "library": vega_script(), "inside_style": STYLE}
    recovered = [cell for cell in summed if cell.kind == "recovery"]
    if (inside or shared["measured"]) and not recovered:
        shared["title"] = title or LENSES_TITLE
        return _environment().get_template("lenses.html").render(shared)
    every = evidence.place_rows(rows)
    main = plain_questions(every)
    placed = headline(main)
    joined: strips.Verdicts = {question(j.rows[0]): j for j in join_rows(s.row for s in once(main))}
    lines = tables.pivot(tables.at_deepest(placed))
    by_layer, departing = tables.by_layer(placed), headline(every)
    varied = tables.varied(every) if len(main) < len(every) else []
    columns = evidence.column_order({s.column for s in placed})
    looking = [s for s in placed if s.family != "control"] or placed
    sample = strips.sample(once(looking), joined)
    return _environment().get_template("page.html").render(
        verdicts=list(SHORT),
        sentences=strips.sentences(lines, placed),
        example=strips.example(sample.prompts),
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
        varied_methods=evidence.column_order({m for line in varied for (m,) in line["cells"]}),
        varied_lines=VARIED,
        fold=FOLD,
        every_number=figures_table(recovered, ("prompts", "models")),
        lines=LINES,
        layer_panels=figures.recovery(by_layer, "layer"),
        step_panels=figures.recovery(tables.by_step(placed), "step"),
        noise_panels=figures.recovery(tables.by_value(departing, "noise"), "noise"),
        channel_panels=figures.recovery(tables.by_value(departing, "channels"), "channels"),
        margin_panels=figures.margins(by_layer),
        sample=sample,
        open=OPEN,
        collisions=tables.collision_lines(every),
        limit=COLLISIONS,
        checkpoints=tables.checkpoint_lines(every),
        methods=tables.method_lines(every),
        totals=tables.totals(every),
        **shared,
    )  # fmt: skip


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {word.__name__: word for word in WORDS}
    return environment


def _steps(placed: list[Placed]) -> dict[str, str]:
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
