"""Which corpus a model is asked about, where none is given, and how much of it was held out."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from arch.storage.files import file_sha256
from eval.messages import RequestError, say, say_once
from tokenizer import VALID_FRACTION, PackedData
from tokenizer.splits import is_named_valid, list_files, text_files

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
    whole = hub or not files or _files_of(corpus, "valid") or is_named_valid(Path(corpus))
    columns = {c.meta.get("field") or "text": c for c in checkpoints}
    fractions = {c.meta.get("valid_fraction") or VALID_FRACTION: c for c in checkpoints}
    for what, flag, known in (
        ("columns", "field NAME", columns if tables else {}),
        ("held-out fractions", f"valid-fraction {min(fractions)}", {} if whole else fractions),
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
    to be held out, and that the model was not trained on, as far as its meta.json says.

    Raises:
        RequestError: the corpus holds out stories that the model was trained on: of files whose
            stories training read all, or of which it held out a smaller fraction.
    """
    meta = checkpoint.meta
    source, known = meta.get("data_source") or "", meta.get("valid_fraction")
    fraction = known or VALID_FRACTION
    trained = source if "valid_fraction" in meta else ""  # else nothing tells what was held out
    splits = () if known else ("train",)
    if data := packed_data(corpus):
        read, held_out = data.meta["source"], data.meta.get("valid_fraction")
        same = data.hash == meta.get("data_sha256") or corpus == source
        if same or data.meta.get("field", "text") != (meta.get("field") or "text"):
            return fraction  # what training held out, or texts that it did not read
    elif corpus.startswith("hub:") or not _files_of(corpus):
        return fraction
    elif Path(corpus).is_file() and is_named_valid(Path(corpus)):
        told = source or "source" in meta or not meta.get("step")  # else it says nothing
        moved = known and Path(source).name == Path(corpus).name  # since, or of another machine
        read_it = moved or _files_of(source, *splits) >= _files_of(corpus)
        return fraction if read_it or not told else None
    else:
        read, held_out = corpus, None if _files_of(corpus, "valid") else fraction
    if not trained or held_out is None or held_out <= (known or 0):
        return fraction
    subsets = read.startswith("hub:") and trained.startswith("hub:")  # of one folder
    if read != trained and (subsets or _files_of(trained, *splits).isdisjoint(_files_of(read))):
        return fraction
    part, mend = "all", f"give text that it was not trained on, as what {source} held out"
    if known:
        part, mend = f"all but {known:g}", f"pack it with --valid-fraction {known:g} or less"
    raise RequestError(
        f"--corpus {corpus}: holds out {held_out:g} of {read}; of a text of that name "
        f"{checkpoint.path} was trained on {part}; {mend}"
    )


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
    """Where a source lies; None of the generator, of no source, and of a dataset of the hub."""
    kind, _, name = source.partition(":")
    path = name.partition(":")[0] if kind == "hub" else source
    return None if kind == "toy" or not path else Path(path)


def _files_of(source: str, *splits: str) -> set[Path]:
    """The files that are read of a source, where they lie; of both splits where none is named.

    There are none of a source that is not here. A file by itself is no validation split.
    """
    path = _path_of(source)
    if path is None or (path.is_file() and splits == ("valid",)):
        return set()
    return {file.resolve() for file in ([path] if path.is_file() else text_files(path, *splits))}


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
        about = file.stat()
        read = _hash_file if about.st_size <= LARGE else _hash_pieces
        digest = read(file, about.st_size, about.st_mtime_ns)
        hashes.append([str(file.relative_to(path)), digest])
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
