"""The text that models are asked about. No other module of eval opens a corpus.

Training reads the `train` split of a corpus, as packing divides it; nothing here reads that split.
The held-out stories (the `valid` split) are divided once more, by their use:

    evaluation   the first half of them, at most `EVALUATED` stories: prompts, and the text that
                 probes and lenses are judged on
    background   every eighth of the stories after those: ordinary text for the searches' guesses
    fitting      the other stories after those: probes and lenses are fitted or counted on them

A text that occurs again keeps its first use, so no two uses share a story. The division is by
order, not by hash: prompts are the first held-out stories however many are asked for, and a corpus
that holds out few stories still has some for each use. The loss is measured on all held-out
stories, as it fits nothing.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, repeat
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor

from eval.messages import RequestError, say_of_model, say_once
from eval.models.checkpoint import Checkpoint
from eval.models.corpora import corpus_hash, corpus_label, held_out_fraction, packed_data
from eval.models.pieces import encode_text, encoding_of
from tokenizer import PAD, VALID_FRACTION, encode_alike, load_tokenizer, open_corpus

SETS = ("story", "inside", "random")
EVALUATED = 4096  # stories for evaluation, at most; more are never asked for
BACKGROUND = 8  # of so many stories after those for evaluation, the first is background text
BATCH = 256  # stories tokenized at a time

Use = Literal["evaluation", "fitting", "background"]


class Story(str):
    """A story, and its tokens where the model's tokenizer packed it: `ids`, with its end."""

    ids: list[int] | None

    def __new__(cls, text: str, ids: list[int] | None = None) -> "Story":
        """A story of this text."""
        story = super().__new__(cls, text)
        story.ids = ids
        return story


