"""Two kinds of panel as inline SVG; their colours and fonts come from the page's style sheet."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

WIDTH, HEIGHT = 356, 214
LEFT, TOP, BOTTOM = 40, 14, 172  # the plot's edges
NAMED, WIDE = 238, 300  # its right edge, with and without names at the lines' ends
TICKS, NAMES = 188, 206  # baselines of the x axis: its numbers, its name
DODGE = 2.4  # between lines that would lie on each other
SPACE = 12  # between the names of lines

Scale = Callable[[float], float]


class Point(NamedTuple):
    """One marker of a line: its place, its interval, and what hovering tells."""

    x: float
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True)
class Line:
    """A method's shares; `colour` is its number in the style sheet and chooses its marker."""

    name: str
    colour: int
    hollow: bool
    points: list[Point]


@dataclass(frozen=True)
class Bar:
    """A layer's floor `low` and margin `high`, with a number on top."""

    x: float
    low: float
    high: float
    number: str
    hollow: bool
    title: str


def curves(
    lines: list[Line], x_name: str, label: str, ticks: dict[float, str] | None = None
) -> Markup:
    """Lines over an axis of 0 to 100 %, each named once at its right end.

    Args:
        lines: at least one.
        x_name: what the x axis is.
        label: what the drawing shows, for those who cannot see it.
        ticks: how values of x are written, if not as themselves.
    """
    xs = sorted({p.x for line in lines for p in line.points})
    x = _scale(xs[0], xs[-1], LEFT + 14, NAMED - 14)
    y = _scale(0, 1, BOTTOM - 8, TOP + 8)
    parts = [_grid(y(s), NAMED, f"{100 * s:.0f}{' %' if s == 1 else ''}") for s in (0, 0.5, 1)]
    parts += [_x_axis(xs, x, x_name, NAMED, ticks)]
    ends: dict[str, tuple[float, int]] = {}
    lines = sorted(lines, key=lambda line: (line.colour, not line.hollow))
    for i, line in enumerate(lines):
        shift = (i - (len(lines) - 1) / 2) * DODGE
        places = [(x(p.x) + shift, y(p.y) - shift, p) for p in line.points]
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b, _ in places)
        style = f"c{line.colour}{' dashed' if line.hollow else ''}"
        for a, _, p in places:
            parts += [_svg('<path class="ci {}" d="M{} {}V{}"/>', style, a, y(p.low), y(p.high))]
        parts += [_svg('<path class="line {}" d="M{}"/>', style, path)]
        parts += [_marker(line.colour, a, b, line.hollow, p.title) for a, b, p in places]
        if line.name not in ends or not line.hollow:
            ends[line.name] = (places[-1][1], line.colour)
    heights = _spread([height for height, _ in ends.values()])
    for (name, (_, colour)), height in zip(ends.items(), heights, strict=True):
        text = '<text class="label c{}" x="{}" y="{}">{}</text>'
        parts += [_svg(text, colour, NAMED + 8, height + 4, name)]
    return _frame(parts, label)


