"""The page of evidence: one HTML file that needs nothing but itself.

Its sections are fixed: an example, before and after training, bits, layer by layer, the prompts,
the lenses, and where the numbers come from. A section about which there is nothing is left out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from eval.analysis.coordinates import last_looks
from eval.analysis.frame import Frame, frame
from eval.drawing import figures, plots
from eval.drawing.markup import EMPTY, STYLE
from eval.drawing.tables import Record, text, whole_percent
from eval.messages import legible, say_once
from eval.rows.schema import Row
from eval.views.page.bits import Panel, draw_bits
from eval.views.page.captured import read_captured
from eval.views.page.numbers import number_tables
from eval.views.page.prompts import choose_example, draw_prompts
from eval.views.page.recoveries import (
    AFTER,
    BEFORE,
    BETWEEN,
    PHASES,
    deepest,
    recoveries,
    select_lines,
    solvers_in_order,
)

if TYPE_CHECKING:
    from eval.views.page.inside import LensSection  # which imports torch

LENSES_TITLE = "Inside a language model"
TITLE = "What is left of a prompt inside a language model"
CAPTURED_TITLE = "What captured tensors give away"
OVER = {"layer": "layer", "noise": "noise / RMS", "channels": "channels shown"}
"""What the panels of the third section are over, and the titles of their axes."""
FAMILY = {
    "gradient": "gradient methods, which follow the gradient of the distance to the kept vectors",
    "search": "searches, which run tokens through the model and keep those whose vectors fit",
    "prior": "searches, which also use what the model expects",
    "control": "random guesses, as the control",
}
"""What the solvers of a family do."""
QUESTIONS = 40
"""Questions of a model in the table of the second section, at most."""
LINES = 300
"""Lines of a table of every number, which `summary --csv` writes in full."""


def draw_lenses(documents: Sequence[dict[str, Any]], rows: Sequence[Row]) -> list["LensSection"]:
    """What lenses drew of their documents (`eval.lenses.documents.read_documents`), for the page.

    A line names the lenses that rows are of and whose documents are not there.
    """
    known = {document.get("key") for document in documents}
    looked = last_looks(row for row in rows if "look" in row)
    if lost := sorted({row["lens"] for row in looked if row["look"] not in known}):
        say_once(
            f"left out: figures of {', '.join(lost)}, whose documents are not here; give the "
            "directory that `lens` wrote, with its folder lenses/"
        )
    if not documents:
        return []
    from eval.views.page.inside import lens_sections  # which imports torch

    return lens_sections(documents, rows)


def render_page(
    rows: list[Row], title: str | None = None, lenses: Sequence["LensSection"] = ()
) -> str:
    """The page for rows of evidence, as HTML.

    Args:
        rows: of any kinds; of equal keys the last counts. Captured ones alone have their own page.
        title: the page's; a sentence of its own when not given.
        lenses: as `draw_lenses` gives them.

    Raises:
        RequestError: there is nothing to show.
    """
    if rows and not lenses and all(row["kind"] == "captured" for row in rows):
        return template("captured.html").render(
            title=title or CAPTURED_TITLE,
            colours=figures.colours(),
            lens_style="",
            tensors=read_captured(rows),
        )
    rows = list({row["key"]: row for row in rows}.values())
    lines = frame(rows)
    context: dict[str, Any] = dict.fromkeys(
        ("example", "training", "prompts", "curves", "solvers", "families")
    )
    recovered = not lines.empty and (lines["kind"] == "recovery").any()
    if recovered or (lines.empty and not lenses):
        context |= _of_recoveries(rows, select_lines(lines))
    tables = [] if lines.empty else number_tables(lines)
    bits = draw_bits(lines)
    return template("page.html").render(
        title=title or (TITLE if context["training"] or bits else LENSES_TITLE),
        bits=bits,
        colours=figures.colours(),
        lenses=lenses,
        lens_style=STYLE if lenses else "",
        checkpoints=_checkpoints(rows),
        tables=[table.full for table in tables if table.kind != "lens"],
        most=LINES,
        **context,
    )


def _of_recoveries(rows: Sequence[Row], lines: Frame) -> Record:
    """The first four sections."""
    records = recoveries(lines)
    ends = [record for record in deepest(records) if record["phase"] != BETWEEN]
    plain = [r for r in ends if not r["departs"] and r["family"] != "control"]
    prompts, known = draw_prompts(rows, lines, plain or ends)
    return {
        "example": choose_example(prompts),
        "training": training_tables(ends, lines),
        "families": _families(ends),
        "curves": {field: panels for field in OVER if (panels := curves(records, field))},
        "prompts": prompts,
        "undrawn": known - len(prompts),
        "solvers": _solver_words(records),
    }


def _families(records: Sequence[Record]) -> dict[str, list[str]]:
    """The solvers of each family."""
    family_of = {record["solver"]: record["family"] for record in records}
    families: dict[str, list[str]] = {}
    for solver in solvers_in_order(records):
        families.setdefault(family_of[solver], []).append(solver)
    return families


def training_tables(records: Sequence[Record], lines: Frame) -> list[Record]:
    """A table for each model: by question, and within it by solver, the figures of each phase.

    Args:
        records: of `deepest`, without those between.
        lines: of `select_lines`, which say of what steps the phases are.
    """
    steps = lines.groupby(["model", "phase"])["step"].unique().map(sorted).to_dict()
    models: dict[str, dict[Any, dict[str, dict[str, Record]]]] = {}
    for record in records:
        question = (record["tokens"], record["departs"], record["site"], record["prompts"])
        solvers = models.setdefault(record["model"], {}).setdefault(question, {})
        solvers.setdefault(record["solver"], {})[record["phase"]] = record
    return [
        {
            "model": model,
            "seeds": max(r["models"] for r in records if r["model"] == model),
            "steps": {phase: steps.get((model, phase), []) for phase in PHASES},
            "questions": list(questions.items())[:QUESTIONS],
            "left": max(0, len(questions) - QUESTIONS),
        }
        for model, questions in models.items()
    ]


def curves(records: Sequence[Record], field: str) -> list[Panel]:
    """Shares over layers, noise or channels: a panel for each model and question asked at several.

    Noise and channels are evenly spaced, and are of the deepest layer.
    """
    if field != "layer":
        known = [r | {"departs": ""} for r in records if r["departures"].keys() <= {field}]
        records = [r for r in deepest(known) if r[field] is not None]
    else:
        records = [r for r in records if not r["departs"]]
    panels: dict[str, dict[Any, list[Record]]] = {}
    for record in records:
        if record["phase"] != BETWEEN:
            part = "" if record["part"] == "block" else f", {record['part']}"
            heading = f"{record['model']}: {record['tokens']}{part}"
            line = record["phase"], record["solver"]
            panels.setdefault(heading, {}).setdefault(line, []).append(record)
    drawn = []
    for heading, series in panels.items():
        changing = [
            r for line in series.values() if len({r[field] for r in line}) > 1 for r in line
        ]
        if changing:
            points = sorted(map(_point, changing), key=lambda p: (p["phase"] != BEFORE, p[field]))
            chart = plots.lines(
                points, field, "", "solver", "phase", names=solvers_in_order(changing),
                percent=True, even=field != "layer", axis={"title": OVER[field]},
            )  # fmt: skip
            drawn.append(Panel(heading, figures.inline(chart, f"tokens recovered, {heading}")))
    return drawn


def _solver_words(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Each solver's name, its description and its settings."""
    from eval.inversion.solver import solvers

    texts = {name: solver.text for name, solver in solvers().items()}
    settings = {record["solver"]: record["settings"] for record in records}
    return [(name, texts.get(name.partition(" ")[0], ""), settings[name])  # as `adam steps=9`
            for name in solvers_in_order(records)]  # fmt: skip


