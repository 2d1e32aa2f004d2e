"""Tokenizers of the library `tokenizers`, from text that somebody else wrote."""

from tokenizers import Tokenizer

from arch.errors import ModelError, printable


def read_tokenizer(text: str, source: object) -> Tokenizer:
    """The tokenizer that a `tokenizer.json` holds; it neither pads nor cuts.

    A tokenizer that was saved while padding or truncation was on would lengthen or shorten every
    text without a word, and one with dropout would give it other ids each time.

    Args:
        source: of the text, for errors.

    Raises:
        ModelError: the library cannot read it, or it has no token.
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
    return tokenizer


def largest_id(tokenizer: Tokenizer) -> int:
    """The largest id that a token has; ids below it may have none."""
    return max(tokenizer.get_vocab().values())
