"""Figures: charts with their words, in a page or as files, in light and in dark."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from arch.storage.files import write_file, write_text
from eval.drawing.plots import DARK, LIGHT, SERIES, Chart, Record, open_altair
from eval.messages import legible

FONT = "system-ui, sans-serif"


@dataclass(frozen=True)
class Figure:
    """Charts with their words.

    Attributes:
        name: short, of letters, digits and dashes; its file's name.
        title: above it.
        about: a sentence about it; screen readers say it.
        panels: a chart under each heading; the heading of a single one may be empty.
    """

    name: str
    title: str
    about: str
    panels: Mapping[str, Chart]

    @property
    def chart(self) -> Chart:
        """All panels as one chart."""
        alt = open_altair()

        headed = [panel.properties(title=heading) for heading, panel in self.panels.items()]
        return alt.concat(*headed, columns=4).properties(description=self.about)


def theme() -> Record:
    """Vega-Lite's `config`: colours that the colour-blind tell apart, and marks beside them."""
    muted, line = LIGHT["muted"], LIGHT["line"]
    words = {"labelColor": muted, "titleColor": muted, "labelFontSize": 11, "titleFontSize": 11}
    return {
        "background": LIGHT["card"],
        "font": FONT,
        "view": {"stroke": None},
        "title": {"color": LIGHT["ink"], "fontSize": 12, "fontWeight": 600, "anchor": "start"},
        "axis": {**words, "titleFontWeight": 400, "gridColor": line, "domainColor": line,
                 "tickColor": line},
        "legend": {**words, "titleFontWeight": 400, "symbolStrokeWidth": 2, "symbolOpacity": 1,
                   "labelLimit": 110, "orient": "bottom", "columns": 2, "columnPadding": 16,
                   "gradientThickness": 9, "offset": 8},
        "axisY": {"titlePadding": 9},  # readers' fonts may be wider than the one that is measured
        "header": words,
        "text": {"color": LIGHT["ink"]},
        "rule": {"color": muted},
        "line": {"strokeWidth": 2, "strokeJoin": "round"},
        "mark": {"color": SERIES[0]},
        "range": {"category": SERIES},
    }  # fmt: skip


def colours() -> str:
    """Style rules by which charts follow the reader's light or dark setting; paper is light."""

    def variables(values: Mapping[str, str]) -> str:
        return ":root{" + "".join(f"--{name}:{value};" for name, value in values.items()) + "}"

    dark = f"@media screen and (prefers-color-scheme: dark){{{variables(DARK)}}}"
    painted = "".join(
        f'svg [{paint}="{value}"]{{{paint}:var(--{name})}}'
        for name, value in LIGHT.items()
        for paint in ("fill", "stroke")
    )
    return variables(LIGHT) + dark + painted


def inline(chart: Chart, label: str) -> Markup:
    """A chart as an SVG within a page that has the rules of `colours`.

    Marks show their `tip`; `label` describes the chart for those who cannot see it.
    """
    import vl_convert

    text = vl_convert.vegalite_to_svg(_spec(chart), config=theme() | {"background": None})
    said = re.compile(r'<path aria-label="([^"]*)" role="[^"]*" aria-roledescription="\w*"(.*?)/>')
    text = said.sub(r"<path\2><title>\1</title></path>", text)
    text = _TAG.sub(_shorten, text.removeprefix("<svg"))
    for nothing in (_PATH, _GROUP, _GROUP):
        text = nothing.sub("", text)
    return Markup(f'<svg role="img" aria-label="{escape(label)}"{text}')


def _shorten(tag: re.Match[str]) -> str:
    """A tag without the attributes that show nothing in a page; words between tags stay."""
    text = tag[0]
    for pattern, short in _SHORTER:
        text = pattern.sub(short, text)
    return text


_TAG = re.compile(r"(?:^|<)[^<>]*>")  # the first has lost its beginning
_SHORTER: list[tuple[re.Pattern[str], Any]] = [
    (re.compile(r' (?:xmlns(?::\w+)?|version|aria-[a-z]+|pointer-events|role|class|font-family'
                r'|stroke-miterlimit)="[^"]*"| opacity="1"| stroke-width="1"'), ""),
    (re.compile(r"\d+\.\d{3,}"), lambda found: f"{float(found[0]):.2f}"),
    (re.compile(r"rgb\((\d+), (\d+), (\d+)\)"),
     lambda found: "#{:02x}{:02x}{:02x}".format(*map(int, found.groups()))),
]  # fmt: skip
"""What shows nothing in a page, two thirds of Vega's text: patterns, and what they become."""
_PATH = re.compile(r'<path d="[^"]*"(?: display="none")?/>')
_GROUP = re.compile(r"<g[^>]*></g>")


def write_chart(path: str | Path, chart: Chart) -> None:
    """Writes a chart as its suffix says: .svg, or .png, which is light.

    Raises:
        OSError: it cannot be written; what was there stays as it was.
    """
    import vl_convert

    path = Path(path)
    if path.suffix == ".png":
        write_file(path, vl_convert.vegalite_to_png(_spec(chart), config=theme(), scale=2))
    else:
        start, rest = vl_convert.vegalite_to_svg(_spec(chart), config=theme()).split(">", 1)
        style = f"<style>{colours()}:root{{background:var(--card)}}</style>"
        write_text(path, f"{start}>{style}{rest}")


def write_figures(directory: str | Path, figures: Sequence[Figure], kind: str) -> list[Path]:
    """Every figure as a file of its own; `kind` is svg or png.

    Raises:
        OSError: a figure cannot be written; one that was there stays as it was.
    """
    paths = list[Path]()
    for figure in figures:
        name = re.sub(r"[^a-z0-9]+", "-", figure.name.lower()).strip("-")
        path, number = Path(directory, f"{name}.{kind}"), 1
        while path in paths:  # of another figure of that name
            number += 1
            path = Path(directory, f"{name}-{number}.{kind}")
        write_chart(path, figure.chart)
        paths.append(path)
    return paths


def _spec(chart: Chart) -> Record:
    """The specification of an Altair chart."""
    whole = chart.to_dict(validate=False) if hasattr(chart, "to_dict") else chart
    return {name: _legible(value) for name, value in whole.items() if name != "config"}


def _legible(value: Any) -> Any:
    """A specification whose words are spelt out as a terminal would show them."""
    if isinstance(value, str):
        return legible(value)
    if isinstance(value, dict):
        return {name: _legible(part) for name, part in value.items()}
    return [_legible(part) for part in value] if isinstance(value, list | tuple) else value
