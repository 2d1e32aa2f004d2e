"""Which text is training and which is validation: files by their names, else stories by a hash.

    train.txt, Train.txt, owt_train.txt, wiki.train.txt, train-00000-of-00002.parquet, train/a.txt
    valid.txt; validation, val, dev, eval and held-out are the same
    test.txt        is not read

A split is a whole word at the beginning or the end of a name, numbers and words such as `data`
left out; `training_tips.txt`, `latest.txt` and a title such as `The Last Train.txt` name none.
Where no name tells of a split, all files are one text. A `tokenizer.json`, packed data and models
in the folder are no text. What is not plain, and what is not read, is said in one line.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from functools import cache
from pathlib import Path

from tokenizer.bpe import CorpusError
from tokenizer.data import PackedData

SPLIT_WORDS = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev", "eval", "evaluation", "heldout", "holdout"),
    "test": ("test", "testing"),
}
ALONE = ("training", "testing", "evaluation")  # they say something else beside other words
BESIDE = ("data", "set", "split", "text", "txt", "of", "part", "shard", "file", "tokens", "raw")
PLAIN = re.compile(r"(train|valid|validation)([-.].*)?")
NUMBERED = re.compile(r"(.*?)(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?")
ENDINGS = (".txt", ".jsonl", ".json", ".parquet", ".csv")
"""Of files that can be read, in small letters."""
TOKENIZER = "tokenizer.json"
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4")
SHOWN = 6  # names in a line


def divide_folder(folder: Path) -> dict[str, list[Path]]:
    """Map `train` and `valid` to their files, sorted; all are `train` where no name tells a split.

    Raises:
        CorpusError: No file can be read, or one is compressed, Arrow's or missing; or the names do
            not tell which are for training.
    """
    files, others = list_files(folder)
    for path in others:
        if path.suffix.lower() in PACKED and Path(path.stem).suffix.lower() in ENDINGS:
            raise CorpusError(f"{path}: is compressed, which is not read; unpack it")
        if path.suffix.lower() == ".arrow":
            raise CorpusError(
                f"{path}: is of datasets' save_to_disk, which is not read; load it by "
                "load_from_disk, and save each split by to_parquet"
            )
    if not files:
        raise CorpusError(
            f"{folder}: no train.* or valid.* in it that ends in {', '.join(ENDINGS)}"
        )
    found: dict[str, list[Path]] = {}
    seen: set[tuple[str, Path]] = set()
    for path in files:
        split = _split_of(path.relative_to(folder))
        if (file := (split, path.resolve())) in seen:  # by another link
            others.append(path)
        else:
            seen.add(file)
            found.setdefault(split, []).append(path)
    unnamed, test = found.pop("", []), found.pop("test", [])
    for paths in found.values() or [unnamed]:
        refuse_missing(paths)
    if not found and not test:
        if len(unnamed) > 1 or others:
            _say(folder, {"read as one text, whose stories are divided": unnamed}, others)
        return {"train": unnamed}
    if "train" not in found and (unnamed or test):
        raise CorpusError(
            f"{folder}: {_names(folder, [*found.get('valid', []), *test])} is named after a split, "
            f"no file after train ({_names(folder, unnamed) or 'there is no other'}); name the "
            "text to train on train.*"
        )
    unread = [*test, *unnamed, *others]
    named = [path for paths in found.values() for path in paths]
    if unread or not all(path.parent == folder and PLAIN.fullmatch(path.name) for path in named):
        _say(folder, found, unread)
    return found


def list_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of text in a folder, and what else is there, both sorted.

    A tokenizer is no text. Hidden folders, links, packed data and models stand as a whole among
    what else is there.
    """
    files, others = list[Path](), list[Path]()
    for directory, folders, names in os.walk(folder):
        inside = {name: Path(directory, name) for name in folders}
        closed = [
            name
            for name, path in inside.items()
            if name.startswith(".") or path.is_symlink() or PackedData.stands_in(path)
        ]
        folders[:] = inside.keys() - closed
        others += [inside[name] for name in closed]
        for path in (Path(directory, name) for name in names):
            plain = not path.name.startswith(".") and path.name != TOKENIZER and path.is_file()
            (files if plain and path.suffix.lower() in ENDINGS else others).append(path)
    return sorted(files), sorted(others)


