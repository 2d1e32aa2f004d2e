"""Interactive figures of the page: Vega-Lite specifications, drawn in the page and as files.

The page carries Vega itself (some 0.9 MB), so that it needs no network. A specification says
nothing of colours of its own: `theme` does, for light and for dark.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arch.files import write_file
from eval.errors import RequestError
from eval.files import write_text

SERIES = ("#0b63b5", "#b86e00", "#00795c", "#8e3b8c", "#a5243d", "#6a727d")
SERIES_DARK = ("#62aef7", "#f0a33c", "#3fc8a0", "#d18ccf", "#f08096", "#a3acb7")
FORMATS = ("svg", "png")
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif'


@dataclass(frozen=True)
class Figure:
    """A chart with its words.

    Attributes:
        name: short, of letters, digits and dashes; its file's name.
        title: above it.
        about: what is seen, in a sentence; also what a screen reader says.
        chart: an altair chart, or its specification; None where there is nothing to show.
    """

    name: str
    title: str
    about: str
    chart: Any

    @property
    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification, with its description."""
        spec = self.chart if isinstance(self.chart, dict) else self.chart.to_dict()
        spec.pop("config", None)
        return {**spec, "description": self.about}


def theme(dark: bool) -> dict[str, Any]:
    """Vega-Lite's `config` for the page's colours, which the colour-blind tell apart.

    Args:
        dark: for a dark background.
    """
    ink, muted, line, card = (
        ("#e6eaee", "#9aa6b3", "#2e3844", "#181e25")
        if dark
        else ("#1b2430", "#5d6875", "#dde2e7", "#ffffff")
    )
    text = {"labelColor": muted, "titleColor": muted, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": card,
        "font": FONT,
        "view": {"stroke": None},
        "title": {"color": ink, "fontSize": 13, "fontWeight": 600, "anchor": "start"},
        "axis": {**text, "gridColor": line, "domainColor": line, "tickColor": line},
        "legend": {**text, "symbolStrokeWidth": 2.5},
        "header": {**text, "labelFontSize": 12},
        "text": {"color": ink},
        "rule": {"color": muted},
        "line": {"strokeWidth": 2},
        "mark": {"color": (SERIES_DARK if dark else SERIES)[0]},
        "range": {
            "category": list(SERIES_DARK if dark else SERIES),
            "heatmap": {"scheme": "viridis"},
            "ramp": {"scheme": "viridis"},
            "diverging": {"scheme": "blueorange"},
        },
    }


def whole_ticks(values: Iterable[float], steps: int = 12) -> list[int] | None:
    """The ticks of an axis over whole numbers, each of them whole; None for other values.

    Vega would put ticks between them, and write those rounded: 1, 2, 2, 3, 3.

    Args:
        values: what the axis is over.
        steps: between the first tick and the last one, at most.
    """
    values = list(values)
    if not values or any(value != int(value) for value in values):
        return None
    low, high = int(min(values)), int(max(values))
    powers = (10**power for power in itertools.count())
    sizes = (digit * power for power in powers for digit in (1, 2, 5))
    step = next(size for size in sizes if high - low <= steps * size)
    return list(range(-(-low // step) * step, high + 1, step))


def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script, which defines `window.vegaEmbed`."""
    import vl_convert

    return vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue] (its stub errs)


def write_figures(directory: str | Path, figures: Sequence[Figure], kind: str) -> list[Path]:
    """Every figure as a file of its own, on a light background, as the page first shows it.

    Args:
        directory: made when missing.
        figures: their names become the files' names.
        kind: one of `FORMATS`.

    Raises:
        RequestError: a format that there is not.
        OSError: a figure cannot be written; one that was there stays as it was.
    """
    import vl_convert

    if kind not in FORMATS:
        raise RequestError(f"figures as {kind}: allowed are {' and '.join(FORMATS)}")
    paths = []
    for figure in figures:
        path = Path(
            directory, f"{re.sub(r'[^a-z0-9]+', '-', figure.name.lower()).strip('-')}.{kind}"
        )
        if kind == "svg":
            write_text(path, vl_convert.vegalite_to_svg(figure.spec, config=theme(False)))
        else:
            write_file(path, vl_convert.vegalite_to_png(figure.spec, config=theme(False), scale=2))
        paths.append(path)
    return paths
