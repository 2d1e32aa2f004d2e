"""The style of charts, and their output: a part of a page, SVG, PNG or HTML.

One style for pages and for files, in light and in dark. Charts have the colours of `LIGHT`; the
style rules of `colours`, in the page or in the file, replace them by those of `DARK` where the
reader prefers that. A chart with a menu or a slider is drawn by Vega in the page, which carries
Vega itself (some 0.9 MB), so that it needs no network; any other one is an SVG.
"""

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from arch.files import write_file, write_text
from eval import RequestError

Chart = dict[str, Any]
LIGHT = {
    "card": "#ffffff", "ink": "#1b2430", "muted": "#5d6875", "line": "#dde2e7",
    "c0": "#0b63b5", "c1": "#b86e00", "c2": "#00795c", "c3": "#8e3b8c", "c4": "#a5243d",
    "c5": "#6a727d",
}  # fmt: skip
"""Colours by their names in style sheets; c0 to c5 are those of series."""
DARK = {
    "card": "#181e25", "ink": "#e6eaee", "muted": "#9aa6b3", "line": "#2e3844",
    "c0": "#62aef7", "c1": "#f0a33c", "c2": "#3fc8a0", "c3": "#d18ccf", "c4": "#f08096",
    "c5": "#a3acb7",
}  # fmt: skip
SERIES = [LIGHT[f"c{i}"] for i in range(6)]
MARKS = ["diamond", "square", "triangle-up", "cross", "triangle-down", "circle"]
FORMATS = ("svg", "png")
FONT = "system-ui, sans-serif"


@dataclass(frozen=True)
class Figure:
    """A chart with its words.

    Attributes:
        name: short, of letters, digits and dashes; its file's name.
        title: above it.
        about: a sentence about it; screen readers say it.
        chart: a Vega-Lite specification, or an Altair chart; None where there is nothing to show.
    """

    name: str
    title: str
    about: str
    chart: Any

    @property
    def spec(self) -> Chart:
        """The Vega-Lite specification, with its description."""
        return {**plain(self.chart), "description": self.about}

    @property
    def packed(self) -> str:
        """The specification as a page holds it: JSON, in gzip, in base64; a fifth of its length."""
        text = json.dumps(self.spec, separators=(",", ":")).encode()
        return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def plain(chart: Any) -> Chart:
    """The specification of an Altair chart, too."""
    return (
        {k: v for k, v in chart.to_dict().items() if k != "config"}
        if hasattr(chart, "to_dict")
        else chart
    )


def theme() -> Chart:
    """Vega-Lite's `config`: colours that the colour-blind tell apart, and marks beside them."""
    muted, line = LIGHT["muted"], LIGHT["line"]
    text = {"labelColor": muted, "titleColor": muted, "labelFontSize": 12, "titleFontSize": 12}
    viridis = {"scheme": "viridis"}
    return {
        "background": LIGHT["card"],
        "font": FONT,
        "view": {"stroke": None},
        "title": {"color": LIGHT["ink"], "fontSize": 13, "fontWeight": 600, "anchor": "start"},
        "axis": {**text, "gridColor": line, "domainColor": line, "tickColor": line},
        "legend": {
            **text,
            "symbolStrokeWidth": 2,
            "symbolOpacity": 1,
            "columnPadding": 28,
            "labelLimit": 320,
        },
        "header": {**text, "labelFontSize": 12},
        "text": {"color": LIGHT["ink"]},
        "rule": {"color": muted},
        "line": {"strokeWidth": 2, "strokeJoin": "round"},
        "mark": {"color": SERIES[0]},
        "range": {"category": SERIES, "symbol": MARKS, "heatmap": viridis, "ramp": viridis},
    }


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
    background = "svg.marks{background-color:var(--card)!important}"  # which Vega writes as a style
    return variables(LIGHT) + dark + painted + background


def vega_script() -> str:
    """Vega, Vega-Lite and vega-embed as one script, which defines `window.vegaEmbed`."""
    import vl_convert

    return vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue] (its stub errs)


def inline(chart: Chart, label: str) -> Markup:
    """A chart without menus as an SVG within a page that has the rules of `colours`.

    Marks show their `tip`; `label` describes the chart for those who cannot see it.
    """
    import vl_convert

    text = vl_convert.vegalite_to_svg(chart, config=theme() | {"background": None})
    said = re.compile(r'<path aria-label="([^"]*)" role="[^"]*" aria-roledescription="\w*"(.*?)/>')
    text = said.sub(r"<path\2><title>\1</title></path>", text)
    _, rest = text.split(' version="1.1"', 1)  # in a page, SVG needs no namespaces
    return Markup(f'<svg role="img" aria-label="{escape(label)}"{rest}')


def write_chart(path: str | Path, chart: Chart) -> None:
    """Writes a chart as its suffix says: .svg, .png (which is light) or .html.

    Raises:
        OSError: it cannot be written; what was there stays as it was.
    """
    import vl_convert

    path = Path(path)
    if path.suffix == ".png":
        write_file(path, vl_convert.vegalite_to_png(chart, config=theme(), scale=2))
    elif path.suffix == ".svg":
        start, rest = vl_convert.vegalite_to_svg(chart, config=theme()).split(">", 1)
        style = f"<style>{colours()}:root{{background:var(--card)}}</style>"
        write_text(path, f"{start}>{style}{rest}")
    else:
        page = vl_convert.vegalite_to_html(chart, bundle=True, config=theme(), renderer="svg")
        style = f"<style>{colours()}body{{background:var(--card)}}</style></head>"
        write_text(path, page.replace("</head>", style, 1))


def write_figures(directory: str | Path, figures: Sequence[Figure], kind: str) -> list[Path]:
    """Every figure as a file of its own, as the page first shows it; `kind` is one of `FORMATS`.

    Raises:
        RequestError: another format.
        OSError: a figure cannot be written; one that was there stays as it was.
    """
    if kind not in FORMATS:
        raise RequestError(f"figures as {kind}: allowed are {' and '.join(FORMATS)}")
    paths = []
    for figure in figures:
        name = re.sub(r"[^a-z0-9]+", "-", figure.name.lower()).strip("-")
        paths.append(Path(directory, f"{name}.{kind}"))
        write_chart(paths[-1], figure.spec)
    return paths
