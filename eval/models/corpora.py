"""Which corpus a model is asked about, where none is given, and how much of it was held out."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.storage.files import file_sha256
from eval.messages import RequestError, say, say_once
from tokenizer import VALID_FRACTION, PackedData
from tokenizer.corpus import hash_content, hash_sources
from tokenizer.splits import is_named_valid, list_files, text_files

if TYPE_CHECKING:
    from eval.models.checkpoint import Checkpoint

TABLES = (".jsonl", ".json", ".parquet", ".csv")
"""Endings of files that have columns."""


def choose_corpus(checkpoints: "Sequence[Checkpoint]", corpus: str | None) -> str:
    """The corpus that is given; else that of `common_corpus`, which is said on stderr."""
    chosen = corpus or _said([common_corpus(checkpoints)])[0]
    _say_texts(checkpoints, chosen)
    return chosen


def choose_corpora(checkpoints: "Sequence[Checkpoint]", corpus: str | None) -> list[str]:
    """The corpus of each model: the one given, else that of `own_corpus`, said on stderr."""
    _say_texts(checkpoints, corpus or "")
    return [corpus] * len(checkpoints) if corpus else _said(list(map(own_corpus, checkpoints)))


def _say_texts(checkpoints: "Sequence[Checkpoint]", corpus: str) -> None:
    """Says where models read different texts of a corpus, each as its training did.

    They differ in the column, or in the fraction that is held out where the corpus sets none aside.
    """
    if len(checkpoints) < 2 or not corpus or PackedData.stands_in(corpus):
        return
    files, hub = _files_of(corpus), corpus.startswith("hub:")
    tables = hub or any(file.suffix.lower() in TABLES for file in files)
    columns = {c.meta.get("field") or "text": c for c in checkpoints}
    fractions = dict[float, "Checkpoint"]()
    if files and not hub and not text_files(Path(corpus), "valid"):
        fractions = {held_out_fraction(c, corpus) or 1.0: c for c in checkpoints}
    for what, flag, known in (
        ("columns", "field NAME", columns if tables else {}),
        ("held-out fractions", f"valid-fraction {min(fractions, default=0)}", fractions),
    ):
        if len(known) > 1:
            listed = ", ".join(f"{value} by {c.path}" for value, c in known.items())
            say_once(
                f"corpus {corpus}: its {what} are those of the models' training ({listed}): their "
                f"figures are of different texts; pack it by --{flag}, and all read one text"
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
    the working directory, and still holds out what training did not read; else `toy`. Whoever wrote
    the meta.json may name any file of this machine, so that of another place neither text nor
    figures are taken unasked.
    """
    meta = checkpoint.meta
    packed, source = (meta.get(name) or "" for name in ("data", "data_source"))
    if packed and (data := packed_data(packed)) and data.hash == meta.get("data_sha256"):
        return packed, "held-out stories of the training data"
    if source.partition(":")[0] == "toy" or _lies_here(source):
        with suppress(RequestError):
            held_out_fraction(checkpoint, source)
            return source, "held-out stories of the source of the training data"
    if packed or source:
        return "toy", f"as the training data ({_recorded(checkpoint)}) is not here as it was"
    return "toy", "as no training data is recorded"


