"""The built-in corpus: simple children's stories, as many as asked for, the same on every machine.

    for story in toy_stories(3): print(story)

In the manner of TinyStories (Eldan and Li 2023). A story follows a plot beat by beat; each beat has
several lines to choose from, each line several words; names, pronouns and things are kept through
the story. The words are in `words.txt`, lines that plots share in `parts.txt`, the plots in
`plots.txt`, which says how they are written. They are read when the first story is generated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

from tokenizer.splits import held_out

HELD_OUT = 1 / 8  # share of all possible stories that only `valid` contains
CHILDREN = 0.6  # share of stories about a child; the others are about an animal
PRONOUNS = {"he": ("he", "him", "his", "himself"), "she": ("she", "her", "her", "herself")}

Item = TypeVar("Item")


class Plot(NamedTuple):
    """A section of a text file: its title, its lists of words, and the lines of each beat."""

    title: str
    words: dict[str, list[str]]
    beats: list[list[str]]


class Library(NamedTuple):
    """The text files; `constant` names the words that stay the same through a story."""

    cast: dict[str, list[str]]
    words: dict[str, list[str]]
    constant: set[str]
    plots: dict[str, list[Plot]]


def toy_stories(count: int, seed: int = 0, split: str = "train") -> Iterator[str]:
    """Yield the first `count` stories of a split."""
    return (story(seed, index, split) for index in range(count))


@lru_cache(maxsize=4096)
def story(seed: int, index: int, split: str = "train") -> str:
    """Return one story: always the same for the same arguments.

    No story of `valid` is ever in `train`, whatever the seeds.
    """
    # Only Random.random() is promised to stay the same across versions of Python.
    rng = Random(f"{seed}/{index}/{split}")
    while True:
        text = _Story(rng, library()).write()
        if held_out(text, HELD_OUT) == (split == "valid"):
            return text


class _Story:
    """One story while it is written."""

    def __init__(self, rng: Random, library: Library) -> None:
        self.rng = rng
        self.library = library
        self.constant: dict[str, str] = {}  # what stays as it is through the story
        self.last: dict[str, str] = {}  # the latest word of each list, not to be repeated at once

    def write(self) -> str:
        hero = "child" if self.rng.random() < CHILDREN else "animal"
        self.plot = self._pick(self.library.plots[hero])
        self._choose_cast(hero)
        lines = [self._pick(beat) for beat in self.plot.beats]
        opening = self._pick(self.library.words[f"opening_{hero}"])
        texts = [self._fill(line) for line in (opening, "\n", *lines)]
        return _polish(" ".join(filter(None, texts)))

    def _choose_cast(self, hero: str) -> None:
        """Choose who is in the story and where it happens."""
        cast, fixed = self.library.cast, self.constant
        names = [(name, "she") for name in cast["girls"]] + [(name, "he") for name in cast["boys"]]
        for number, role in ("", "hero"), ("2", "friend_name"):
            name, he = self._pick(names)
            while name in fixed.values():
                name, he = self._pick(names)
            fixed[role] = name
            fixed[f"boy{number}"] = "boy" if he == "he" else "girl"
            if hero == "animal":
                first = 3 * self._index(len(cast["animals"]) // 3)
                kind, home, feature = cast["animals"][first : first + 3]
                fixed |= {f"home{number}": home, f"feature{number}": feature, f"boy{number}": kind}
            self._keep_pronouns(number, he)
        kind = f" the {fixed['boy2']}" if hero == "animal" else ""
        fixed["friend"] = f"{fixed['his']} friend {fixed['friend_name']}{kind}"
        elders = [elder.split() for elder in cast["elders"]]
        if "(parent)" in self.plot.title:
            elders = [elder for elder in elders if elder[1] in ("Mom", "Dad")]
        elder, fixed["mom"], he = self._pick(elders)
        fixed["elder"] = f"{fixed['his']} {elder}"
        self._keep_pronouns("3", he)
        fixed["neighbor"] = self._pick(cast["neighbors"])
        fixed["man4"], he = (
            ("man", "he") if fixed["neighbor"].startswith("Mr.") else ("woman", "she")
        )
        self._keep_pronouns("4", he)
        fixed["in_place"] = self._pick(cast["places"])
        fixed["the_place"] = fixed["in_place"][fixed["in_place"].index("the ") :]
        fixed["to_place"] = f"to {fixed['the_place']}"

    def _keep_pronouns(self, number: str, he: str) -> None:
        forms = zip(PRONOUNS["he"], PRONOUNS[he], strict=True)
        self.constant.update((name + number, form) for name, form in forms)

    def _fill(self, line: str) -> str:
        """Put words for the names `{name}`, and choose among choices `[one|the other]`."""
        text = ""
        for plain, name, plural, choices in parts(line):
            if name:
                word = self._word(name[0].lower() + name[1:])
                word = _plural(word) if plural else word
                text += word[0].upper() + word[1:] if name[0].isupper() else word
            elif choices:
                text += self._fill(self._pick(choices))
            else:
                text += plain
        return text

    def _word(self, key: str) -> str:
        if key in self.constant:
            word = self.constant[key]
            if key in ("friend", "friend_name"):  # introduced once is enough
                self.constant["friend"] = self.constant["friend_name"]
            return word
        name = key.rstrip("0123456789")
        lines = self.plot.words.get(name) or self.library.words[name]
        stays = name in self.plot.words or name in self.library.constant
        taken = self.constant.values() if stays else (self.last.get(name),)
        word = self._fill(self._pick(lines))
        for _ in range(3):
            if word in taken:
                word = self._fill(self._pick(lines))
        (self.constant if stays else self.last)[key if stays else name] = word
        return word

    def _pick(self, items: Sequence[Item]) -> Item:
        return items[self._index(len(items))]

    def _index(self, size: int) -> int:
        return int(self.rng.random() * size)


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


@cache
def library() -> Library:
    """Read the text files."""
    cast, constant, changing = (_words(body)[0] for _, body in _sections("words.txt"))
    words = constant | changing | {plot.title: plot.beats[0] for plot in _plots("parts.txt")}
    plots = {
        hero: [plot for plot in _plots("plots.txt") if f"({other})" not in plot.title]
        for hero, other in (("child", "animal"), ("animal", "child"))
    }
    return Library(cast, words, set(constant), plots)


@cache
def parts(line: str) -> list[tuple[str, str, bool, list[str]]]:
    """Split a line into plain text, names (whether in the plural) and choices, one of each four."""
    split = re.findall(r"\{(\w+)\}(s\b)?|\[([^]]*)\]|([^[{]+)", line)
    return [
        (
            plain,
            name,
            bool(plural),
            [choice.strip() for choice in choices.split("|")] if choices else [],
        )
        for name, plural, choices, plain in split
    ]


def _sections(file: str) -> list[tuple[str, str]]:
    """Return the title and the body of each section; lines that begin with `#` are left out."""
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    sections = re.split(r"(?m)^== ", re.sub(r"(?m)^#.*\n", "", text))[1:]
    return [(title, body) for title, _, body in (section.partition("\n") for section in sections)]


def _words(body: str) -> tuple[dict[str, list[str]], str]:
    """Read the lists of words `name = a, b, c` at the head of a section; return the rest, too."""
    words = {}
    while match := re.match(r"(\w+) = (.*(?:\n  .*)*)\n", body):
        words[match[1]] = [" ".join(item.split()) for item in match[2].split(",")]
        body = body[match.end() :]
    return words, body


def _plots(file: str) -> Iterator[Plot]:
    for title, body in _sections(file):
        words, body = _words(body)
        beats = []
        for block in re.split(r"\n\n|\n(?=/\n)", body.strip()):
            if block.startswith("/\n"):
                beats.append(["\n"])
                block = block.removeprefix("/\n")
            beats.append([" ".join(line.split()) for line in re.split(r"(?m)^-", block)[1:]])
        yield Plot(title, words, beats)
