"""Pairs of stories that differ in one thing: who it is about, which animal, or what mood.

A story is a frame with a name, an animal and a mood in it, each of them one token of the model's
tokenizer, and a cue after which one of the three is what comes next:

    Once upon a time, there was a little dog named Max. The dog was very sad. | One day, -> Max
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from random import Random

from tokenizers import Tokenizer

from eval.errors import RequestError

WORDS = {
    "name": "Lily Tom Max Ben Mia Sam Lucy Tim Anna Jack Sue Bob Amy Spot Sara Billy",
    "animal": "dog cat bird bear rabbit frog fish duck mouse lion fox pig bunny cow horse monkey",
    "mood": "happy sad scared angry excited tired proud hungry lonely brave worried curious",
}
CUES = {"name": " One day,", "animal": " The", "mood": " {name} felt very"}
FRAMES = (
    "Once upon a time, there was a little {animal} named {name}. The {animal} was very {mood}.",
    "There was a {animal} in the park. The {animal} felt {mood}. Its name was {name}.",
    "Once there was a {mood} {animal}. It liked to play all day. Its name was {name}.",
    "One day, a {animal} went for a walk. It was {mood}. Everyone called the {animal} {name}.",
)
"""The first of them is held out: directions are learnt from the others."""
MOST = 6  # words of an attribute


@dataclass(frozen=True)
class Story:
    """A story told up to a cue.

    Attributes:
        tokens: of the text.
        words: the (first) token of each attribute.
        places: where each attribute's word stands first.
        cue: the attribute that comes next.
        text: of the story and the cue.
    """

    tokens: tuple[int, ...]
    words: dict[str, int]
    places: dict[str, int]
    cue: str
    text: str


def attribute_words(tokenizer: Tokenizer) -> dict[str, dict[str, int]]:
    """The words of each attribute that are one token after a space, with that token.

    An attribute with fewer than two such words is left out: none can be swapped.
    """
    found = {}
    for attribute, words in WORDS.items():
        encoded = {word: _ids(tokenizer, f" {word}") for word in words.split()}
        single = {word: ids[0] for word, ids in encoded.items() if len(ids) == 1}
        if len(single) > 1:
            found[attribute] = dict(list(single.items())[:MOST])
    return found


def require_words(tokenizer: Tokenizer) -> None:
    """Whether anything can be swapped.

    Raises:
        RequestError: no two names, animals or moods are single tokens; some are shown.
    """
    if attribute_words(tokenizer):
        return
    shown = []
    for words in WORDS.values():
        word = words.split()[0]
        pieces = [tokenizer.decode([i]) for i in _ids(tokenizer, f" {word}")]
        shown.append(f"{word} = {' + '.join(map(repr, pieces))}")
    raise RequestError(
        "no two names, animals or moods are single tokens of this tokenizer, so none can be "
        f"swapped: {', '.join(shown)}; use a model with a larger vocabulary"
    )


def story(tokenizer: Tokenizer, frame: str, cue: str, chosen: dict[str, str]) -> Story:
    """A frame with its words, up to the cue of one attribute."""
    text = (frame + CUES[cue]).format(**chosen)
    words, places = {}, {}
    for attribute, word in chosen.items():
        before = frame[: frame.index("{" + attribute + "}")].format(**chosen).rstrip()
        places[attribute] = len(_ids(tokenizer, before))
        words[attribute] = _ids(tokenizer, f" {word}")[0]
    return Story(tuple(_ids(tokenizer, text)), words, places, cue, text)


def contexts(
    tokenizer: Tokenizer, count: int, held_out: bool, seed: int = 0
) -> list[tuple[str, dict[str, str]]]:
    """Frames with a word for each attribute, all different: what stories are told from.

    Args:
        tokenizer: the model's.
        count: how many, at most.
        held_out: from the held-out frame; from the others if not.
        seed: of the choice.
    """
    given = {attribute: words.split()[:1] for attribute, words in WORDS.items()}
    given |= {attribute: list(words) for attribute, words in attribute_words(tokenizer).items()}
    choices = [dict(zip(given, words, strict=True)) for words in product(*given.values())]
    frames = FRAMES[:1] if held_out else FRAMES[1:]
    every: list[tuple[str, dict[str, str]]] = list(product(frames, choices))
    Random(seed).shuffle(every)
    return every[:count]


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids
