"""The inputs to be recovered: of real stories, uniformly random tokens, or any text given."""

import random
from dataclasses import dataclass, replace

import torch
from tokenizers import Tokenizer

from eval.errors import RequestError
from tokenizer import END_OF_TEXT, PAD, open_corpus

SETS = ("story", "inside", "random")


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


def story_prompts(
    corpus: str, tokenizer: Tokenizer, count: int, length: int, skip: int = 0
) -> list[Prompt]:
    """The first `length` tokens of validation stories, `count` beginnings that all differ.

    Args:
        corpus: where stories come from.
        tokenizer: the model's.
        count: how many.
        length: tokens of each.
        skip: beginnings left out before the first that is taken.

    Raises:
        RequestError: too few of them.
        CorpusError: the corpus cannot be read.
    """
    found: dict[tuple[int, ...], Prompt] = {}
    for story in open_corpus(corpus, "valid"):
        tokens = tuple(tokenizer.encode(story, add_special_tokens=False).ids[:length])
        if len(tokens) == length and tokens not in found:
            found[tokens] = Prompt("story", len(found), tokens)
        if len(found) == skip + count:
            return list(found.values())[skip:]
    after = f" after --skip {skip}" if skip else ""
    raise RequestError(
        f"--count {count}{after}: the corpus {corpus} has {len(found)} different beginnings of "
        f"{length} tokens; ask for fewer, or for another length"
    )


def inside_prompts(
    corpus: str, tokenizer: Tokenizer, count: int, length: int, skip: int = 0, seed: int = 0
) -> list[Prompt]:
    """`length` tokens from anywhere within validation stories but their beginning, one of each.

    Stories begin much alike, so that of beginnings even a guess names many a first token.

    Args:
        corpus: where stories come from.
        tokenizer: the model's.
        count: how many.
        length: tokens of each.
        skip: stories left out before the first that is taken from.
        seed: of the places.

    Raises:
        RequestError: too few stories of more than so many tokens.
        CorpusError: the corpus cannot be read.
    """
    draw = random.Random(seed)
    found: list[Prompt] = []
    for story in open_corpus(corpus, "valid"):
        tokens = tokenizer.encode(story, add_special_tokens=False).ids
        if len(tokens) > length:
            start = draw.randint(1, len(tokens) - length)
            window = tuple(tokens[start : start + length])
            found.append(Prompt("inside", len(found), window))
        if len(found) == skip + count:
            return found[skip:]
    after = f" after --skip {skip}" if skip else ""
    raise RequestError(
        f"--count {count}{after}: the corpus {corpus} has {len(found)} stories of more than "
        f"{length} tokens; ask for fewer, or for a shorter --length"
    )


def random_prompts(tokenizer: Tokenizer, count: int, length: int, seed: int = 0) -> list[Prompt]:
    """Uniformly random tokens, the special ones left out."""
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    allowed = torch.tensor([i for i in range(tokenizer.get_vocab_size()) if i not in special])
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(allowed), (count, length), generator=generator)
    return [Prompt("random", i, tuple(row)) for i, row in enumerate(allowed[picks].tolist())]


def drawn_prompts(
    kind: str, corpus: str, tokenizer: Tokenizer, count: int, length: int, skip: int = 0
) -> list[Prompt]:
    """Prompts of one of the `SETS`; `skip` is of stories.

    Raises:
        RequestError: the corpus has too few.
        CorpusError: the corpus cannot be read.
    """
    if kind == "random":
        return random_prompts(tokenizer, count, length)
    taken = {"story": story_prompts, "inside": inside_prompts}[kind]
    return taken(corpus, tokenizer, count, length, skip)


def text_prompts(texts: list[str], tokenizer: Tokenizer) -> list[Prompt]:
    """Texts as they are, each with as many tokens as it takes.

    Raises:
        RequestError: an empty text.
    """
    found = []
    for index, text in enumerate(texts):
        tokens = tokenizer.encode(text.replace(END_OF_TEXT, ""), add_special_tokens=False).ids
        if not tokens:
            raise RequestError(f"--text {text!r}: there is nothing to recover; give some text")
        found.append(Prompt("text", index, tuple(tokens)))
    return found


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


def background(corpus: str, tokenizer: Tokenizer, rows: int = 8, length: int = 32) -> torch.Tensor:
    """Ordinary text that is never asked about, `(rows, length)`: from the training split.

    Raises:
        CorpusError: the corpus cannot be read.
        RequestError: it is too short.
    """
    tokens: list[int] = []
    for split in ("train", "valid"):
        for story in open_corpus(corpus, split):
            tokens += tokenizer.encode(story, add_special_tokens=False).ids
            if len(tokens) >= rows * length:
                return torch.tensor(tokens[: rows * length]).view(rows, length)
    raise RequestError(
        f"--corpus {corpus}: {len(tokens)} tokens in all, {rows * length} are needed to see what "
        "ordinary text does to a model"
    )