def bars(drawn: list[Bar], powers: tuple[int, int], colour: int, label: str) -> Markup:
    """Bars from floor to margin by layer, those of one layer side by side, hollow ones first.

    Args:
        drawn: at least one.
        powers: the powers of ten between which the logarithmic axis runs.
        colour: the number of the bars' colour in the style sheet.
        label: what the drawing shows, for those who cannot see it.
    """
    xs = sorted({bar.x for bar in drawn})
    slot = (WIDE - LEFT) / len(xs)
    y = _scale(*powers, BOTTOM - 4, TOP + 12)
    parts = []
    for power in range(powers[0], powers[1] + 1, max(1, round((powers[1] - powers[0]) / 5))):
        exponent = _svg('10<tspan dy="-4" font-size="8">{}</tspan>', str(power).replace("-", "−"))
        parts += [_grid(y(power), WIDE, exponent)]
    places = {value: LEFT + slot * (i + 0.5) for i, value in enumerate(xs)}
    parts += [_x_axis(xs, lambda value: places[value], "layer", WIDE)]
    drawn = sorted(drawn, key=lambda bar: (bar.x, not bar.hollow))
    for i, bar in enumerate(drawn):
        alone = sum(other.x == bar.x for other in drawn) == 1
        x = places[bar.x] + (0 if alone else min(13, slot / 4) * (-1 if bar.hollow else 1))
        top, foot = y(math.log10(bar.high)), y(math.log10(bar.low))
        style = f"c{colour}{' dashed' if bar.hollow else ''}"
        parts += [
            _svg('<g><title>{}</title><path class="line {}" ', bar.title, style),
            _svg('d="M{} {}V{}"/><path class="floor" d="M{} {}h10"/>', x, foot, top, x - 5, foot),
            _marker(colour, x, top, bar.hollow, bar.title),
            _svg('<text class="bits" x="{}" y="{}">{}</text></g>', x, top - 7, bar.number),
        ]
        if i == len(drawn) - 1:
            for name, height in (("floor", foot), ("margin", top)):
                text = '<text class="aside" x="{}" y="{}">{}</text>'
                parts += [_svg(text, x + 10, height + 4, name)]
    return _frame(parts, label)


def _scale(low: float, high: float, start: float, stop: float) -> Scale:
    """A linear map of one interval to another; an interval of one point goes to the middle."""
    if low == high:
        return lambda value: (start + stop) / 2
    return lambda value: start + (value - low) / (high - low) * (stop - start)


def _grid(y: float, right: float, tick: str) -> Markup:
    line = _svg('<path class="grid" d="M{} {}H{}"/>', LEFT, y, right)
    return line + _svg('<text class="tick" x="{}" y="{}">{}</text>', LEFT - 6, y + 4, tick)


def _x_axis(
    xs: list[float],
    scale: Scale,
    name: str,
    right: float,
    ticks: dict[float, str] | None = None,
) -> Markup:
    """The numbers below the plot, as many as there is room for, and what they are."""
    parts, last = [], -math.inf
    for x in xs:
        tick = ticks[x] if ticks else f"{x:,}"
        if scale(x) - last >= 7 * len(tick):
            last = scale(x)
            parts += [_svg('<text class="tick mid" x="{}" y="{}">{}</text>', last, TICKS, tick)]
    middle = (LEFT + right) / 2
    parts += [_svg('<text class="axis" x="{}" y="{}">{}</text>', middle, NAMES, name)]
    return Markup().join(parts)


def _marker(colour: int, x: float, y: float, hollow: bool, title: str) -> Markup:
    """Circle, square, diamond or triangle, so that colour is not needed to tell lines apart."""
    shapes = (
        "m-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0-6.8 0z",
        "m-3.1-3.1h6.2v6.2h-6.2z",
        "m0-4.4l4.4 4.4l-4.4 4.4l-4.4-4.4z",
        "m0-4l4 7h-8z",
    )
    fill, shape = "hollow" if hollow else "filled", shapes[colour % len(shapes)]
    text = '<path class="mark c{} {}" d="M{} {}{}"><title>{}</title></path>'
    return _svg(text, colour, fill, x, y, shape, title)


def _spread(heights: list[float]) -> list[float]:
    """Moves names apart, in their order, so that none covers another."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for above, below in itertools.pairwise(order):
        placed[below] = max(placed[below], placed[above] + SPACE)
    over = max([0.0, *(y - (BOTTOM - 2) for y in placed)])
    return [y - over for y in placed]


def _frame(parts: list[Markup], label: str) -> Markup:
    start = '<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    return _svg(start, WIDTH, HEIGHT, label, Markup().join(parts))


def _svg(template: str, *values: object) -> Markup:
    """Fills a template: numbers short, text escaped."""
    short = [round(v, 1) if isinstance(v, float) else v for v in values]
    return Markup(template).format(*short)