def held_out_fraction(checkpoint: "Checkpoint", corpus: str) -> float | None:
    """The fraction of a corpus that a model is asked about, where the corpus sets none aside.

    It is the fraction that the model's training held out (`valid_fraction` in its meta.json), or
    packing's default. None stands for the whole of a file that its name, such as valid.txt, tells
    to be held out, and that is no file of the model's training, as far as its meta.json says.

    Raises:
        RequestError: the corpus holds out stories that the model was trained on: files that have
            the contents of its training (`source_files` in its meta.json, else `_files_read`), of
            which training read all stories, or held out a smaller fraction.
    """
    meta, known = checkpoint.meta, checkpoint.meta.get("valid_fraction")
    fraction, path = known or VALID_FRACTION, Path(corpus)
    unread = None if path.is_file() and is_named_valid(path) else fraction
    if data := packed_data(corpus):
        about = data.meta
        same = data.hash == meta.get("data_sha256")
        if same or about.get("field", "text") != (meta.get("field") or "text"):
            return fraction  # what training held out, or texts that it did not read
    if not corpus or not (trained := _files_read(meta, meta.get("data_source"), corpus)):
        return unread
    files, held_out = {}, fraction
    if data:
        files = _files_read(data.meta, data.meta["source"])
        held_out = data.meta.get("valid_fraction") or fraction
    else:
        files = hash_sources(corpus)
    if divided := "valid" in files.values():
        held_out = 1.0
    read = [digest for digest, split in files.items() if split == "valid" or not divided]
    if not any(trained.get(digest) == "train" for digest in read):
        return unread
    if held_out <= (known or 0):
        return fraction
    part, mend = "all of it", "give text that it was not trained on"
    if known:
        part = f"all but {known:g} of it"
        mend = f"pack the text of its training with --valid-fraction {known:g} or less"
    what = "a file" if divided else f"{held_out:g} of a text"
    raise RequestError(
        f"--corpus {corpus}: holds out {what}, and {checkpoint.path} was trained on {part}; {mend}"
    )


def _files_read(meta: "Mapping[str, Any]", source: str | None, corpus: str = "") -> dict[str, str]:
    """The files that a model or packed data were made of, by their hashes.

    Where they do not say, as those of earlier versions, they are the files of the source now, if it
    is a file, lies below the working directory, or holds the corpus that is asked about: no other
    folder is walked. Else the name of the source stands for them.
    """
    files = meta.get("source_files")
    if files is not None or not source or "valid_fraction" not in meta:
        return files or {}
    with suppress(OSError, ValueError):  # it cannot be read here
        folder, target = Path(source).resolve(), Path(corpus).resolve()
        outside = folder not in (Path.cwd(), *Path.cwd().parents)
        holds = folder.exists() and outside and folder in (target, *target.parents)
        if holds or _lies_here(source) or Path(source).is_file():
            return hash_sources(source)
    return {source: "train"} if meta["valid_fraction"] else {}


def packed_data(corpus: str) -> PackedData | None:
    """The packed data that a corpus is, if it is such; opened again where meta.json is another.

    Raises:
        CorpusError: they are not what was packed.
    """
    path = _path_of(corpus)
    if path is None or corpus.startswith("hub:") or not PackedData.stands_in(path):
        return None
    about = (path / "meta.json").stat()
    return _open_packed(path, about.st_size, about.st_mtime_ns)


@cache
def _open_packed(path: Path, size: int, changed_ns: int) -> PackedData:
    return PackedData(path)


def _path_of(source: str) -> Path | None:
    """Where a source lies, or would if it is the hub's; None of the generator and of no source."""
    kind, _, name = source.partition(":")
    path = name.partition(":")[0] if kind == "hub" else source
    return None if kind == "toy" or not path else Path(path)


def _files_of(source: str) -> list[Path]:
    """The files that are read of a source; none of a source that is not here."""
    path = _path_of(source)
    if path is None:
        return []
    return [path] if path.is_file() else text_files(path)


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
    path = _path_of(corpus)
    if path is None:  # the generator, a text of one's own: no folders
        return None
    if data := packed_data(corpus):
        return data.hash
    if path.is_file():
        about = path.stat()
        return _hash_file(path, about.st_size, about.st_mtime_ns)
    hashes = []
    for file in hashed_files(corpus):
        hashes.append([str(file.relative_to(path)), hash_content(file)])
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest() if hashes else None


def hashed_files(corpus: str) -> list[Path]:
    """The files of a folder that `corpus_hash` stands for; none of any other corpus."""
    path = _path_of(corpus)
    if path is None or not path.is_dir():
        return []
    files = chain(*list_files(path)) if corpus.startswith("hub:") else text_files(path)
    return list(filter(Path.is_file, files))


@cache
def _hash_file(path: Path, size: int, changed_ns: int) -> str:
    """The SHA-256 of a file, which is read again where its size or time of change is another."""
    return file_sha256(path)


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
