"""The inputs to be recovered: real stories, uniformly random tokens, or any text given."""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from eval.errors import RequestError
from tokenizer import END_OF_TEXT, open_corpus

SETS = ("story", "random")


@dataclass(frozen=True)
class Prompt:
    """A sequence of tokens to be recovered, and where it comes from."""

    kind: str
    index: int
    tokens: tuple[int, ...]


def story_prompts(corpus: str, tokenizer: Tokenizer, count: int, length: int) -> list[Prompt]:
    """The first `length` tokens of validation stories, `count` beginnings that all differ.

    Raises:
        RequestError: too few of them.
        CorpusError: the corpus cannot be read.
    """
    found: dict[tuple[int, ...], Prompt] = {}
    for story in open_corpus(corpus, "valid"):
        tokens = tuple(tokenizer.encode(story, add_special_tokens=False).ids[:length])
        if len(tokens) == length and tokens not in found:
            found[tokens] = Prompt("story", len(found), tokens)
        if len(found) == count:
            return list(found.values())
    raise RequestError(
        f"--count {count}: the corpus {corpus} has {len(found)} different beginnings of {length} "
        "tokens; ask for fewer, or for another length"
    )


def random_prompts(tokenizer: Tokenizer, count: int, length: int, seed: int = 0) -> list[Prompt]:
    """Uniformly random tokens, the special ones left out."""
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    allowed = torch.tensor([i for i in range(tokenizer.get_vocab_size()) if i not in special])
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(allowed), (count, length), generator=generator)
    return [Prompt("random", i, tuple(row)) for i, row in enumerate(allowed[picks].tolist())]


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
