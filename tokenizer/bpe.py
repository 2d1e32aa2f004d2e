"""Byte-level BPE: every text becomes token ids and comes back byte for byte.

    python -m tokenizer train toy --out tokenizer.json

The entries are, in this order: end-of-text (id 0), padding (id 1), the 256 bytes, the merges. The
same corpus always gives the same file. Text given to `encode` may spell the two special tokens; it
then gets their ids, and `decode(ids, skip_special_tokens=False)` still returns the text. A story
that is packed never does: there the spelling is encoded as ordinary characters.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"
SPECIAL = (END_OF_TEXT, PAD)
VOCAB_SIZE = 4096
SMALLEST = len(SPECIAL) + 256
LARGEST = 2**16  # what a uint16 can name
BATCH = 1024  # stories encoded at a time
LETTERS = 2 << 20  # in a batch, so that memory stays bounded where stories are books
LONGEST = 1000  # letters of a word that is learnt from: the time grows with their square
POINTER = b"version https://git-lfs.github.com/spec/"
KINDS = (r"[^\W\d_]", r"\d", r"(?:[^\w\s]|_)", r"\s")  # letters that make words, each its own
LONG, WORD = (re.compile("|".join(f"{kind}{n}" for kind in KINDS)) for n in (f"{{{LONGEST}}}", "+"))
COUNTED = 2**31 - 1  # of a pair, at most
ACROSS = [byte | ord(" ") << 8 for byte in range(0x21, 0x7F)]  # pairs of two words, as "e "
BYTE_LEVEL = (
    "give a byte-level tokenizer with all bytes, without a normalizer or a blank before a text, as "
    "this makes one: python -m tokenizer train"
)
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that a byte-level alphabet names by their own character; the others follow U+0100."""
BYTES = {chr(byte): byte for byte in PRINTABLE} | {
    chr(0x100 + rank): byte for rank, byte in enumerate(sorted({*range(0x100)} - {*PRINTABLE}))
}
"""The bytes of GPT-2's names for them."""
MATCHING = ("single_word", "lstrip", "rstrip", "normalized")
"""Flags of an added token that decide where in a text it stands."""
Key = TypeVar("Key")


class CorpusError(ValueError):
    """Bad input, in one line: what was given, what is allowed, and the fix."""


def refuse_pointer(path: Path) -> None:
    """Refuse the few lines that git keeps of a large file, and leaves where its LFS is missing.

    Raises:
        CorpusError: The file holds them.
    """
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise CorpusError(f"{path}: a pointer of Git LFS, not the file; fetch it: git lfs pull")


