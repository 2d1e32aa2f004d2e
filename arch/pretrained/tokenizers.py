"""Tokenizers of the library `tokenizers`, from text that somebody else wrote."""

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from arch.config import MOST
from arch.errors import ModelError, printable, reason, say, show_value
from arch.formats.named_tokens import (
    SETTINGS,
    ends_of_text,
    read_ends,
    say_left_out_tokens,
)
from arch.pretrained.gguf.reader import GGUF
from arch.pretrained.gguf.tokens import read_roles
from arch.storage.directory import MULTIPLES, drop_rowless
from arch.storage.files import read_json, read_text, refuse_pointer

TOKENIZER = "tokenizer.json"
CODE = "brings code of its own (auto_map), which is not run"
TEKKEN = "tekken.json"
PIECES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
"""Names of the files of SentencePiece."""
PLAIN, LED = "The 12  CAFÉs,\n\tﬁne 中文 🙂 ran.", "  a"
"""Texts that show how a tokenizer treats blanks, cases, signs and bytes; one led by blanks."""
MISTRALS = ("mistral", "mistral3", "ministral", "pixtral", "voxtral")
MISTRALS_TOKENS = 100_000
"""Of a tokenizer of theirs that is none of SentencePiece, more than these."""
GROUPED_DIGITS = "N}{1,3}"
"""What stands in the pattern of Llama 3, and not in theirs, which parts each digit."""


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


def open_tokenizer(directory: Path) -> Tokenizer:
    """A tokenizer that neither pads nor cuts, whatever was on when it was saved.

    It is what its `tokenizer.json` says, if there is one: a class of transformers may set another
    normalizer or pre-tokenizer in place of those that the model was trained with.

    Raises:
        ModelError: there is none, it cannot be read, or it is made by code of its own.
    """
    from transformers import AutoTokenizer

    settings, file = directory / SETTINGS, directory / TOKENIZER
    if file.is_file():
        text = read_text(file)
        tokenizer = read_tokenizer(text, file)
        say_left_out_tokens(directory, text)
        return tokenizer
    if settings.is_file() and read_json(settings).get("auto_map"):
        raise ModelError(f"{directory} cannot be loaded: its tokenizer {CODE}")
    pieces = {file: open_pieces(file) for name in PIECES if (file := directory / name).is_file()}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False)
    except ValueError as error:
        raise ModelError(
            f"{directory} has no {TOKENIZER}; save its tokenizer there ({reason(error, 100)})"
        ) from None
    if not tokenizer.is_fast:
        raise ModelError(f"{directory} has no fast tokenizer, a {TOKENIZER}")
    files = {"tokenizer.model", *tokenizer.vocab_files_names.values()} - {TOKENIZER}
    made = tokenizer.backend_tokenizer
    if not any((directory / name).is_file() for name in files) and not _is_tekken(directory, made):
        raise ModelError(  # its class makes up a vocabulary
            f"{directory} has no {TOKENIZER}, nor {', '.join(sorted(files))} of its "
            f"{type(tokenizer).__name__}; save its tokenizer there"
        )
    check_ids(made, (), directory)
    for file, model in pieces.items():
        check_pieces(file, model, made)
    return read_tokenizer(made.to_str(), f"the tokenizer of {directory}")


def _is_tekken(directory: Path, made: Tokenizer) -> bool:
    """Whether a tokenizer was made of Mistral's own file, by where its special tokens are."""
    file = directory / TEKKEN
    special = file.is_file() and read_json(file).get("special_tokens")
    return bool(special) and all(made.token_to_id(t["token_str"]) == t["rank"] for t in special)


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


def open_pieces(file: Path) -> Any:
    """The SentencePiece model in a file, as its own library reads it.

    Raises:
        ModelError: the library is missing, or the file is none of its.
    """
    refuse_pointer(file)
    try:
        sentencepiece = importlib.import_module("sentencepiece")
        return sentencepiece.SentencePieceProcessor(model_file=str(file))
    except ImportError:
        raise ModelError(
            f"{file} needs the package sentencepiece, as no tokenizer.json is beside it; fix: pip "
            "install sentencepiece protobuf"
        ) from None
    except (OSError, RuntimeError, TypeError) as error:
        raise ModelError(
            f"{file} is no model of SentencePiece ({printable(error, 80)}); save a tokenizer.json"
        ) from None


def check_pieces(file: object, pieces: Any, tokenizer: Tokenizer) -> None:
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
        say(
            f"{file}: of a text that begins with blanks transformers makes other tokens than this "
            "file says; a tokenizer.json of the model's own is read as it is"
        )
    elif differs:
        raise ModelError(
            f"{file}: of {show_value(differs[-1])} transformers makes other tokens than this file "
            "says; give the model's own tokenizer.json"
        )


def largest_id(tokenizer: Tokenizer) -> int:
    """The largest id that a token has; ids below it may have none."""
    return max(tokenizer.get_vocab().values())


def fit_tokenizer(tokenizer: Tokenizer, rows: int, name: str) -> Tokenizer:
    """The tokenizer of a model whose embedding has so many rows; see `drop_rowless`.

    Rows beyond the last id that are no padding are said on stderr, as no token stands for them.

    Raises:
        ModelError: an entry of its vocabulary has no row; naming the largest id.
    """
    if largest_id(tokenizer) >= rows:
        tokenizer = read_tokenizer(drop_rowless(name, tokenizer.to_str(), rows), name)
    largest = largest_id(tokenizer)
    if largest + 1 < rows and rows not in {-(-(largest + 1) // n) * n for n in MULTIPLES}:
        say(
            f"{name}: its embedding has {rows} rows, the ids of its tokenizer end at {largest}; the"
            " rows behind are left out (is it the tokenizer that the model was trained with?)"
        )
    if largest >= rows:
        raise ModelError(
            f"{name}: its tokenizer has ids up to {largest}, its embedding {rows} rows; give the "
            "tokenizer that the model was trained with"
        )
    return tokenizer


def say_wrong_split(config: dict[str, Any], tokenizer: Tokenizer, source: object) -> None:
    """Says on stderr that a Mistral's tokenizer splits texts by the pattern of another model.

    So it was written by transformers before 5, for models of `MISTRALS_TOKENS` and more.
    """
    version = str(config.get("transformers_version") or "4").partition(".")[0]
    if (
        config.get("model_type") in MISTRALS
        and version.isdecimal()
        and int(version) < 5
        and tokenizer.get_vocab_size() > MISTRALS_TOKENS
        and GROUPED_DIGITS in repr(tokenizer.pre_tokenizer)
    ):
        say(
            f"{source}: its tokenizer splits texts by the pattern of Llama 3, as transformers "
            f"before 5 wrote it for a {config['model_type']}; tokens are others than in training; "
            f"put a {TOKENIZER} there that was written since"
        )


def read_ends_of_text(path: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """What begins and ends a text (see `read_ends`), as a model's directory or a GGUF says."""
    if path.suffix.lower() == GGUF:
        ids = read_roles(path)
        roles = {role: tokenizer.id_to_token(token) for role, token in ids.items()}
        stops = [token for role, token in roles.items() if token and role != "bos_token"]
        return {"stops": stops} | ends_of_text(roles)
    return read_ends(path, tokenizer.to_str())
