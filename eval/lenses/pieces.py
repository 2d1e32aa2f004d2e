"""Words as runs of tokens: which tokens begin one, go on with one, and end one.

A word is a piece of text between white space; what counts of it are its tokens with letters, so
that `"Hello,` with its quote and comma apart is one token long; `'s` and the like are no letters.
"""

from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

SPACE = ("Ġ", "▁", " ")  # how tokenizers write a space at a token's beginning
APOSTROPHES = ("'", "’")
BREAKS = ("Ċ", "\n", "<0x0A>")


class Alphabet(NamedTuple):
    """What each token is, by its text.

    Attributes:
        begins: whether white space stands before or in it, `(V,)`.
        lettered: whether it has a letter, `(V,)`.
    """

    begins: Tensor
    lettered: Tensor


class Words(NamedTuple):
    """Words of windows of tokens.

    Attributes:
        length: tokens of the word up to and with this one, `(N, T)`; 0 for tokens without letters.
        last: whether the word's last lettered token is here, `(N, T)`; not known, and so not said,
            of a window's last position.
    """

    length: Tensor
    last: Tensor


def alphabet(tokenizer: Tokenizer, vocabulary: int) -> Alphabet:
    """Looks at every token of a tokenizer."""
    begins, lettered = [], []
    special = tokenizer.get_added_tokens_decoder()
    for token in range(vocabulary):
        text = tokenizer.id_to_token(token) or ""
        begins.append(text.startswith(SPACE) or any(b in text for b in BREAKS) or token in special)
        piece = tokenizer.decode([token]).strip()
        word = any(map(str.isalpha, piece)) and not piece.startswith(APOSTROPHES)
        lettered.append(word and token not in special)
    return Alphabet(torch.tensor(begins), torch.tensor(lettered))


def words_of(tokens: Tensor, known: Alphabet) -> Words:
    """Finds the words in `(N, T)` tokens."""
    lettered = known.lettered[tokens]
    goes_on = lettered & ~known.begins[tokens]
    goes_on[:, 1:] &= lettered[:, :-1]
    goes_on[:, 0] = False
    length = lettered.long()
    for t in range(1, tokens.shape[1]):
        length[:, t] += goes_on[:, t] * length[:, t - 1]
    last = lettered.clone()
    last[:, :-1] &= ~goes_on[:, 1:]
    last[:, -1] = False
    return Words(length, last)


def census(words: Words) -> dict[str, float]:
    """How many words there are, and what share of them has so many tokens."""
    lengths = words.length[words.last]
    total = max(1, len(lengths))
    return {
        "words": float(len(lengths)),
        "share of several tokens": float((lengths > 1).sum()) / total,
        "share of three and more": float((lengths > 2).sum()) / total,
    }
