"""Words as tokens: those that somebody asks a lens to follow, and those of built-in stories."""

from collections.abc import Iterable

from tokenizers import Tokenizer

from eval.messages import RequestError
from eval.models.checkpoint import Checkpoint
from eval.models.pieces import encode_text


def spaced_ids(tokenizer: Tokenizer, word: str) -> list[int]:
    """The tokens of a word after a space, as it stands behind another.

    At the start of a text some tokenizers add a space of their own.
    """
    first = tokenizer.encode("a", add_special_tokens=False).ids
    whole = encode_text(tokenizer, f"a {word}", "text")
    stands_apart = whole[: len(first)] == first
    return whole[len(first) :] if stands_apart else encode_text(tokenizer, f" {word}", "text")


def word_tokens(checkpoint: Checkpoint, words: Iterable[str]) -> dict[str, int]:
    """The one token that each word is.

    Raises:
        RequestError: a word that is no token or several, with its split shown; or one that the
            tokenizer reads as another, such as that for what it does not know.
    """
    tokenizer, known = checkpoint.tokenizer, dict[str, int]()
    for word in words:
        bare, spaced = encode_text(tokenizer, word, "--words"), spaced_ids(tokenizer, word)
        ids = spaced_ids(tokenizer, word[1:]) if word.startswith(" ") else bare
        if not ids:
            raise RequestError(f"--words {word!r}: there is no token in it; give a word")
        if len(ids) > 1:
            split = " ".join(f'"{piece}"' for piece in checkpoint.pieces(ids))
            other = f', or " {word}", which is one' if len(spaced) == 1 else ""
            said = f'--words "{word}": is {len(ids)} tokens here: {split}'
            raise RequestError(f"{said}; choose one of them{other}")
        read = checkpoint.words(ids)[0].strip()
        if read.casefold() != word.strip().casefold():  # as <unk>
            raise RequestError(f'--words "{word}": is read as "{read}" here; give a word it has')
        known[word] = ids[0]
    return known
