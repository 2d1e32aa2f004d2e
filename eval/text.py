"""The text that models are asked about. No other module of eval opens a corpus.

Training reads the `train` split of a corpus, as packing divides it; nothing here reads that split.
The held-out stories (the `valid` split) are divided once more, by their use:

    evaluation   the first half of them, at most `EVALUATED` stories: prompts, and the text that
                 probes and lenses are judged on
    background   every eighth of the stories after those: ordinary text for the searches' guesses
    fitting      the other stories after those: what probes and lenses are fitted or counted on

A text that occurs again keeps its first use, so no two uses share a story. The division is by
order, not by hash: prompts are the first held-out stories however many are asked for, and a corpus
that holds out few stories still has some for each use. The loss fits nothing: it is measured on
all held-out stories.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor

from eval.errors import RequestError
from eval.models import Checkpoint
from tokenizer import (
    END_OF_TEXT,
    PAD,
    VALID_FRACTION,
    PackedData,
    open_corpus,
    tokenizer_hash,
    train_tokenizer,
)

SETS = ("story", "inside", "random")
EVALUATED = 4096  # stories for evaluation, at most; more are never asked for
BACKGROUND = 8  # of so many stories after those for evaluation, the first is background text
BATCH = 256  # stories tokenized at a time
TOKENIZER_STORIES = "toy:4000"

Use = Literal["evaluation", "fitting", "background"]


@dataclass(frozen=True)
class HeldOutText:
    """The held-out stories of a corpus, as one model reads them.

    Attributes:
        corpus: a source that `tokenizer.open_corpus` reads, packed data among them.
        tokenizer: the model's.
        fraction: of the stories is held out, if the corpus itself sets none aside.
    """

    corpus: str
    tokenizer: Tokenizer
    fraction: float = VALID_FRACTION

    def held_out(self) -> Iterator[str]:
        """All stories that are held out from training, in the order of the corpus.

        Raises:
            CorpusError: the corpus cannot be read, or holds out fewer than two stories.
            RequestError: data packed with another tokenizer than the model's.
        """
        stories = open_corpus(self.corpus, "valid", valid_fraction=self.fraction)
        if PackedData.stands_in(self.corpus):
            packed = PackedData(self.corpus).meta["tokenizer_sha256"]
            if packed != tokenizer_hash(self.tokenizer):
                raise RequestError(
                    f"--corpus {self.corpus}: packed with another tokenizer than the model's; "
                    "give the data that the model was trained on, or the stories themselves"
                )
        return iter(stories)

    def stories(self, use: Use) -> Iterator[str]:
        """The stories of one use, in the order of the corpus; no story has two uses.

        Raises:
            CorpusError: the corpus cannot be read, or holds out fewer than two stories.
            RequestError: data packed with another tokenizer than the model's.
        """
        if use == "evaluation":
            return iter(self._evaluation)
        return (
            story
            for number, story in enumerate(self._others())
            if (number % BACKGROUND == 0) == (use == "background")
        )

    def windows(self, use: Use, count: int, length: int, least: int | None = None) -> Tensor:
        """The first windows of the stories of one use, joined by end-of-text: `(count, length)`.

        Args:
            use: evaluation, fitting or background.
            count: how many windows.
            length: tokens of each.
            least: windows that will do where there are no more; all of `count` if None.

        Raises:
            RequestError: too few tokens.
            CorpusError: the corpus cannot be read.
        """
        end, tokens = self.end, []
        stories = self.stories(use)
        while len(tokens) < count * length and (batch := list(islice(stories, BATCH))):
            for encoded in self.tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                tokens += [*encoded.ids, *end]
        count = min(count, max(least or count, len(tokens) // length))
        if len(tokens) < count * length:
            raise RequestError(
                f"--corpus {self.corpus}: its held-out stories for {use} have {len(tokens):,} "
                f"tokens, {count * length:,} are asked for; ask for fewer, or give more stories"
            )
        return torch.tensor(tokens[: count * length]).view(count, length)

    @cached_property
    def background(self) -> Tensor:
        """Ordinary text that is never asked about: `(8, 32)` tokens.

        Raises:
            RequestError: the corpus has too little.
            CorpusError: the corpus cannot be read.
        """
        return self.windows("background", 8, 32)

    @property
    def end(self) -> list[int]:
        """What stands between two stories: the end-of-text token, nothing where there is none."""
        end = self.tokenizer.token_to_id(END_OF_TEXT)
        return [] if end is None else [end]

    @cached_property
    def _evaluation(self) -> tuple[str, ...]:
        first = list(islice(self.held_out(), 2 * EVALUATED))
        return tuple(first[: (len(first) + 1) // 2])

    def _others(self) -> Iterator[str]:
        """The held-out stories after those for evaluation, each text once."""
        seen = set(self._evaluation)
        for story in islice(self.held_out(), len(self._evaluation), None):
            if story not in seen:
                seen.add(story)
                yield story


def held_out_text(checkpoint: Checkpoint, corpus: str) -> HeldOutText:
    """The stories of a corpus that a model was not trained on.

    A corpus with a validation split is used as it is divided. Of any other the stories are divided
    by their hashes, as packing does it, with the fraction that the model directory records
    (`valid_fraction` in its meta.json). Where it records none (older directories, pretrained and
    untrained models, models trained on a divided corpus) it is packing's default, 0.05.

    Args:
        checkpoint: the model; it keeps the text until its `kept` is cleared.
        corpus: a source that `tokenizer.open_corpus` reads.
    """
    fraction = checkpoint.meta.get("valid_fraction") or VALID_FRACTION
    return checkpoint.keep(
        ("held-out text", corpus), lambda: HeldOutText(corpus, checkpoint.tokenizer, fraction)
    )


def toy_tokenizer() -> Tokenizer:
    """A tokenizer for models that have none, learnt from the built-in stories."""
    return train_tokenizer(open_corpus(TOKENIZER_STORIES, "train"))


@dataclass(frozen=True)
class Prompt:
    """A sequence of tokens to be recovered, and where it comes from.

    Attributes:
        kind: the set it belongs to.
        index: its number there.
        tokens: with the pads.
        pads: how many of them, at the end, are padding: shown, but no part of any figure.
    """

    kind: str
    index: int
    tokens: tuple[int, ...]
    pads: int = 0

    @property
    def real(self) -> int:
        """How many tokens there are to be recovered."""
        return len(self.tokens) - self.pads


def story_prompts(text: HeldOutText, count: int, length: int, skip: int = 0) -> list[Prompt]:
    """The first `length` tokens of stories for evaluation, `count` beginnings that all differ.

    Args:
        text: where stories come from.
        count: how many.
        length: tokens of each.
        skip: beginnings left out before the first that is taken.

    Raises:
        RequestError: too few of them.
        CorpusError: the corpus cannot be read.
    """
    prompts: dict[tuple[int, ...], Prompt] = {}
    for story in text.stories("evaluation"):
        tokens = tuple(text.tokenizer.encode(story, add_special_tokens=False).ids[:length])
        if len(tokens) == length and tokens not in prompts:
            prompts[tokens] = Prompt("story", len(prompts), tokens)
        if len(prompts) == skip + count:
            return list(prompts.values())[skip:]
    after = f" after --skip {skip}" if skip else ""
    raise RequestError(
        f"--count {count}{after}: the corpus {text.corpus} has {len(prompts)} different beginnings "
        f"of {length} tokens for evaluation; ask for fewer, or for another length"
    )


def inside_prompts(
    text: HeldOutText, count: int, length: int, skip: int = 0, seed: int = 0
) -> list[Prompt]:
    """`length` tokens from anywhere within stories but their beginning, one passage of each.

    Stories begin much alike, so that of beginnings even a guess names many a first token.

    Args:
        text: where stories come from.
        count: how many.
        length: tokens of each.
        skip: stories left out before the first that is taken from.
        seed: of the places.

    Raises:
        RequestError: too few stories of more than so many tokens.
        CorpusError: the corpus cannot be read.
    """
    prompts = list(islice(inside_stories(text, length, seed), skip + count))
    if len(prompts) == skip + count:
        return prompts[skip:]
    after = f" after --skip {skip}" if skip else ""
    raise RequestError(
        f"--count {count}{after}: the corpus {text.corpus} has {len(prompts)} stories of more "
        f"than {length} tokens for evaluation; ask for fewer, or for a shorter --length"
    )


def inside_stories(text: HeldOutText, length: int, seed: int = 0) -> Iterator[Prompt]:
    """A passage of each story that has more than `length` tokens, all that there are.

    Raises:
        CorpusError: the corpus cannot be read.
    """
    draw, index = random.Random(seed), 0
    for story in text.stories("evaluation"):
        tokens = text.tokenizer.encode(story, add_special_tokens=False).ids
        if len(tokens) > length:
            start = draw.randint(1, len(tokens) - length)
            yield Prompt("inside", index, tuple(tokens[start : start + length]))
            index += 1


def random_prompts(tokenizer: Tokenizer, count: int, length: int, seed: int = 0) -> list[Prompt]:
    """Uniformly random tokens, the special ones left out."""
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    allowed = torch.tensor([i for i in range(tokenizer.get_vocab_size()) if i not in special])
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(allowed), (count, length), generator=generator)
    return [Prompt("random", i, tuple(row)) for i, row in enumerate(allowed[picks].tolist())]


def drawn_prompts(
    kind: str, text: HeldOutText, count: int, length: int, skip: int = 0
) -> list[Prompt]:
    """Prompts of one of the `SETS`; `skip` is of stories, or of random prompts.

    Raises:
        RequestError: the corpus has too few.
        CorpusError: the corpus cannot be read.
    """
    if kind == "random":
        return random_prompts(text.tokenizer, skip + count, length)[skip:]
    draw = {"story": story_prompts, "inside": inside_prompts}[kind]
    return draw(text, count, length, skip)


def text_prompts(texts: list[str], tokenizer: Tokenizer) -> list[Prompt]:
    """Texts as they are, each with as many tokens as it takes.

    Raises:
        RequestError: an empty text.
    """
    prompts = []
    for index, text in enumerate(texts):
        tokens = tokenizer.encode(text.replace(END_OF_TEXT, ""), add_special_tokens=False).ids
        if not tokens:
            raise RequestError(f"--text {text!r}: there is nothing to recover; give some text")
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
