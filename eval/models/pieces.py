"""From a text to its tokens, and how these read, one after another: joined they are the text."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise

from tokenizers import Tokenizer

from arch.errors import printable
from eval.messages import RequestError, say_once
from tokenizer.bpe import BYTES

PROBE = "The CAFÉ  ran"
"""A text on which a tokenizer shows what it adds and changes: capitals, an accent, two blanks."""
LONGEST_NAME = 200
"""Characters of a text that may be meant as the name of a file."""
BROKEN = "\ufffd"
"""What a decoder writes for bytes that make no character."""
BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
"""A token that stands for one byte, beside those of a byte-level alphabet."""


class Pieces:
    """Reads tokens as they stand in a text.

    A decoder may drop the first blank of what it decodes, and a character may be of several tokens:
    a token that is decoded alone reads otherwise than in its text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._later: dict[int, bytes] = {}

    def of(self, tokens: Sequence[int]) -> list[str]:
        """The piece of a text that each of its tokens is; joined they are the decoded text.

        A character of several tokens is the piece of its last one, and the others are empty. Bytes
        that make no character read as `\\xc3`.
        """
        if not tokens:
            return []
        parts = [self._first(tokens[0]), *map(self._after_others, tokens[1:])]
        whole = self._decode(tokens)
        try:
            as_decoded = b"".join(parts).decode() == whole
        except UnicodeDecodeError:  # tokens that are no text together
            as_decoded = True
        return characters(parts) if as_decoded else self._by_beginnings(tokens, whole)

    def alone(self, token: int) -> str:
        """How a token reads whatever stands before it; bytes that are no character as `\\xc3`."""
        return characters([self._after_others(token)])[0]

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    @cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """A token of letters, which others are decoded after, and how it reads; none: nothing."""
        for token in sorted(self.tokenizer.get_vocab().values()):
            read = self._decode([token])
            if read.isascii() and read.isalnum() and self._decode([token] * 2).startswith(read):
                return [token], read
        return [], ""

    def _first(self, token: int) -> bytes:
        return self._bytes(token, self._decode([token]))

    def _after_others(self, token: int) -> bytes:
        if token not in self._later:
            before, read = self._anchor
            self._later[token] = self._bytes(token, self._decode([*before, token])[len(read) :])
        return self._later[token]

    def _bytes(self, token: int, read: str) -> bytes:
        """The bytes of a token that reads so."""
        name = self.tokenizer.id_to_token(token)
        if BROKEN not in read or name is None:
            return read.encode()
        if byte := BYTE.fullmatch(name):
            return bytes.fromhex(byte[1])
        return bytes(BYTES[c] for c in name) if set(name) <= BYTES.keys() else read.encode()

    def _by_beginnings(self, tokens: Sequence[int], whole: str) -> list[str]:
        """The pieces where a token reads otherwise after one than after another."""
        ends = [0]
        for count in range(1, len(tokens)):
            beginning = self._decode(tokens[:count])
            fits = whole.startswith(beginning)
            ends.append(max(ends[-1], len(beginning)) if fits else ends[-1])
        ends.append(len(whole))
        return [whole[a:b] for a, b in pairwise(ends)]


def characters(parts: Sequence[bytes]) -> list[str]:
    """The characters of each part, where one of several parts stands with its last byte.

    Bytes that make no character read as `\\xc3`, each in its own part.
    """
    try:
        return [part.decode() for part in parts]
    except UnicodeDecodeError:
        pass
    owners = [number for number, part in enumerate(parts) for _ in part]
    read, end = [""] * len(parts), 0
    for letter in b"".join(parts).decode(errors="surrogateescape"):
        end += len(letter.encode(errors="surrogateescape"))
        escaped = "\udc80" <= letter <= "\udcff"
        read[owners[end - 1]] += f"\\x{ord(letter) - 0xDC00:02x}" if escaped else letter
    return read


def encode_text(
    tokenizer: Tokenizer, text: str, flag: str = "--text", with_added: bool = False
) -> list[int]:
    """The tokens of a text that somebody gives; a special token that it spells is that token.

    `with_added` are also those that the tokenizer adds to a text, as a BOS. Where the text is the
    name of a file, it is said that the file is not read.

    Raises:
        RequestError: it is no text, or not valid Unicode.
    """
    if not isinstance(text, str):
        raise RequestError(f"{flag} {text!r}: not a text; give words in quotes")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = ascii(text[max(0, error.start - 20) : error.start + 20])
        raise RequestError(
            f"{flag} {shown}: not valid Unicode (a lone surrogate at {error.start}); "
            "give it in UTF-8"
        ) from None
    if len(text) <= LONGEST_NAME and os.path.isfile(text):
        say_once(
            f"{flag} {text}: is read as this text, not as the file of that name; for what the file "
            f'holds give "$(cat {shlex.quote(text)})"'
        )
    with encoding_of(flag):
        return tokenizer.encode(text, add_special_tokens=with_added).ids


@contextmanager
def encoding_of(source: str) -> Iterator[None]:
    """Says in one line that a tokenizer cannot read a text.

    Raises:
        RequestError: it lacks a letter, and has no token for such.
    """
    try:
        yield
    except Exception as error:  # the library has no class of its own
        raise RequestError(
            f"{source}: the model's tokenizer cannot read it ({printable(error, 160)}); give text "
            "of its own letters"
        ) from None


def say_how_text_is_read(tokenizer: Tokenizer, name: str) -> None:
    """Says on stderr, once a model, what of a text its tokenizer adds or changes."""
    try:
        bare = tokenizer.encode(PROBE, add_special_tokens=False)
    except Exception as error:  # the library has no class of its own
        reads = f"{printable(PROBE)}: {printable(error, 160)}"
        say_once(f"{name}: its tokenizer cannot read every text ({reads})")
        return
    added = [token for token in tokenizer.encode(PROBE).ids if token not in bare.ids]
    if added:
        words = " ".join(printable(tokenizer.id_to_token(token)) for token in added)
        say_once(f"{name}: its tokenizer adds {words} to a text; texts are asked without it")
    read = tokenizer.decode(bare.ids, skip_special_tokens=False)
    if read.strip() != PROBE:  # a decoder may add or drop blanks at the ends
        say_once(
            f"{name}: its tokenizer changes text as it reads it ({printable(PROBE)} is "
            f"{printable(read)}); answers are compared by their tokens"
        )
