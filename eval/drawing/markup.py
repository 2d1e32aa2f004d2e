"""HTML that stands beside charts: small tables, tokens as they are, and tokens highlighted.

Tokens are highlighted by their attribution: blue for, orange against, which differ in every kind of
colour blindness. Each token shows its number on hover, and when it has the keyboard's focus. All
colours are set by a style sheet that the page has once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from arch.errors import printable

SHADES = 8  # of a colour
EMPTY = "∅"
"""A token without a letter: a part of a character that a later token completes."""
BREAKS = {"\n": "↵\n", "\r": "␍", "\t": "⇥\t"}
_MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_UNSEEN = [*map(chr, range(0x80, 0xA1)), "\xad"]  # a lone byte reads as `\xa0`
_SEEN = _MARKS | {c: f"\\u{ord(c):04x}" for c in (*_MARKS.values(), EMPTY, *_UNSEEN)}

STYLE = Markup(
    """
.attribution { --for: 11 99 181; --against: 214 108 0 }
@media (prefers-color-scheme: dark) { .attribution { --for: 98 174 247; --against: 240 150 50 } }
.attribution p { line-height: 1.9; white-space: pre-wrap; overflow-wrap: anywhere }
.attribution span { border-radius: 3px; padding: .1em 0; position: relative }
.attribution span:focus { outline: 2px solid currentColor }
.attribution span:focus::after, .attribution span:hover::after { content: attr(data-score);
  position: absolute; left: 0; top: 1.6em; z-index: 1; padding: 0 .4em; border-radius: 3px;
  background: Canvas; color: CanvasText; border: 1px solid; font-size: .8rem; white-space: nowrap }
.attribution .f { background: rgb(var(--for) / calc(.6 * var(--shade))) }
.attribution .a { background: rgb(var(--against) / calc(.6 * var(--shade)));
  text-decoration: underline dotted }
"""
)
"""What the page's style sheet needs; tokens against are underlined too."""


def highlighted(pieces: Sequence[str], methods: Mapping[str, Sequence[float]]) -> Markup:
    """A prompt's tokens once for each method, coloured by score, relative to its largest one.

    Each method has a score for every token; one that is not finite has no colour.
    """
    sections = []
    for name, scores in methods.items():
        largest = max((abs(score) for score in scores if math.isfinite(score)), default=0.0)
        tokens = (_token(*scored, largest) for scored in zip(pieces, scores, strict=True))
        section = Markup('<section class="attribution"><h4>{}</h4><p>{}</p></section>')
        sections.append(section.format(name, Markup("").join(tokens)))
    return Markup("\n").join(sections)


def highlights(title: str, answer: str, tokens: Markup, opened: bool) -> Markup:
    """Highlighted tokens below the answer that they are of; they open on a click."""
    section = Markup("<details{}><summary><bdi>{}</bdi> (<code>{}</code>)</summary>{}</details>")
    return section.format(Markup(" open" if opened else ""), title, answer, tokens)


def _token(piece: str, score: float, largest: float) -> Markup:
    shown = largest and math.isfinite(score)
    shade = round(SHADES * abs(score) / largest) / SHADES if shown else 0
    side = ("f" if score > 0 else "a") if shade else ""
    text = "".join(BREAKS.get(letter, letter) for letter in piece) or EMPTY
    number = "no score" if math.isnan(score) else f"{score:+.3g}".replace("-", "−")
    span = '<span tabindex="0" class="{}" style="--shade:{}" title="{}" data-score="{}">{}</span>'
    return Markup(span).format(side, shade, f"{number} {piece!r}", number, text)


def folded_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table that opens on a click, and in print; every text in it is escaped."""

    def line(cell: str, values: Sequence[Any]) -> Markup:
        return Markup("<tr>{}</tr>").format(Markup("").join(map(Markup(cell).format, values)))

    return Markup(
        '<details class="print"><summary><bdi>{}</bdi></summary>'
        '<div class="scroll"><table class="plain"><thead>{}</thead>'
        "<tbody>{}</tbody></table></div></details>"
    ).format(
        title,
        line("<th>{}</th>", columns),
        Markup("").join(line("<td>{}</td>", row) for row in rows),
    )


def codes(pieces: Iterable[str]) -> Markup:
    """Tokens, each as it is."""
    return Markup(" ").join(Markup("<code>{}</code>").format(visible(p)) for p in pieces)


def visible(piece: str) -> str:
    """A token whose blanks and control characters can be seen; their marks are spelt out in it."""
    marked = "".join(_SEEN.get(c, c) for c in piece)
    return printable(marked, len(marked)) or EMPTY