def printable(text: object) -> str:
    """Return a text as a line may show it: what steers a terminal is spelt out, as `\\x1b`."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def reason(error: BaseException) -> str:
    """Return what an error of a library says, in one line; its type where it says nothing."""
    return printable(" ".join(str(error).split())[:200] or type(error).__name__)


def train_tokenizer(
    stories: Iterable[str], vocab_size: int = VOCAB_SIZE, fewer: bool = False
) -> Tokenizer:
    """Learn a byte-level BPE of exactly `vocab_size` entries, most frequent pair first.

    With `fewer`, stories that are not enough for so many give as many as they can. Words of
    `LONGEST` letters and more, as of text without blanks, are learnt from in pieces; that is said.

    Source: Sennrich et al. 2016 (BPE); Radford et al. 2019 (bytes, and the split into words).

    Raises:
        CorpusError: `vocab_size` is out of range, the stories hold too few distinct words, or a
            pair of bytes more often than the library counts.
    """
    if not SMALLEST <= vocab_size <= LARGEST:
        raise CorpusError(
            f"--vocab-size {vocab_size}: must be {SMALLEST} (the bytes and the special tokens)"
            f" to {LARGEST} (uint16)"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    source = printable(getattr(stories, "source", "the stories"))
    tokenizer.train_from_iterator(_count_pairs(_cut_words(stories), source), trainer)
    learnt = tokenizer.get_vocab_size()
    if learnt != vocab_size and not fewer:
        raise CorpusError(
            f"--vocab-size {vocab_size}: these stories are enough for {learnt} entries only;"
            " give more stories or ask for fewer entries"
        )
    return tokenizer


def _count_pairs(texts: Iterable[str], source: str) -> Iterator[str]:
    """Yield texts, and count the pairs of bytes in them, which the library does in 32 bits.

    Of a pair that is more frequent its count is negative, and it is never merged (issue 2058 of
    huggingface/tokenizers). No pair that it merges is more frequent than the bytes within.

    Raises:
        CorpusError: A pair is more frequent.
    """
    counts = np.zeros(1 << 16, np.int64)
    for batch in _batches((None, text) for text in texts):
        words = [text for _, text in batch]
        read = np.frombuffer("\0".join(words).encode(errors="surrogatepass"), np.uint8)
        for start in (0, 1):
            pairs = read[start : start + (len(read) - start) // 2 * 2].view("<u2")
            counts += np.bincount(pairs, minlength=len(counts))
        counts[ACROSS] = 0
        if (most := int(counts.max())) > COUNTED:
            pair = int(counts.argmax()).to_bytes(2, "little")
            raise CorpusError(
                f"{source}: the pair {pair!r} stands there {most:,} times or more, and the library "
                f"tokenizers counts to {COUNTED:,}; learn from fewer, by python -m tokenizer train "
                "--limit N, and pack with what it makes"
            )
        yield from words


def _cut_words(stories: Iterable[str]) -> Iterator[str]:
    """Yield the stories, those with long words in pieces; the first of these words is told."""
    warned = False
    for number, story in enumerate(stories, 1):
        if len(story) < LONGEST:
            yield story
            continue
        letters = list(map(len, story.split()))
        if max(letters, default=0) < LONGEST and len(story) - sum(letters) < LONGEST:
            yield story
            continue
        ends = [match.end() for match in LONG.finditer(story)]
        if ends and not warned:
            warned, start = True, ends[0] - LONGEST
            word = WORD.match(story, start)
            source = printable(getattr(stories, "source", "the stories"))
            logging.getLogger(__name__).warning(
                f"{source}: story {number} has a word of {word.end() - start if word else 0:,} "
                f"letters without a blank; words are learnt from in pieces of {LONGEST:,}"
            )
        yield from (story[start:end] for start, end in pairwise([0, *ends, len(story)]))


def check_text(about: object, text: object) -> str:
    """Return a text if it is one.

    Raises:
        CorpusError: It is none, or not valid Unicode.
    """
    if not isinstance(text, str):
        raise CorpusError(f"{about} holds {text!r:.80}, not a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{about} is not valid Unicode (a lone surrogate at {error.start}); give it in UTF-8"
        ) from None
    return text


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a `tokenizer.json`, or the one inside a directory (packed data, or a model).

    It neither pads nor cuts nor leaves merges out at random, even if it was saved while it did.

    Raises:
        CorpusError: There is no such file, it is not a tokenizer, or its ids are not kept, or too
            large.
    """
    path = Path(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise CorpusError(
            f"{file}: no such file; make one with: python -m tokenizer train SOURCE --out "
            f"{shlex.quote(str(file))}"
        )
    try:
        tokenizer = Tokenizer.from_str(text := file.read_text("utf-8"))
    except (KeyboardInterrupt, SystemExit, OSError):
        raise
    except BaseException as error:  # the library's own are plain Exceptions, or panics of Rust
        refuse_pointer(file)
        raise CorpusError(f"{file}: not a tokenizer file ({reason(error)})") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    count_ids(tokenizer, file)  # the library makes room for all where it writes a tokenizer
    tokens, added = tokenizer.get_vocab(), json.loads(text).get("added_tokens", ())
    changed = [e["content"] for e in added if tokens.get(e["content"], e["id"]) != e["id"]]
    if changed or len(set(tokens.values())) < len(tokens):
        which = f"{changed[0]!a:.80} has another id" if changed else "two entries have one id"
        raise CorpusError(f"{file}: {which}, as it is read; train a tokenizer, or give another")
    return tokenizer


def encode_stories(
    tokenizer: Tokenizer, stories: Iterable[tuple[Key, str]], name: object = "the tokenizer"
) -> Iterator[list[tuple[Key, list[int]]]]:
    """Yield the ids of the stories, each with its key, batch by batch, in their order.

    All cores encode a batch while the caller works on the batch before.

    Raises:
        CorpusError: The tokenizer, which `name` names, is not byte-level, or changes a story, as
            by a normalizer, or a byte that it does not have.
    """
    tokenizer.encode_special_tokens = True  # a story that spells a special token is only text
    pieces = token_bytes(tokenizer, name)
    for index, token in tokenizer.get_added_tokens_decoder().items():
        if not token.special:  # the decoder may take its letters for names of bytes
            _check_unchanged(name, token.content, tokenizer.decode([index]))

    def encode(batch: list[tuple[Key, str]]) -> list[tuple[Key, list[int]]]:
        texts = [story for _, story in batch]
        try:
            encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # of a letter that it lacks, where no token stands for such
            raise CorpusError(f"{name}: cannot read a story ({error}); {BYTE_LEVEL}") from None
        encoded = [(key, e.ids) for (key, _), e in zip(batch, encodings, strict=True)]
        for text, (_, ids) in zip(texts, encoded, strict=True):
            read = b"".join(map(pieces.__getitem__, ids))
            _check_unchanged(name, text, read.decode(errors="replace"))
        _check_unchanged(name, texts[0], tokenizer.decode(encoded[0][1], skip_special_tokens=False))
        return encoded

    waiting: list[Future[list[tuple[Key, list[int]]]]] = []
    with ThreadPoolExecutor(1) as thread:
        for batch in _batches(stories):
            waiting.append(thread.submit(encode, batch))
            if len(waiting) > 1:
                yield waiting.pop(0).result()
        for last in waiting:
            yield last.result()


def _check_unchanged(name: object, text: str, read: str) -> None:
    """Compare a story with what its ids read as.

    Raises:
        CorpusError: They differ.
    """
    if text == read:
        return
    length = min(len(text), len(read))
    first = next((i for i in range(length) if text[i] != read[i]), length)
    shown, others = (x[max(0, first - 10) : first + 20] for x in (text, read))
    raise CorpusError(f"{name}: changes a story, of which {shown!a} reads {others!a}; {BYTE_LEVEL}")


def _batches(stories: Iterable[tuple[Key, str]]) -> Iterator[list[tuple[Key, str]]]:
    batch, letters = [], 0
    for key, story in stories:
        batch.append((key, story))
        letters += len(story)
        if len(batch) == BATCH or letters > LETTERS:
            yield batch
            batch, letters = [], 0
    if batch:
        yield batch


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Return the SHA-256 (hex) of the tokenizer's compact JSON: equal exactly for equal ones."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def encode_alike(first: Tokenizer, second: Tokenizer) -> bool:
    """Whether two tokenizers give every text the same ids, by what they are made of.

    How they pad, cut, decode, or surround a text may differ: data are packed without these.
    """
    return _made_of(first) == _made_of(second)


def encoding_hash(tokenizer: Tokenizer) -> str:
    """Return the SHA-256 (hex) of what decides a text's ids: as `encode_alike` compares it."""
    return hashlib.sha256(json.dumps(_made_of(tokenizer), sort_keys=True).encode()).hexdigest()


def _made_of(tokenizer: Tokenizer) -> list[Any]:
    parts = json.loads(tokenizer.to_str())
    added: dict[str, Any] = {}
    for token in parts["added_tokens"]:
        flags = [flag for flag in MATCHING if token[flag]]
        flags += ["ordinary"] * (not token["special"])  # which a story that spells it has
        added[token["content"]] = [token["id"], *flags] if flags else token["id"]
    # Classes of transformers write "" for no prefix or suffix of a token.
    model = {name: None if value == "" else value for name, value in parts["model"].items()}
    return [added, model, parts["normalizer"], parts["pre_tokenizer"]]


def token_bytes(tokenizer: Tokenizer, name: object = "the tokenizer") -> list[bytes]:
    """Return the bytes that each id stands for, in the order of ids; none for special tokens.

    A token that was added without being special stands for its text.

    Raises:
        CorpusError: The tokenizer is not byte-level, so its tokens are not strings of bytes.
    """
    added, vocabulary = tokenizer.get_added_tokens_decoder(), tokenizer.get_vocab()
    table = [b""] * count_ids(tokenizer, name)
    for symbols, index in vocabulary.items():
        if index in added:
            table[index] = b"" if added[index].special else added[index].content.encode()
            continue
        if not BYTES.keys() >= set(symbols):
            raise CorpusError(
                f"{name}: entry {symbols!r} is not made of bytes; train a byte-level tokenizer:"
                " python -m tokenizer train SOURCE --out tokenizer.json"
            )
        table[index] = bytes(BYTES[symbol] for symbol in symbols)
    return table


def count_ids(tokenizer: Tokenizer, name: object) -> int:
    """Return how many ids there are up to the largest that a token has.

    Raises:
        CorpusError: They are too many.
    """
    size = max(tokenizer.get_vocab().values(), default=-1) + 1
    if size > 1 << 24:
        raise CorpusError(f"{name} names id {size - 1}; ids up to {(1 << 24) - 1} are read")
    return size
