"""An experiment's page: its hypotheses and their outcomes, tables and figures of its rows."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from jinja2 import StrictUndefined, Template

from eval import RequestError, plots
from eval.drawing import Figure
from eval.information.hypotheses import (
    NO,
    OPEN,
    WAYS,
    Contrast,
    Judged,
    Record,
    findings_of,
    records,
)
from eval.schema import Row
from eval.statistics import Interval, clustered
from eval.tables import Table, group, markdown

TEMPLATE = Path(__file__).parent / "templates" / "page.md"
MARKS = {"up": "↑↓", "down": "↓↑", "same": "=≠"}
"""Of an expected change: where it is as expected, and where it is not."""
CHANGES = (
    "## Changes with training",
    "Mean change and its 95 % interval; ↑ ↓ where the corrected p is below .05 and every seed's "
    "mean has that sign, = where the whole interval is within the bound, ? where open.",
    ("figure", "architecture", "before", "change"),
)
COMPARISONS = (
    "## Comparisons",
    "Means over pairs of prompt and training seed, or of the differences of the same pairs, or "
    "rank correlations over cells, with their 95 % intervals; p is of the bound. Shares are from "
    "0 to 1.",
    ("what", "compared", "bound", "mean", "as said"),
)
"""Title, explanation and headings of the table."""


def page(
    registration: dict[str, Any],
    digest: str,
    rows: Sequence[Row],
    drawn: Sequence[Figure],
    beside: str,
    cells: Table | None = None,
) -> str:
    """The page, as Markdown.

    Args:
        registration: as it was written before the rows.
        digest: its hash, which the rows hold.
        rows: of this registration.
        drawn: the figures.
        beside: what their files' names begin with, seen from the page.
        cells: everything that was measured.
    """
    findings, progress = findings_of(registration, rows), state(registration, rows)
    bits = "in_words" not in registration["design"]
    source = TEMPLATE.read_text(encoding="utf-8")
    template = Template(source, trim_blocks=True, undefined=StrictUndefined)
    return template.render(
        about=registration,
        design=registration["design"],
        digest=digest,
        progress=progress,
        complete=progress.startswith("**Complete"),
        hypotheses=[_line(finding) for finding in findings],
        drawn=drawn,
        beside=beside,
        comparisons=_comparisons(findings, bits),
        cells=markdown(cells) if cells else "",
        bits=bits,
    ).rstrip() + "\n"  # fmt: skip


def state(registration: dict[str, Any], rows: Sequence[Row]) -> str:
    """How many of the registered rows are there, in a sentence."""
    design = registration["design"]
    seeds, wanted = [row["experiment"]["seed"] for row in rows], design.get("rows")
    if wanted is None:
        places = len(design["seeds"]) * len(design["architectures"]) * len(design["steps"])
        wanted = places * design["passages"]["count"]
    words = f"{len(rows)} of {wanted} rows"
    if len(rows) == wanted:
        return f"**Complete**: {words}."
    whole = [seed for seed in design["seeds"] if seeds.count(seed) * len(design["seeds"]) == wanted]
    return (
        f"**Not complete**: {words}, {len(whole)} of {len(design['seeds'])} seeds; what follows is "
        "of these alone, and may change."
    )


def placeholders(registration: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """Functions by which a text about the results looks up words of a hypothesis.

    `progress()`, `hypothesis("H1")`, `prediction("H7")` and `contrast("H1", "flat, hidden 3")`; all
    but the first raise RequestError of what there is not.
    """
    findings = {finding.hypothesis["id"]: finding for finding in findings_of(registration, rows)}

    def of(name: str) -> Judged:
        if name not in findings:
            raise RequestError(f"there is no hypothesis {name!r}; there are {', '.join(findings)}")
        return findings[name]

    def prediction(name: str) -> str:
        if (known := of(name).prediction) is None:
            raise RequestError(f"{name} predicts nothing, or has rows of one seed alone")
        return _said(known[0])

    def contrast(name: str, words: str) -> str:
        for each in of(name).comparisons:
            if each.words == words:
                return _said(each.mean)
        there = "; ".join(each.words for each in of(name).comparisons)
        raise RequestError(f"{name}: nothing is compared as {words!r}; there are: {there}")

    return {
        "contrast": contrast,
        "progress": lambda: state(registration, rows),
        "hypothesis": lambda name: of(name).answer,
        "prediction": prediction,
    }


def panels(
    name: str,
    title: str,
    points: list[dict[str, Any]],
    x: str,
    y: str,
    colour: str,
    *,
    column: str = "architecture",
    row: str = "of",
    label: str = "",
    about: str = "",
    ticks: Sequence[float] = (),
    **style: Any,
) -> Figure:
    """A figure of lines with bands, a panel for each value of `column` and of `row`.

    `points` have the fields named here, and `value`, `low`, `high`; without the field `row` there
    is one row. `y` is the title of the axis up, `label` and `ticks` are those of the axis along (x
    and all its values when not given). `about` is said below after the title, `style` is of
    `eval.plots.lines`.
    """
    points = [{row: " ", **point} for point in points]
    axis = {"title": None, "values": ticks or sorted({point[x] for point in points}), "grid": False}
    panel = plots.lines(
        points,
        x,
        y,
        colour,
        axis=axis | style.pop("axis", {}),
        legend={"title": None, "orient": "top"},
        band=True,
        **style,
    )
    header = {"title": label or x, "titleOrient": "bottom", "labelOrient": "top"}
    chart = plots.facets(points, panel, column, row, header=header)
    return Figure(name, title, f"{title}{about}", chart)


def mean_table(places: Sequence[str], columns: dict[str, dict[tuple[Any, ...], float]]) -> Table:
    """Means by cell as a table: the fields that name a cell, then a column for each kind of mean.

    Its lines are the cells of the first column.
    """
    lines = [
        [*map(str, cell), *(f"{of[cell]:.3f}" if cell in of else "–" for of in columns.values())]
        for cell in sorted(next(iter(columns.values())))
    ]
    return Table([*places, *columns], lines)


def figures(registration: dict[str, Any], rows: Sequence[Row]) -> list[Figure]:
    """Bits against noise and against distance, and bits against the effect."""
    measured, flat = registration["design"]["measured"], records(rows)
    far = max(measured["distances"])
    quarter = "bits noise 0.25 rms"
    noise = [(x, f"bits noise {x:g} rms", {"distance": far}) for x in measured["noise"]]
    distance = [(d, quarter, {"distance": d}) for d in measured["distances"]]
    scale = {"type": "log", "base": 2, "nice": False, "padding": 6}
    drawn = []
    for name, label, title, asked in (
        ("noise", "noise / RMS", f"Bits of the output {far} positions on, against noise", noise),
        ("distance", "positions on",
         "Bits of single outputs at noise of a quarter RMS, by distance", distance),
    ):  # fmt: skip
        points = [
            {"x": x, "architecture": architecture, "step": f"step {step}"} | _mean(several, field)
            for x, field, where in asked
            for (architecture, step), several in _grouped(flat, where)
        ]
        about = (
            ", before, during and after training. Bands are 95 % intervals over passages and seeds."
        )
        drawn.append(
            panels(name, title, points, "x", "bits", "step", label=label, about=about,
                   ticks=[x for x, _, _ in asked], ordered=True, x_scale=scale, size=(130, 130))
        )  # fmt: skip
    return [*drawn, _against_effect(flat, quarter)]


def _grouped(flat: Sequence[Record], where: Record) -> list[tuple[tuple[str, int], list[Record]]]:
    """Records of some fields by architecture and step."""
    chosen = (record for record in flat if where.items() <= record.items())
    return list(group(chosen, lambda record: (record["architecture"], record["step"])).items())


def _mean(several: Sequence[Record], field: str) -> dict[str, float]:
    known = [record for record in several if record[field] is not None]
    prompts, seeds = ([record[name] for record in known] for name in ("prompt", "seed"))
    mean = clustered([record[field] for record in known], [1.0] * len(known), prompts, seeds)
    return dict(zip(("value", "low", "high"), mean, strict=True))


def _against_effect(flat: Sequence[Record], field: str) -> Figure:
    """Mean bits of each architecture, step and distance against its mean effect."""
    points = []
    for distance in dict.fromkeys(record["distance"] for record in flat):
        for (architecture, step), several in _grouped(flat, {"distance": distance}):
            known = [r for r in several if r["effect_sampled"] and r[field] is not None]
            points.append(
                {
                    "effect": geometric_mean(record["effect_sampled"] for record in known),
                    "value": fmean(record[field] for record in known),
                    "step": f"step {step}",
                    "architecture": architecture,
                }
            )
    points.sort(key=lambda point: (point["step"], point["architecture"], point["effect"]))
    chart = {
        "data": plots.data(points),
        "mark": {"type": "point", "filled": True, "size": 40},
        "encoding": {
            "x": {"field": "effect", "type": "quantitative", "scale": {"type": "log", "base": 2},
                  "title": "effect / RMS, of a tenth of the candidates"},
            "y": {"field": "value", "type": "quantitative", "title": "bits"},
            "color": {"field": "step", "type": "nominal", "title": None},
            "shape": {"field": "architecture", "type": "nominal", "title": None},
        },
        "width": 420,
        "height": 240,
    }  # fmt: skip
    title = "Bits of single outputs at noise of a quarter RMS against the token's relative effect"
    return Figure("effect", title, f"{title}: means of passages and seeds.", chart)


def _line(finding: Judged) -> str:
    """A hypothesis in a line: what it says, its answer, and what that means."""
    about = finding.hypothesis
    meaning = about.get(finding.answer) or "The rows do not settle it."
    if finding.prediction:
        correlation, error = finding.prediction
        shown = f"rank correlation {_said(correlation)}, mean error {_said(error)} bits"
    elif "expected" in about:
        shown = ", ".join(f"{c.words} {_mark(finding, c)}" for c in finding.comparisons)
    else:
        shown = ", ".join(f"{c.words}: {_said(c.mean)}" for c in finding.comparisons)
    shown = shown or "no rows"
    return f"- **{about['id']}: {finding.answer}.** {about['says']} ({shown}) {meaning}"


def _mark(finding: Judged, change: Contrast) -> str:
    """The direction of a change, in a sign."""
    marks = MARKS[finding.hypothesis["expected"][change.words]]
    return "?" if change.answer == OPEN else marks[change.answer == NO]


def _comparisons(findings: Sequence[Judged], bits: bool) -> str:
    """The comparisons of all hypotheses, as a part of the page."""
    lines = []
    for finding in findings:
        about = finding.hypothesis
        for c in finding.comparisons:
            if bits:
                figure = about["figure"]
                words = [figure[n] for n in ("quantity", "precision", "scale") if n in figure]
                what = ", ".join([*words, f"distance {figure['distance']}"])
                place = [what, c.words, f"{c.before:.2f}", f"{_mark(finding, c)} {_said(c.mean)}"]
            else:
                asked = about.get("contrasts") or about["correlations"]
                means = "value" in asked
                what = asked["value"] if means else f"rank correlation with {asked['with']}"
                bounds = {way: asked[way] for way in WAYS if way in asked}
                bounds = {w: b if means else b.get(c.words) for w, b in bounds.items()}
                bound = next(f"{way} {b}" for way, b in bounds.items() if b is not None)
                place = [what, c.words, bound, _said(c.mean), c.answer]
            p = "–" if c.p is None else f"{c.p:.4f}"
            seeds = " ".join(format(seed, "+.2f" if bits else ".2f") for seed in c.seeds)
            lines.append([about["id"], *place, p, seeds, str(c.pairs)])
    title, said, head = CHANGES if bits else COMPARISONS
    table = markdown(Table(["", *head, "p, corrected", "seeds", "pairs"], lines))
    return f"{title}\n\n{said}\n\n{table}"


def _said(value: Interval) -> str:
    return f"{value.estimate:.2f} ({value.low:.2f} to {value.high:.2f})"
