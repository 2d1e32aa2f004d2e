"""An experiment's page: its hypotheses and what became of them, tables and figures of its rows."""

from collections.abc import Sequence
from typing import Any

from eval import plots
from eval.drawing import Figure
from eval.errors import RequestError
from eval.information.contrasts import Contrast
from eval.information.hypotheses import OPEN, Change, Finding, judge, values
from eval.schema import Row
from eval.statistics import Interval, clustered
from eval.tables import Table, markdown

PANEL = (130, 130)  # width and height
NOISE = {"type": "log", "base": 2, "nice": False, "padding": 6}
MARKS = {"up": "↑", "down": "↓", "same": "=", "other": "≠", OPEN: "?"}


def page(
    registration: dict[str, Any],
    digest: str,
    rows: Sequence[Row],
    drawn: Sequence[Figure],
    beside: str,
    cells: Table | None = None,
) -> str:
    """The page.

    Args:
        registration: as it was written before the rows.
        digest: its hash, which the rows hold.
        rows: of this registration.
        drawn: the figures.
        beside: what their files' names begin with, seen from the page.
        cells: everything that was measured.
    """
    findings = judge(registration, rows)
    name = registration["name"]
    bits = "in_words" not in registration["design"]
    parts = [
        f"# {registration['title']}",
        f"*Made by `python -m scripts.experiment {name} --page` from the rows beside its "
        f"[registration](experiments/{name}.yaml) (hash {digest}); not written by hand.*",
        state(registration, rows),
        registration["question"].strip(),
        "## Hypotheses" if _whole(registration, rows) else "## Hypotheses, by the rows so far",
        "\n".join(_line(finding) for finding in findings),
        _reading(registration),
        *(f"![{figure.title}]({beside}{figure.name}.svg)\n\n*{figure.about}*" for figure in drawn),
        *(_changes(findings) if bits else _contrasts(findings)),
        *(["## All cells", markdown(cells)] if cells else []),
        "## What was measured",
        _design(registration) if bits else _measured(registration),
    ]
    return "\n\n".join(parts) + "\n"


def _changes(findings: Sequence[Finding]) -> list[str]:
    return [
        "## Changes with training",
        "Mean change and its 95 % interval; ↑ ↓ where the corrected p is below .05 and every "
        "seed's mean has that sign, = where the whole interval is within the bound, ? where open.",
        markdown(_table(findings)),
    ]


def _contrasts(findings: Sequence[Finding]) -> list[str]:
    head = ["", "what", "compared", "bound", "mean", "as said", "p, corrected", "seeds", "pairs"]
    rows = [
        [finding.hypothesis["id"], *_asked(finding, each),
         _said(each.mean), each.answer, "–" if each.p is None else f"{each.p:.4f}",
         " ".join(f"{seed:.2f}" for seed in each.seeds), str(each.pairs)]
        for finding in findings
        for each in finding.contrasts
    ]  # fmt: skip
    return [
        "## Comparisons",
        "Means over pairs of prompt and training seed, or of the differences of the same pairs, or "
        "rank correlations over cells, with their 95 % intervals; p is of the bound. Shares are "
        "from 0 to 1.",
        markdown(Table(head, rows)),
    ]


def _asked(finding: Finding, each: Contrast) -> list[str]:
    """What is compared, in which place, and with which bound."""
    about = finding.hypothesis
    asked = about.get("contrasts") or about["correlations"]
    ways = {way: asked[way] for way in ("above", "below", "within") if way in asked}
    if "contrasts" in about:
        return [asked["value"], each.words, *(f"{way} {bound}" for way, bound in ways.items())]
    bound = next(f"{way} {of[each.words]}" for way, of in ways.items() if each.words in of)
    return [f"rank correlation with {asked['with']}", each.words, bound]


def _measured(registration: dict[str, Any]) -> str:
    name, design = registration["name"], registration["design"]
    corpus = "" if "recall" in design else " --corpus STORIES"
    return (
        f"{registration['background'].strip()} {design['in_words'].strip()} All of it stands in "
        f"the [registration](experiments/{name}.yaml). "
        f"Run it: `python -m scripts.experiment {name}{corpus} --out DIR`."
    )


