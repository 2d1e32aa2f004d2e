"""Tokenizers of the library `tokenizers`, from text that somebody else wrote."""

import importlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from arch.config import MOST
from arch.errors import ModelError, printable, show_value
from arch.formats.named_tokens import ENDS, ends_of_text, read_ends
from arch.pretrained.gguf import GGUF, read_roles

PIECES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
"""Names of the files of SentencePiece."""
PLAIN, LED = "The 12  CAFÉs,\n\tﬁne 中文 🙂 ran.", "  a"
"""Texts that show how a tokenizer treats blanks, cases, signs and bytes; one led by blanks."""


def read_tokenizer(text: str, source: object) -> Tokenizer:
    """The tokenizer that a `tokenizer.json` holds; it neither pads nor cuts.

    A tokenizer that was saved while padding or truncation was on would lengthen or shorten every
    text without a word, and one with dropout would give it other ids each time.

    Args:
        source: of the text, for errors.

    Raises:
        ModelError: the library cannot read it, it has no token, or as `check_ids`.
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
    """Refuses ids that no embedding has, that two tokens have, or that the library changes.

    Of two tokens with one id the library takes either, and where it writes a tokenizer it makes
    room for all ids up to the largest. `added` are the entries of a file for added tokens.

    Raises:
        ModelError: naming the token.
    """
    read = tokenizer.get_vocab()
    if (largest := max(read.values(), default=0)) >= MOST["vocab_size"]:
        raise ModelError(f"{source}: a token has the id {largest}; give the model's own tokenizer")
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


def open_pieces(file: str) -> Any:
    """The SentencePiece model in a file, as its own library reads it.

    Raises:
        ModelError: the library is missing, or the file is none of its.
    """
    try:
        return importlib.import_module("sentencepiece").SentencePieceProcessor(model_file=file)
    except ImportError:
        raise ModelError(
            f"{file} needs the package sentencepiece, as no tokenizer.json is beside it; fix: pip "
            "install sentencepiece protobuf"
        ) from None
    except (OSError, RuntimeError, TypeError) as error:
        raise ModelError(
            f"{file} is no model of SentencePiece ({printable(error, 80)}); save a tokenizer.json"
        ) from None


def check_pieces(file: str, pieces: Any, tokenizer: Tokenizer) -> None:
    """Compares a tokenizer that transformers made of a SentencePiece model with the model itself.

    On a text and each piece of it. What differs where blanks lead a text is said on stderr.

    Raises:
        ModelError: naming a text that both split differently.
    """
    special = (pieces.is_control, pieces.is_unknown, pieces.is_byte, pieces.is_unused)
    ordinary = [n for n in range(pieces.get_piece_size()) if not any(is_so(n) for is_so in special)]
    shown = [f"a{pieces.id_to_piece(n).replace('▁', ' ')}" for n in ordinary]
    texts = [LED, PLAIN, *shown]
    made = tokenizer.encode_batch(texts, add_special_tokens=False)
    differs = [
        text
        for text, expected, encoding in zip(texts, pieces.encode(texts), made, strict=True)
        if expected != encoding.ids
    ]
    if differs == [LED]:
        print(
            f"{file}: of a text that begins with blanks transformers makes other tokens than this "
            "file says; a tokenizer.json of the model's own is read as it is",
            file=sys.stderr,
        )
    elif differs:
        raise ModelError(
            f"{file}: of {show_value(differs[-1])} transformers makes other tokens than this file "
            "says; give the model's own tokenizer.json"
        )


def largest_id(tokenizer: Tokenizer) -> int:
    """The largest id that a token has; ids below it may have none."""
    return max(tokenizer.get_vocab().values())


def read_ends_of_text(name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """What begins and ends a text (see `read_ends`), as a model's files or a GGUF say."""
    from transformers.utils.hub import cached_file

    if name.lower().endswith(GGUF):
        ids = read_roles(Path(name))
        roles = {role: tokenizer.id_to_token(token) for role, token in ids.items()}
        stops = [token for role, token in roles.items() if token and role != "bos_token"]
        return {"stops": stops} | ends_of_text(roles)
    found = (cached_file(name, n, _raise_exceptions_for_missing_entries=False) for n in ENDS)
    return read_ends([Path(file) for file in found if file], tokenizer.to_str())
