"""The built-in corpus: simple children's stories, as many as asked for, the same on every machine.

    python -m tokenizer sample --count 3

In the manner of TinyStories (Eldan and Li 2023). A story is a plot told beat by beat; each beat has
several lines to choose from, each line several words; names, pronouns and things are kept through
the story. The words are in `toy_words.py`, the plots in `toy_plots.py` and `toy_adventures.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

from tokenizer.splits import held_out
from tokenizer.toy_grammar import PARAGRAPH, Library, Line, Name, library

HELD_OUT = 1 / 8  # of all stories there could be, the share that only `valid` may tell
CHILDREN = 0.6  # share of stories about a child; the others are about an animal
PRONOUNS = {"he": ("he", "him", "his", "himself"), "she": ("she", "her", "her", "herself")}

Item = TypeVar("Item")


def toy_stories(count: int, seed: int = 0, split: str = "train") -> Iterator[str]:
    """Yield the first `count` stories of a split."""
    return (story(seed, index, split) for index in range(count))


def story(seed: int, index: int, split: str = "train") -> str:
    """Return one story: always the same for the same arguments.

    No story of `valid` is ever in `train`, whatever the seeds.
    """
    # Only Random.random() is promised to stay the same across versions of Python.
    rng = Random(f"{seed}/{index}/{split}")
    while True:
        text = _Teller(rng, library()).tell()
        if held_out(text, HELD_OUT) == (split == "valid"):
            return text


class _Teller:
    """Tells one story, and remembers what was said in it."""

    def __init__(self, rng: Random, library: Library) -> None:
        self.rng = rng
        self.library = library
        self.kept: dict[str, str] = {}  # what stays as it is through the story
        self.last: dict[str, str] = {}  # the latest word of each list, not to be repeated at once

    def tell(self) -> str:
        hero = "child" if self.rng.random() < CHILDREN else "animal"
        self.plot = self._pick(self.library.plots[hero])
        self._cast(hero)
        lines = [self._pick(beat) for beat in self.plot.beats]
        opening = self._pick(self.library.words[f"opening_{hero}"])
        told = (self._fill(line) for line in (opening, PARAGRAPH, *lines))
        return _polish(" ".join(filter(None, told)))

    def _cast(self, hero: str) -> None:
        """Choose who is in the story and where it happens."""
        cast, kept = self.library.cast, self.kept
        for number, role in ("", "hero"), ("2", "friend_name"):
            name, he = self._pick(cast.names)
            while name in kept.values():
                name, he = self._pick(cast.names)
            kept[role] = name
            kept[f"boy{number}"] = "boy" if he == "he" else "girl"
            if hero == "animal":
                kind, kept[f"home{number}"], kept[f"feature{number}"] = self._pick(cast.animals)
                kept[f"boy{number}"] = kind
            self._pronouns(number, he)
        kind = f" the {kept['boy2']}" if hero == "animal" else ""
        kept["friend"] = f"{kept['his']} friend {kept['friend_name']}{kind}"
        elder, kept["mom"], he = self._pick(cast.parents if self.plot.parent else cast.elders)
        kept["elder"] = f"{kept['his']} {elder}"
        self._pronouns("3", he)
        kept["neighbor"], he = self._pick(cast.neighbors)
        kept["man4"] = "man" if he == "he" else "woman"
        self._pronouns("4", he)
        kept["in_place"] = self._pick(cast.places)
        kept["the_place"] = kept["in_place"][kept["in_place"].index("the ") :]
        kept["to_place"] = f"to {kept['the_place']}"

    def _pronouns(self, number: str, he: str) -> None:
        forms = zip(PRONOUNS["he"], PRONOUNS[he], strict=True)
        self.kept.update((name + number, form) for name, form in forms)

    def _fill(self, line: Line) -> str:
        """Put words for the names, and choose among choices."""
        text = ""
        for part in line:
            if isinstance(part, str):
                text += part
            elif isinstance(part, Name):
                word = self._word(part)
                word = _plural(word) if part.plural else word
                text += word[0].upper() + word[1:] if part.capital else word
            else:
                text += self._fill(self._pick(part.lines))
        return text

    def _word(self, name: Name) -> str:
        if name.key in self.kept:
            word = self.kept[name.key]
            if name.words in ("friend", "friend_name"):  # told who that is, once is enough
                self.kept["friend"] = self.kept["friend_name"]
            return word
        own = self.plot.words.get(name.words)
        lines = own or self.library.words[name.words]
        keeps = own is not None or name.words in self.library.kept
        taken = self.kept.values() if keeps else (self.last.get(name.words),)
        word = self._fill(self._pick(lines))
        for _ in range(3):
            if word in taken:
                word = self._fill(self._pick(lines))
        (self.kept if keeps else self.last)[name.key if keeps else name.words] = word
        return word

    def _pick(self, items: Sequence[Item]) -> Item:
        return items[int(self.rng.random() * len(items))]


def _polish(text: str) -> str:
    """Write `an` where it belongs, and begin a line where somebody else begins to speak."""
    text = re.sub(r"\b([Aa]) (?=honest|hour|(?!one|uni|use)[aeiou])", r"\1n ", text)
    return text.replace(" \n ", "\n").replace('" "', '"\n"')


def _plural(word: str) -> str:
    if word.endswith(("ch", "sh", "ss", "x")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"
