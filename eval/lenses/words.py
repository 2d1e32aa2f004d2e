"""Chosen words as tokens: the tokens whose probability or direction a lens follows."""

from collections.abc import Iterable

from eval.checkpoints import Checkpoint
from eval.errors import RequestError


def word_tokens(checkpoint: Checkpoint, words: Iterable[str]) -> dict[str, int]:
    """The one token that each word is.

    Raises:
        RequestError: a word that is no token or several, with its split shown.
    """
    return {word: _token(checkpoint, word) for word in words}


def _token(checkpoint: Checkpoint, word: str) -> int:
    ids = _encode(checkpoint, word)
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise RequestError(f"--words {word!r}: there is no token in it; give a word")
    split = " ".join(f'"{piece}"' for piece in checkpoint.pieces(ids))
    spaced = f" {word}"
    other = f', or "{spaced}", which is one' if len(_encode(checkpoint, spaced)) == 1 else ""
    raise RequestError(f'"{word}" is {len(ids)} tokens here: {split}; choose one of them{other}')


def _encode(checkpoint: Checkpoint, text: str) -> list[int]:
    return checkpoint.tokenizer.encode(text, add_special_tokens=False).ids
