"""Which corpus a model is asked about, where none is given."""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from arch.storage.files import file_sha256
from eval.messages import RequestError, say, say_once
from tokenizer import PackedData
from tokenizer.splits import list_files, text_files

if TYPE_CHECKING:
    from eval.models.checkpoint import Checkpoint

TABLES = (".jsonl", ".json", ".parquet", ".csv")
"""Endings of files that have columns."""
LARGE = 1 << 26
"""Bytes of a file in a folder, up to which it is hashed whole."""
PIECES, PIECE = 64, 1 << 16
"""Of a larger one: how many stretches are hashed, and of how many bytes."""


def choose_corpus(checkpoints: "Sequence[Checkpoint]", corpus: str | None) -> str:
    """The corpus that is given; else that of `common_corpus`, which is said on stderr."""
    chosen = corpus or _said([common_corpus(checkpoints)])[0]
    _say_columns(checkpoints, chosen)
    return chosen


def choose_corpora(checkpoints: "Sequence[Checkpoint]", corpus: str | None) -> list[str]:
    """The corpus of each model: the one given, else that of `own_corpus`, said on stderr."""
    _say_columns(checkpoints, corpus or "")
    return [corpus] * len(checkpoints) if corpus else _said(list(map(own_corpus, checkpoints)))


def _say_columns(checkpoints: "Sequence[Checkpoint]", corpus: str) -> None:
    """Says where models read different columns of a corpus: each that of its training, or text."""
    columns = {c.meta.get("field") or "text": c for c in checkpoints}
    if len(columns) < 2 or not corpus or PackedData.stands_in(corpus):
        return
    first, *_ = text_files(Path(corpus)) or [Path(corpus)]
    if corpus.startswith("hub:") or first.suffix.lower() in TABLES:
        listed = ", ".join(f"{name} by {c.path}" for name, c in columns.items())
        say_once(
            f"corpus {corpus}: its columns are read as models were trained ({listed}): their "
            "figures are of different texts; pack it by --field NAME, and all read that column"
        )


def _said(chosen: list[tuple[str, str]]) -> list[str]:
    for corpus, about in dict.fromkeys(chosen):
        say(f"corpus: {corpus}, {about}; --corpus gives another")
    return [corpus for corpus, _ in chosen]


def common_corpus(checkpoints: "Sequence[Checkpoint]") -> tuple[str, str]:
    """The data that all models were trained on, as `own_corpus` finds it.

    Models that record no data are asked about that of the others.

    Raises:
        RequestError: the models were trained on different data.
    """
    trained = {c.meta["data_sha256"]: c for c in checkpoints if c.meta.get("data_sha256")}
    if len(trained) > 1:
        listing = "; ".join(f"{c.path}: {_recorded(c)}" for c in trained.values())
        raise RequestError(
            f"--corpus: the models were trained on different data ({listing}); say which corpus "
            "they are asked about, or ask them apart"
        )
    chosen = [*trained.values(), *checkpoints]
    return own_corpus(chosen[0]) if chosen else ("toy", "as no model is given")


def own_corpus(checkpoint: "Checkpoint") -> tuple[str, str]:
    """The data that a model was trained on, and what it is, in words.

    It is the packed data that its meta.json records (`data`), if that is still there and the same
    (`data_sha256`), or the source that was packed (`data_source`), if that is `toy` or lies below
    the working directory; else `toy`. Whoever wrote the meta.json may name any file of this
    machine, so that of another place neither text nor figures are taken unasked.
    """
    meta = checkpoint.meta
    packed, source = (meta.get(name) or "" for name in ("data", "data_source"))
    here = packed and PackedData.stands_in(packed)
    if here and PackedData(packed).hash == meta.get("data_sha256"):
        return packed, "held-out stories of the training data"
    if source.partition(":")[0] == "toy" or _lies_here(source):
        return source, "held-out stories of the source of the training data"
    if packed or source:
        return "toy", f"as the training data ({_recorded(checkpoint)}) is not here"
    return "toy", "as no training data is recorded"


def corpus_label(corpus: str) -> str:
    """A corpus as `name (hash)`, equal on every machine: the last part of its path, 8 hex digits.

    A corpus that is no longer there, or that has no file of its own, has its name alone; a dataset
    of the hub its whole name.
    """
    prefix, known = "hub:" * corpus.startswith("hub:"), corpus_hash(corpus)
    if prefix and not known:
        return corpus
    path = Path(corpus.removeprefix(prefix))
    if known and path.name in ("", ".."):  # the working directory, or one above it
        path = path.resolve()
    return f"{prefix}{path.name} ({known[:8]})" if known else path.name


def corpus_hash(corpus: str) -> str | None:
    """What tells a corpus from another of its name; None of one that is no file or folder.

    It is the SHA-256 of packed tokens, of a file's bytes, or of the names and bytes of the files
    that are read of a folder, and of all files of `hub:FOLDER`; of a large file there, of its size
    and pieces.
    """
    kind, _, name = corpus.partition(":")
    source = name.partition(":")[0] if kind == "hub" else corpus
    if kind == "toy" or not source:  # the generator, a text of one's own: no folders
        return None
    path = Path(source)
    if kind != "hub" and PackedData.stands_in(path):
        about = (path / "meta.json").stat()
        return _hash_packed(path, about.st_size, about.st_mtime_ns)
    if path.is_file():
        about = path.stat()
        return _hash_file(path, about.st_size, about.st_mtime_ns)
    hashes, files = [], []
    if path.is_dir():
        files = chain(*list_files(path)) if kind == "hub" else text_files(path)
    for file in filter(Path.is_file, files):
        about = file.stat()
        read = _hash_file if about.st_size <= LARGE else _hash_pieces
        digest = read(file, about.st_size, about.st_mtime_ns)
        hashes.append([str(file.relative_to(path)), digest])
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest() if hashes else None


@cache
def _hash_packed(path: Path, size: int, changed_ns: int) -> str:
    """The hash of packed data, which are opened again where their meta.json is another."""
    return PackedData(path).hash


@cache
def _hash_file(path: Path, size: int, changed_ns: int) -> str:
    """The SHA-256 of a file, which is read again where its size or time of change is another."""
    return file_sha256(path)


@cache
def _hash_pieces(path: Path, size: int, changed_ns: int) -> str:
    """The SHA-256 of a file's size and of pieces of it, the first and the last among them."""
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for number in range(PIECES):
            file.seek((size - PIECE) * number // (PIECES - 1))
            digest.update(file.read(PIECE))
    return digest.hexdigest()


def _lies_here(source: str) -> bool:
    """Whether a source is a file or folder below the working directory, named from there."""
    path, here = Path(source), Path.cwd()
    try:
        inside = here in (here / path).resolve().parents
        return bool(source) and not path.is_absolute() and inside and path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _recorded(checkpoint: "Checkpoint") -> str:
    meta = checkpoint.meta
    known = [meta[name] for name in ("data", "data_source") if meta.get(name)]
    return ", packed from ".join(known) or "unnamed"
