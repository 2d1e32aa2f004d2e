"""Tokenizers of the library `tokenizers`, from text that somebody else wrote."""

import json
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer

from arch.errors import ModelError, printable, show_value


def read_tokenizer(text: str, source: object) -> Tokenizer:
    """The tokenizer that a `tokenizer.json` holds; it neither pads nor cuts.

    A tokenizer that was saved while padding or truncation was on would lengthen or shorten every
    text without a word, and one with dropout would give it other ids each time.

    Args:
        source: of the text, for errors.

    Raises:
        ModelError: the library cannot read it, or gives a token another id than the file, or it has
            no token.
    """
    try:
        tokenizer = Tokenizer.from_str(text)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # the library's own are plain Exceptions, or panics of Rust
        raise ModelError(f"{source} is not a tokenizer file ({printable(error, 160)})") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    if not tokenizer.get_vocab_size():
        raise ModelError(f"{source} has no tokens")
    check_ids(tokenizer, json.loads(text).get("added_tokens", ()), source)
    return tokenizer


def check_ids(tokenizer: Tokenizer, added: Iterable[dict[str, Any]], source: object) -> None:
    """Refuses two tokens with one id, of which the library takes either, and an id that it changes.

    `added` are the entries of a file for added tokens.

    Raises:
        ModelError: naming the token.
    """
    read = tokenizer.get_vocab()
    owners: dict[int, str] = {}
    for token, number in sorted(read.items()):
        if (other := owners.setdefault(number, token)) != token:
            raise ModelError(
                f"{source}: {show_value(other)} and {show_value(token)} have one id, {number}; "
                "give the model's own tokenizer"
            )
    for entry in added:
        if (number := read.get(token := entry["content"], entry["id"])) != entry["id"]:
            raise ModelError(
                f"{source}: added_tokens says that {show_value(token)} is {entry['id']}, the "
                f"library tokenizers reads it as {number}; give the model's own tokenizer"
            )


def largest_id(tokenizer: Tokenizer) -> int:
    """The largest id that a token has; ids below it may have none."""
    return max(tokenizer.get_vocab().values())
