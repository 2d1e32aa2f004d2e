"""Texts made for lenses: windows of stories to fit on, pairs that differ in a word, retellings.

Stories that differ in one thing are frames with a name, an animal and a mood in them, each of them
one token of the model's tokenizer, and a cue after which one of the three is what comes next:

    Once upon a time, there was a little dog named Max. The dog was very sad. | One day, -> Max

Stories told twice (`retellings.txt`) have the same events in other words and with other names, as
translations have for a multilingual model.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import NamedTuple

from tokenizers import Tokenizer
from torch import Tensor

from eval.lenses.lens import Request
from eval.lenses.words import spaced_ids
from eval.messages import RequestError
from eval.models.checkpoint import Checkpoint
from eval.models.pieces import encode_text
from eval.models.text import Use, held_out_text

WINDOW = 128  # tokens, or the context
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


def stories(checkpoint: Checkpoint, request: Request, use: Use, count: int) -> Tensor:
    """The first `count` windows of a request's text, `(count, T)` tokens, the same for every lens.

    Raises:
        RequestError: there are fewer.
        CorpusError: the corpus cannot be read.
    """
    text = held_out_text(checkpoint, request.corpus)

    def cut() -> Tensor:
        windows = text.windows(use, count, min(WINDOW, checkpoint.config.context))
        return windows.to(checkpoint.model.embedding.weight.device)

    return checkpoint.keep(("stories", text, use, count), cut)


def begun_in(checkpoint: Checkpoint, request: Request, count: int) -> list[int]:
    """The number of the story in which each of the first windows for evaluation begins.

    Windows of one story are no independent samples.
    """
    length = min(WINDOW, checkpoint.config.context)
    return held_out_text(checkpoint, request.corpus).begun_in("evaluation", count, length)


def whole_windows(checkpoint: Checkpoint, request: Request, least: int, what: str) -> int:
    """How many windows the tokens of a request are.

    Raises:
        RequestError: fewer than the `least` that `what` needs, which are its first words.
    """
    length = min(WINDOW, checkpoint.config.context)
    count = request.tokens // length
    if count < least:
        raise RequestError(
            f"--tokens {request.tokens}: {what} {least * length} at least; ask for more"
        )
    return count


@dataclass(frozen=True)
class Story:
    """A story told up to a cue."""

    tokens: tuple[int, ...]
    words: dict[str, int]  # the (first) token of each attribute
    places: dict[str, int]  # where each attribute's word stands first
    cue: str  # the attribute that comes next
    text: str  # of the story and the cue


def attribute_words(tokenizer: Tokenizer) -> dict[str, dict[str, int]]:
    """The words of each attribute that are one token of their own after a space, with that token.

    A word is left out that is another token before a full stop or in a story, or the token of an
    unknown word. An attribute with fewer than two words is left out: none can be swapped.
    """
    by_attribute = {}
    for attribute, words in WORDS.items():
        encoded = {word: spaced_ids(tokenizer, word) for word in words.split()}
        single = {
            word: ids[0]
            for word, ids in encoded.items()
            if len(ids) == 1
            and ids == spaced_ids(tokenizer, f"{word}.")[:1]
            and tokenizer.decode(ids).strip().casefold() == word.casefold()
            and _stands_apart(tokenizer, attribute, word, ids[0])
        }
        if len(single) > 1:
            by_attribute[attribute] = dict(list(single.items())[:MOST])
    return by_attribute


def following(words: dict[str, int], token: int) -> int:
    """The next word of an attribute, after the last the first."""
    tokens = list(words.values())
    return tokens[(tokens.index(token) + 1) % len(tokens)]


def require_words(tokenizer: Tokenizer) -> dict[str, dict[str, int]]:
    """`attribute_words`, where anything can be swapped.

    Raises:
        RequestError: no two names, animals or moods are single tokens; some are shown.
    """
    if words := attribute_words(tokenizer):
        return words
    shown = []
    for word in (words.split()[0] for words in WORDS.values()):
        pieces = [tokenizer.decode([i]) for i in spaced_ids(tokenizer, word)]
        shown.append(f"{word} = {' + '.join(map(repr, pieces))}")
    raise RequestError(
        "no two names, animals or moods are single tokens of this tokenizer, so none can be "
        f"swapped: {', '.join(shown)}; use a model with a larger vocabulary"
    )


def tell_story(tokenizer: Tokenizer, frame: str, cue: str, chosen: dict[str, str]) -> Story:
    """A frame with its words, up to the cue of one attribute."""
    text = (frame + CUES[cue]).format(**chosen)
    places = {attribute: _place(tokenizer, frame, attribute, chosen) for attribute in chosen}
    words = {attribute: spaced_ids(tokenizer, word)[0] for attribute, word in chosen.items()}
    return Story(tuple(encode_text(tokenizer, text, "text")), words, places, cue, text)


def _place(tokenizer: Tokenizer, frame: str, attribute: str, chosen: dict[str, str]) -> int:
    """How many tokens a frame has before the word of an attribute."""
    before = frame[: frame.index("{" + attribute + "}")].format(**chosen).rstrip()
    return len(encode_text(tokenizer, before, "text"))


def _stands_apart(tokenizer: Tokenizer, attribute: str, word: str, token: int) -> bool:
    """Whether a word's token is at its place in every frame, and not joined with the word before.

    Tokens of some tokenizers reach over blanks.
    """
    chosen = {other: words.split()[0] for other, words in WORDS.items()} | {attribute: word}
    return all(
        encode_text(tokenizer, frame.format(**chosen), "text")[place : place + 1] == [token]
        for frame in FRAMES
        for place in [_place(tokenizer, frame, attribute, chosen)]
    )


def contexts(
    tokenizer: Tokenizer, count: int, held_out: bool, seed: int = 0
) -> list[tuple[str, dict[str, str]]]:
    """At most `count` frames with a word for each attribute, all different: what stories tell.

    They are of the held-out frame, or of the others.
    """
    given = {attribute: words.split()[:1] for attribute, words in WORDS.items()}
    given |= {attribute: list(words) for attribute, words in attribute_words(tokenizer).items()}
    choices = [dict(zip(given, words, strict=True)) for words in product(*given.values())]
    frames = FRAMES[:1] if held_out else FRAMES[1:]
    every: list[tuple[str, dict[str, str]]] = list(product(frames, choices))
    Random(seed).shuffle(every)
    return every[:count]


class Swap(NamedTuple):
    """A held-out story, and the same with the word of one attribute swapped for the next one."""

    attribute: str
    number: int  # of the context that is told
    story: Story
    swapped: Story


def swaps(tokenizer: Tokenizer, count: int, seed: int = 0) -> list[Swap]:
    """For each attribute, stories of `count` contexts, each told up to the cue of every one."""
    known, pairs = attribute_words(tokenizer), []
    for attribute, words in known.items():
        names = {token: word for word, token in words.items()}
        for number, (frame, chosen) in enumerate(contexts(tokenizer, count, True, seed)):
            other = chosen | {attribute: names[following(words, words[chosen[attribute]])]}
            for cue in known:
                both = (tell_story(tokenizer, frame, cue, name) for name in (chosen, other))
                pairs.append(Swap(attribute, number, *both))
    return pairs


def retellings() -> list[tuple[str, str]]:
    """Each plot by two tellers."""
    text = (Path(__file__).parent / "retellings.txt").read_text(encoding="utf-8")
    return [(first, other) for first, other in map(str.splitlines, text.split("\n\n"))]