def _point(record: Record) -> Record:
    low, high = record["low"], record["high"]  # NaN where prompts are alike
    ends = f" ({whole_percent(low)}–{whole_percent(high)})" if low == low else ""
    said = f"{whole_percent(record['value'])} %{ends}, {record['prompts']} prompts"
    point = {name: record[name] for name in (*OVER, "value", "low", "high", "solver")}
    when = f"{record['phase']} training"
    return point | {"phase": when, "tip": f"{record['solver']}, {when}: {said}"}


def _checkpoints(rows: Sequence[Row]) -> list[Record]:
    """Every checkpoint asked about, once; one of two names is two."""
    known = [row["checkpoint"] for row in rows if "checkpoint" in row]
    names = ("name", "step", "weights_sha256")
    return list({tuple(map(about.get, names)): about for about in known}.values())


def _finalize(value: Any) -> Any:
    """What stands in a page of a value: no control characters, no marks of direction."""
    if isinstance(value, Markup):
        return Markup(legible(value))
    return legible(value) if isinstance(value, str) else value


def template(name: str) -> Template:
    """A template of a page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    words = {"percent": whole_percent, "text": text, "inline": figures.inline}
    environment.globals |= words | {
        "FAMILY": FAMILY,
        "BEFORE": BEFORE,
        "AFTER": AFTER,
        "BETWEEN": BETWEEN,
        "EMPTY": EMPTY,
    }
    return environment.get_template(name)
