"""Reads the written parts of the toy stories: lists of words, and plots made of lines.

`toy_plots.py` tells how they are written. They are read once, when the first story is told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tokenizer.toy_adventures import ADVENTURES
from tokenizer.toy_plots import PARTS, PLOTS
from tokenizer.toy_words import ANIMALS, BOYS, ELDERS, FRESH, GIRLS, KEPT, NEIGHBORS, PLACES


class Name(NamedTuple):
    """A `{name}` in a line: `{Toy2}s` is key `toy2`, of the words `toy`, a capital, a plural."""

    key: str
    words: str
    capital: bool
    plural: bool


class Choice(NamedTuple):
    """A `[one|the other]` in a line."""

    lines: tuple[Line, ...]


Line = tuple["str | Name | Choice", ...]
Lines = tuple[Line, ...]

PARAGRAPH: Line = ("\n",)


@dataclass(frozen=True)
class Plot:
    """A plot: whether a parent must be in it, words of its own, and the lines of each beat."""

    parent: bool
    words: dict[str, Lines]
    beats: tuple[Lines, ...]


@dataclass(frozen=True)
class Cast:
    """Who may be in a story, and where it may happen."""

    names: tuple[tuple[str, str], ...]
    animals: tuple[tuple[str, ...], ...]
    elders: tuple[tuple[str, ...], ...]
    parents: tuple[tuple[str, ...], ...]
    neighbors: tuple[tuple[str, str], ...]
    places: tuple[str, ...]


@dataclass(frozen=True)
class Library:
    """All that stories are made of; `kept` names the words that stay the same through a story."""

    cast: Cast
    words: dict[str, Lines]
    kept: frozenset[str]
    plots: dict[str, tuple[Plot, ...]]


@lru_cache(maxsize=1)
def library() -> Library:
    """Read everything."""
    words = {name: tuple(map(_line, _items(text))) for name, text in (KEPT | FRESH).items()}
    parts = {title: beats[0] for title, _, beats in map(_section, _sections(PARTS))}
    plots: dict[str, list[Plot]] = {"child": [], "animal": []}
    for title, own, beats in map(_section, _sections(PLOTS + ADVENTURES)):
        plot = Plot("(parent)" in title, own, beats)
        for hero, others in plots.items():
            if not any(f"({other})" in title for other in plots if other != hero):
                others.append(plot)
    return Library(_cast(), words | parts, frozenset(KEPT), {h: tuple(p) for h, p in plots.items()})


def _cast() -> Cast:
    elders = tuple(tuple(item.split()) for item in _items(ELDERS))
    return Cast(
        names=tuple((name, "she") for name in _items(GIRLS))
        + tuple((name, "he") for name in _items(BOYS)),
        animals=tuple(tuple(_items(line)) for line in ANIMALS.strip().splitlines()),
        elders=elders,
        parents=tuple(elder for elder in elders if elder[1] in ("Mom", "Dad")),
        neighbors=tuple((n, "he" if n.startswith("Mr.") else "she") for n in _items(NEIGHBORS)),
        places=tuple(_items(PLACES)),
    )


def _items(text: str) -> list[str]:
    return [" ".join(item.split()) for item in text.split(",")]


def _sections(text: str) -> list[str]:
    return text.split("== ")[1:]


def _section(text: str) -> tuple[str, dict[str, Lines], tuple[Lines, ...]]:
    """Read the title, the words of its own, and the beats of a section."""
    title, _, body = text.partition("\n")
    words = {}
    while found := re.match(r"(\w+) = (.*(?:\n  .*)*)\n", body):
        words[found[1]] = tuple(map(_line, _items(found[2])))
        body = body[found.end() :]
    beats: list[Lines] = []
    for block in re.split(r"\n\n|\n(?=/\n)", body.strip()):
        if block.startswith("/\n"):
            beats.append((PARAGRAPH,))
            block = block.removeprefix("/\n")
        lines = re.split(r"(?m)^-", block)[1:]
        beats.append(tuple(_line(" ".join(line.split())) for line in lines))
    return title, words, tuple(beats)


def _line(text: str) -> Line:
    """Split a line at its names and choices."""
    parts: list[str | Name | Choice] = []
    for name, plural, choice, plain in re.findall(r"\{(\w+)\}(s\b)?|\[([^]]*)\]|([^[{]+)", text):
        if name:
            key = name[0].lower() + name[1:]
            parts.append(Name(key, key.rstrip("0123456789"), name != key, bool(plural)))
        elif plain:
            parts.append(plain)
        else:
            parts.append(Choice(tuple(_line(one.strip()) for one in choice.split("|"))))
    return tuple(parts)