@dataclass(frozen=True, eq=False)
class HeldOutText:
    """The held-out stories of a corpus, as one model reads them.

    Reading them raises a `CorpusError` where the corpus cannot be read or holds out fewer than two
    stories; of packed data one will do. Data that another tokenizer packed are read as their texts.

    Attributes:
        corpus: a source that `tokenizer.open_corpus` reads, packed data among them.
        tokenizer: the model's.
        fraction: of the stories is held out, if the corpus itself sets none aside; None: all are.
        ends: the token that stands between two stories; empty where the model has none.
        field: the stories' column, where the corpus has columns.
    """

    corpus: str
    tokenizer: Tokenizer
    fraction: float | None = VALID_FRACTION
    ends: tuple[int, ...] = ()
    field: str = "text"

    def held_out(self, limit: int | None = None, bare: bool = True) -> "Iterator[Story]":
        """The stories that are held out from training, in the order of the corpus.

        With a limit they are the first so many, and a dataset of the hub is not downloaded whole.
        They are without the white space around them, unless `bare` is false.
        """
        split = "valid" if self.fraction else "train"  # what is not divided is all train
        chosen: Any = {"valid_fraction": self.fraction, "field": self.field}
        stories = open_corpus(self.corpus, split, **chosen, stream=limit is not None)
        stories = replace(stories, bare=bare)
        if stories.fraction:
            say_of_model(
                f"corpus {self.corpus}: sets no stories aside; {stories.fraction:g} of them are "
                "read, as packing holds out so many; a valid.* is read whole"
            )
        data = packed_data(self.corpus)
        if data and encode_alike(load_tokenizer(data.path), self.tokenizer):
            return (Story(text, ids) for text, ids in islice(data.encoded("valid"), limit))
        return map(Story, islice(stories, limit))

    def encode(self, stories: "Sequence[Story]") -> list[list[int]]:
        """The tokens of each story as packing makes them, its end included where there is one.

        A story with `ids` has these. In any other a special token that is spelt
        is only text, as it is in packing.
        """
        given = [story.ids for story in stories if story.ids is not None]
        if len(given) == len(stories):
            return given
        with encoding_of(f"--corpus {self.corpus}"):
            encoded = self._plain.encode_batch_fast(list(stories), add_special_tokens=False)
        return [[*encoding.ids, *self.ends] for encoding in encoded]

    def stories(self, use: Use) -> "Iterator[Story]":
        """The stories of one use, in the order of the corpus; no story has two uses."""
        if use == "evaluation":
            return iter(self._evaluation)
        return (
            story
            for number, story in enumerate(self._others())
            if (number % BACKGROUND == 0) == (use == "background")
        )

    def encoded(self, use: Use) -> Iterator[list[int]]:
        """The tokens of each story of one use, its end included where there is one."""
        stories = self.stories(use)
        while batch := list(islice(stories, BATCH)):
            yield from self.encode(batch)

    def begun_in(self, use: Use, count: int, length: int) -> list[int]:
        """The number of the story in which each of the first `windows` begins, at most `count`."""
        numbers = (repeat(number, len(ids)) for number, ids in enumerate(self.encoded(use)))
        return list(islice(chain.from_iterable(numbers), 0, count * length, length))

    def windows(self, use: Use, count: int, length: int, least: int | None = None) -> Tensor:
        """The first windows of the stories of one use, joined by end-of-text: `(count, length)`.

        `least` windows will do where there are no more, which is said on stderr; text that is
        shorter still is repeated to give so many. All of `count` are needed if it is None.

        Raises:
            RequestError: too few tokens, or none at all.
        """
        tokens = list(islice(chain.from_iterable(self.encoded(use)), count * length))
        if least and 0 < len(tokens) < count * length:
            said = f"{len(tokens):,} tokens of {use} text, all are used"
            say_of_model(f"corpus {self.corpus}: {said}")
        count = min(count, max(least or count, len(tokens) // length))
        if least and tokens and len(tokens) < count * length:
            tokens *= count * length // len(tokens) + 1
        if len(tokens) < count * length:
            raise RequestError(
                f"--corpus {self.corpus}: its held-out stories for {use} have {len(tokens):,} "
                f"tokens, {count * length:,} are asked for; lower --tokens, --train-tokens or "
                "--valid-tokens, or give more stories"
            )
        return torch.tensor(tokens[: count * length]).view(count, length)

    @cached_property
    def background(self) -> Tensor:
        """Ordinary text that is never asked about: `(64, 32)` tokens, or fewer windows, 8 at least.

        Raises:
            RequestError: the corpus has none.
        """
        return self.windows("background", 64, 32, least=8)

    @cached_property
    def _plain(self) -> Tokenizer:
        """The tokenizer as packing uses it; the model's own stays as it is."""
        plain = Tokenizer.from_str(self.tokenizer.to_str())
        plain.encode_special_tokens = True
        return plain

    @cached_property
    def _evaluation(self) -> "tuple[Story, ...]":
        first = list(islice(self.held_out(), 2 * EVALUATED))
        return tuple(first[: (len(first) + 1) // 2])

    def _others(self) -> "Iterator[Story]":
        """The held-out stories after those for evaluation, each text once."""
        seen = set(self._evaluation)
        for story in islice(self.held_out(), len(self._evaluation), None):
            if story not in seen:
                seen.add(story)
                yield story


def held_out_text(checkpoint: Checkpoint, corpus: str) -> HeldOutText:
    """The stories of a corpus that a model was not trained on, kept until the model's release.

    What is computed of them may be kept under them: a corpus whose text changed has others.

    A corpus with a validation split is used as it is divided. Of any other the stories are divided
    by their hashes, as packing does it, with the fraction of `held_out_fraction`. The stories are
    in the column that was packed (`field`), `text` where none is recorded: another may have others.

    Raises:
        RequestError: the corpus holds out stories that the model was trained on.
    """

    def choose() -> HeldOutText:
        fraction = held_out_fraction(checkpoint, corpus)
        ends = () if checkpoint.end is None else (checkpoint.end,)
        field = checkpoint.meta.get("field") or "text"
        return HeldOutText(corpus, checkpoint.tokenizer, fraction, ends, field)

    return checkpoint.keep(("held-out text", corpus, corpus_hash(corpus)), choose)


@dataclass(frozen=True)
class Prompt:
    """A sequence of tokens to be recovered, and where it comes from.

    Attributes:
        kind: the set it belongs to.
        index: its number there.
        tokens: with the pads.
        pads: how many tokens, at the end, are padding: shown, but no part of any figure.
        corpus: the label of the corpus that it was drawn from; None of other prompts.
    """

    kind: str
    index: int
    tokens: tuple[int, ...]
    pads: int = 0
    corpus: str | None = None

    @property
    def real(self) -> int:
        """How many tokens there are to be recovered."""
        return len(self.tokens) - self.pads


def drawn_prompts(
    kind: str, text: HeldOutText, count: int, length: int, skip: int = 0, least: int | None = None
) -> list[Prompt]:
    """Prompts of one of the `SETS`, each of `length` tokens.

    `story`: beginnings of stories for evaluation, no two alike. `inside`: a passage of each story,
    from anywhere but its beginning, as beginnings are so much alike that even a guess names many a
    first token. `random`: uniformly drawn tokens, the special ones left out.

    Args:
        skip: prompts left out before the first that is taken.
        least: will do where there are no more, which is said on stderr; all of `count` if None.

    Raises:
        RequestError: the corpus has too few.
        CorpusError: the corpus cannot be read.
    """
    if kind == "random":
        return random_prompts(text.tokenizer, skip + count, length)[skip:]
    passages = _beginnings(text, length) if kind == "story" else inside_stories(text, length)
    prompts = list(islice(passages, skip + count))
    if len(prompts) == skip + count:
        return prompts[skip:]
    if least and len(prompts) >= skip + least:
        have = len(prompts) - skip
        say_once(f"corpus {text.corpus}: {have} of {count} prompts ({kind}, {length} tokens)")
        return prompts[skip:]
    known = f"the corpus {text.corpus} has {len(prompts)}"
    after = f" after --skip {skip}" if skip else ""
    wanted = (
        f"different beginnings of {length} tokens for evaluation; ask for fewer, or for another "
        "length"
        if kind == "story"
        else f"stories of more than {length} tokens for evaluation; ask for fewer, or for a shorter"
        " --length"
    )
    raise RequestError(f"--count {count}{after}: {known} {wanted}")


def _beginnings(text: HeldOutText, length: int) -> Iterator[Prompt]:
    seen, corpus = set[tuple[int, ...]](), corpus_label(text.corpus)
    for tokens in _encoded(text):
        if len(tokens) >= length and tokens[:length] not in seen:
            yield Prompt("story", len(seen), tokens[:length], corpus=corpus)
            seen.add(tokens[:length])


def inside_stories(text: HeldOutText, length: int) -> Iterator[Prompt]:
    """A passage of `length` tokens of each longer story for evaluation; places drawn by a seed.

    Raises:
        CorpusError: the corpus cannot be read.
    """
    draw, index, corpus = random.Random(0), 0, corpus_label(text.corpus)
    for tokens in _encoded(text):
        if len(tokens) > length:
            start = draw.randint(1, len(tokens) - length)
            yield Prompt("inside", index, tokens[start : start + length], corpus=corpus)
            index += 1


def _encoded(text: HeldOutText) -> Iterator[tuple[int, ...]]:
    """The tokens of each story for evaluation, without its end."""
    for ids in text.encoded("evaluation"):
        yield tuple(ids[:-1] if ids and ids[-1] in text.ends else ids)


def random_prompts(tokenizer: Tokenizer, count: int, length: int) -> list[Prompt]:
    """Uniformly random tokens, the special ones left out."""
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    ids = sorted(set(tokenizer.get_vocab().values()))  # which may have gaps
    allowed = torch.tensor([i for i in ids if i not in special])
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(allowed), (count, length), generator=generator)
    return [Prompt("random", i, tuple(row)) for i, row in enumerate(allowed[picks].tolist())]


def text_prompts(texts: Sequence[str], checkpoint: Checkpoint) -> list[Prompt]:
    """Texts as prompts, each of all its tokens.

    Raises:
        RequestError: an empty text, one that is not valid Unicode, or one that cannot fit into the
            context.
    """
    tokenizer, context, prompts = checkpoint.tokenizer, checkpoint.config.context, []
    longest = max(map(len, tokenizer.get_vocab()))
    for index, text in enumerate(texts):
        if len(text) > 4 * longest * context:  # not tokenized first: that takes minutes
            raise RequestError(
                f"--text of {len(text):,} characters cannot fit into the model's context of "
                f"{context} tokens; shorten it"
            )
        tokens = encode_text(tokenizer, text)
        if not tokens:
            raise RequestError(f"--text {text!r}: there is no token in it; give some text")
        prompts.append(Prompt("text", index, tuple(tokens)))
    return prompts


def padded(prompts: list[Prompt], tokenizer: Tokenizer, length: int) -> list[Prompt]:
    """Prompts filled up with pads at the end, where a causal model cannot let them matter.

    Raises:
        RequestError: a prompt longer than that, or a tokenizer without a pad.
    """
    pad = tokenizer.token_to_id(PAD)
    if pad is None:
        raise RequestError(f"--pad-to {length}: the tokenizer has no {PAD} token; leave it out")
    longest = max(len(prompt.tokens) for prompt in prompts)
    if longest > length:
        raise RequestError(
            f"--pad-to {length}: a prompt has {longest} tokens; give at least as many"
        )
    return [
        replace(p, tokens=p.tokens + (pad,) * (length - p.real), pads=length - p.real)
        for p in prompts
    ]