def state(registration: dict[str, Any], rows: Sequence[Row]) -> str:
    """How much of what was registered is there, in a sentence."""
    if "rows" in registration["design"]:
        wanted = registration["design"]["rows"]
        words = f"{len(rows)} of {wanted} rows"
        if len(rows) == wanted:
            return f"**Complete**: {words}."
        return f"**Not complete**: {words}; what follows is of these alone, and may change."
    design = registration["design"]
    count, steps = design["passages"]["count"], design["steps"]
    models: dict[tuple[int, str], int] = {}
    for row in rows:
        about = row["experiment"]
        place = about["seed"], about["architecture"]
        models[place] = models.get(place, 0) + 1
    whole = [place for place, n in models.items() if n == count * len(steps)]
    seeds = [
        s for s in design["seeds"] if sum(p[0] == s for p in whole) == len(design["architectures"])
    ]
    wanted = len(design["seeds"]) * len(design["architectures"])
    words = (
        f"{len(whole)} of {wanted} models measured, {len(seeds)} of {len(design['seeds'])} seeds"
    )
    words += f" complete, {len(rows)} of {wanted * count * len(steps)} rows"
    if len(whole) == wanted:
        return f"**Complete**: {words}."
    return f"**Not complete**: {words}; what follows is of these alone, and may change."


def _whole(registration: dict[str, Any], rows: Sequence[Row]) -> bool:
    return state(registration, rows).startswith("**Complete**")