def text_files(folder: Path) -> list[Path]:
    """Return the files of a folder that are read, of both splits, sorted; none if it is refused."""
    try:
        found = divide_folder(folder)
    except CorpusError:  # it is said where the stories are read
        return []
    return sorted({path for paths in found.values() for path in paths})


def refuse_missing(paths: list[Path]) -> None:
    """Refuse files such as `train-00000-of-00004.parquet` of which some are not there.

    Raises:
        CorpusError: It names those that are missing.
    """
    numbers: dict[tuple[Path, str, int, str], set[int]] = {}
    for path in paths:
        if match := NUMBERED.fullmatch(path.stem):
            name, number, count = match.groups()
            alike = path.parent, name, int(count), path.suffix
            numbers.setdefault(alike, set()).add(int(number))
    for (folder, name, count, ending), found in numbers.items():
        first = int(count in found)  # some count from 1
        if missing := sorted({*range(first, first + count)} - found):
            listed = ", ".join(f"{number:05d}" for number in missing[:SHOWN])
            more = f" and {len(missing) - SHOWN} more" * (len(missing) > SHOWN)
            raise CorpusError(
                f"{folder / name}*-of-{count:05d}{ending}: {listed}{more} missing; fetch the whole "
                f"dataset, or take -of-{count:05d} out of the names to read what is there"
            )


def _split_of(path: Path) -> str:
    """Return the split that a path within a folder tells of, or nothing.

    Raises:
        CorpusError: It tells of two.
    """
    names = [*path.parts[:-1], path.name[: -len(path.suffix)]]
    found = {split for name in names for split in _splits_in(name)}
    if len(found) > 1:
        raise CorpusError(
            f"{path}: its name tells of {' and '.join(sorted(found))}; rename it, so that it tells "
            "of one split"
        )
    return found.pop() if found else ""


def _splits_in(name: str) -> set[str]:
    plain = re.sub(r"held[-_. ]?out", "heldout", name.casefold())
    words = [word for word in re.findall(r"[^\W\d_]+", plain) if word not in BESIDE]
    words = [re.sub(r"(data|set|split|text|file)s?$", "", word) for word in words]
    ends = {*words[:1], *words[-1:]}
    if len(words) > 1:  # with blanks between them it is a title
        ends -= {*words} if re.search(r"[^\W\d_]\W* [^\W\d_]", plain) else {*ALONE}
    return {split for split, listed in SPLIT_WORDS.items() if ends.intersection(listed)}


def _say(folder: Path, read: dict[str, list[Path]], others: list[Path]) -> None:
    parts = [f"{about}: {_names(folder, paths)}" for about, paths in read.items()]
    parts += [f"not read: {_names(folder, others)}"] * bool(others)
    say_once(f"{folder}: {'; '.join(parts)}")


def _names(folder: Path, paths: list[Path]) -> str:
    shown = [str(path.relative_to(folder)) for path in paths[:SHOWN]]
    more = [f"{len(paths) - SHOWN} more"] * (len(paths) > SHOWN)
    return ", ".join([*(name if name.isprintable() else ascii(name) for name in shown), *more])


@cache
def say_once(line: str) -> None:
    """Print a line on stderr, the first time it is given."""
    logging.getLogger(__name__).warning(line)


def held_out(text: str, fraction: float) -> bool:
    """Whether a story belongs to the `fraction` set aside for validation.

    The answer depends on the text alone: two copies of it are always in the same split.
    """
    return int.from_bytes(digest(text), "big") < fraction * 2**64


def digest(text: str) -> bytes:
    """Eight bytes that stand for a story: equal exactly for equal ones, for all purposes."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