def placeholders(registration: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """What a text about the results can look up: functions of a hypothesis, which give words.

    `progress()`, `hypothesis("H1")`, `change("H1", "flat")`, `prediction("H7")` and
    `contrast("H1", "flat, hidden 3")`; all but the first raise RequestError of what there is not.
    """
    findings = {finding.hypothesis["id"]: finding for finding in judge(registration, rows)}

    def of(name: str) -> Finding:
        if name not in findings:
            raise RequestError(f"there is no hypothesis {name!r}; there are {', '.join(findings)}")
        return findings[name]

    def change(name: str, architecture: str) -> str:
        for each in of(name).changes:
            if each.architecture == architecture:
                return _said(each.mean)
        raise RequestError(f"{name}: there are no rows of {architecture!r}")

    def prediction(name: str) -> str:
        if (known := of(name).prediction) is None:
            raise RequestError(f"{name} predicts nothing, or has rows of one seed alone")
        return _said(known[0])

    def contrast(name: str, words: str) -> str:
        for each in of(name).contrasts:
            if each.words == words:
                return _said(each.mean)
        there = "; ".join(each.words for each in of(name).contrasts)
        raise RequestError(f"{name}: nothing is compared as {words!r}; there are: {there}")

    return {
        "contrast": contrast,
        "progress": lambda: state(registration, rows),
        "hypothesis": lambda name: of(name).answer,
        "change": change,
        "prediction": prediction,
    }


def figures(registration: dict[str, Any], rows: Sequence[Row]) -> list[Figure]:
    """Bits against noise and against distance, and bits against the effect."""
    return [
        _against("noise", registration, rows),
        _against("distance", registration, rows),
        _predictor(registration, rows),
    ]


def _against(axis: str, registration: dict[str, Any], rows: Sequence[Row]) -> Figure:
    """Bits of single outputs by architecture and step, against one thing."""
    design = registration["design"]
    measured = design["measured"]
    far = max(measured["distances"])
    if axis == "noise":
        points = [
            (x, {"precision": f"noise {x:g} rms", "distance": far}) for x in measured["noise"]
        ]
        title, about = "noise / RMS", f"Bits of the output {far} positions on, against noise"
    else:
        points = [
            (d, {"precision": "noise 0.25 rms", "distance": d}) for d in measured["distances"]
        ]
        title, about = (
            "positions on",
            "Bits of single outputs at noise of a quarter RMS, by distance",
        )
    records = []
    for x, place in points:
        known = values(rows, {"quantity": "bits"} | place)
        for architecture in design["architectures"]:
            for step in design["steps"]:
                chosen = {k: v for k, v in known.items() if (k[0], k[2]) == (architecture, step)}
                if chosen:
                    mean = _mean(chosen)
                    records.append(
                        {"x": x, "architecture": architecture, "step": f"step {step}", "of": " "}
                        | {"value": mean.estimate, "low": mean.low, "high": mean.high}
                    )
    panel = plots.lines(
        records,
        "x",
        "bits",
        "step",
        ordered=True,
        x_scale=NOISE,
        axis={"title": None, "values": [x for x, _ in points], "grid": False},
        legend={"title": None, "orient": "top"},
        band=True,
        size=PANEL,
    )
    header = {"title": title, "titleOrient": "bottom", "labelOrient": "top"}
    chart = plots.facets(records, panel, "architecture", "of", header=header)
    return Figure(f"{axis}", about, f"{about}, before, during and after training. "
                  "Bands are 95 % intervals over passages and seeds.", chart)  # fmt: skip


def _predictor(registration: dict[str, Any], rows: Sequence[Row]) -> Figure:
    """Mean bits of each architecture, step and distance against its mean effect."""
    records = []
    for distance in registration["design"]["measured"]["distances"]:
        place = {"distance": distance}
        effects = values(rows, {"quantity": "effect_sampled", "scale": "log2"} | place)
        bits = values(rows, {"quantity": "bits", "precision": "noise 0.25 rms"} | place)
        for architecture, step in dict.fromkeys((k[0], k[2]) for k in bits):
            keys = [k for k in bits.keys() & effects.keys() if (k[0], k[2]) == (architecture, step)]
            records.append(
                {
                    "effect": 2 ** (sum(effects[k] for k in keys) / len(keys)),
                    "value": sum(bits[k] for k in keys) / len(keys),
                    "step": f"step {step}",
                    "architecture": architecture,
                }
            )
    records.sort(key=lambda r: (r["step"], r["architecture"], r["effect"]))
    chart = {
        "data": plots.data(records),
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
    about = "Bits of single outputs at noise of a quarter RMS against the token's relative effect"
    return Figure("effect", about, f"{about}: means of passages and seeds.", chart)


def _mean(figures: dict[tuple[str, int, int, int], float]) -> Interval:
    prompts, seeds = [k[3] for k in figures], [k[1] for k in figures]
    return clustered(list(figures.values()), [1.0] * len(figures), prompts, seeds)


def _line(finding: Finding) -> str:
    """A hypothesis in a line: what it says, what became of it, and what that means."""
    about = finding.hypothesis
    meaning = about.get(finding.answer, "")
    words = f" {meaning}" if meaning else " The rows do not settle it."
    shown = ", ".join(f"{c.architecture} {MARKS[c.direction]}" for c in finding.changes)
    if finding.contrasts:
        shown = ", ".join(f"{c.words}: {_said(c.mean)}" for c in finding.contrasts)
    if finding.prediction:
        correlation, error = finding.prediction
        shown = f"rank correlation {_said(correlation)}, mean error {_said(error)} bits"
    return f"- **{about['id']}: {finding.answer}.** {about['says']} ({shown or 'no rows'}){words}"


def _reading(registration: dict[str, Any]) -> str:
    return f"How they are judged: {registration['analysis'].strip()}"


def _table(findings: Sequence[Finding]) -> Table:
    head = ["", "figure", "architecture", "before", "change", "p, corrected", "seeds", "pairs"]
    rows = [
        [finding.hypothesis["id"], _figure(finding), *_cells(change)]
        for finding in findings
        for change in finding.changes
    ]
    return Table(head, rows)


def _figure(finding: Finding) -> str:
    figure = finding.hypothesis["figure"]
    words = [figure["quantity"], figure.get("precision", ""), figure.get("scale", "")]
    return ", ".join([*(w for w in words if w), f"distance {figure['distance']}"])


def _cells(change: Change) -> list[str]:
    p = "–" if change.p is None else f"{change.p:.4f}"
    seeds = " ".join(f"{seed:+.2f}" for seed in change.seeds)
    said = f"{MARKS[change.direction]} {_said(change.mean)}"
    return [change.architecture, f"{change.before:.2f}", said, p, seeds, str(change.pairs)]


def _said(value: Interval) -> str:
    return f"{value.estimate:.2f} ({value.low:.2f} to {value.high:.2f})"


def _design(registration: dict[str, Any]) -> str:
    design = registration["design"]
    passages, measured = design["passages"], design["measured"]
    return (
        f"{len(design['architectures'])} architectures ({', '.join(design['architectures'])}), "
        f"training seeds {', '.join(map(str, design['seeds']))}, steps "
        f"{', '.join(map(str, design['steps']))}; `{design['fit'].strip()}`. "
        f"{passages['count']} passages from inside held-out stories, {passages['before']} tokens "
        f"before the one asked about and {max(measured['distances'])} after it; "
        f"{passages['candidates']:,} candidates. {design['why_so_small'].strip()} "
        "Distances, noise and quantisers are those of [bits.md](../bits.md). "
        f"Run it: `python -m scripts.experiment {registration['name']} --corpus STORIES --out DIR`."
    )
