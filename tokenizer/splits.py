"""Which text is training and which is validation: files by their names, else stories by a hash.

    train.txt, Train.txt, owt_train.txt, wiki.train.txt, train-00000-of-00002.parquet, train/a.txt
    valid.txt; validation, val, dev, eval and held-out are the same
    test.txt        is not read, nor is what lies in a folder `test`

A split is a whole word at the beginning or the end of a name, numbers and words such as `data`
left out; `training_tips.txt`, `latest.txt` and a title such as `The Last Train.txt` name none. A
folder of texts in which only `The_Last_Train.txt` or the like tells of a split is refused.
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

from tokenizer.bpe import CorpusError, printable
from tokenizer.data import PackedData

SPLIT_WORDS = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev", "eval", "evaluation", "heldout", "holdout"),
    "test": ("test", "testing"),
}
ALONE = ("training", "testing", "evaluation")  # they say something else beside other words
BESIDE = ("data", "set", "split", "text", "txt", "of", "part", "shard", "file", "tokens", "raw")
NO_TEXT = ("readme", "license", "licence", "notice", "changelog", "requirements")
"""Names of files beside a text, without their endings."""
PLAIN = re.compile(r"(train|valid|validation)([-.].*)?")
NUMBERED = re.compile(r"(.*?)(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?")
ENDINGS = (".txt", ".jsonl", ".json", ".parquet", ".csv")
"""Of files that can be read, in small letters."""
TOKENIZER = "tokenizer.json"
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4")
SHOWN = 6  # names in a line


def divide_folder(folder: Path, told: bool = True) -> dict[str, list[Path]]:
    """Map `train` and `valid` to their files, sorted; all are `train` where no name tells a split.

    Args:
        folder: Of text files.
        told: Whether a line says how it is divided, and what is not read.

    Raises:
        CorpusError: No file can be read, or one is compressed, Arrow's or missing; or the names do
            not tell which are for training.
    """
    files, others = list_files(folder)
    _refuse_unread({*files}, others)
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
        if told and (len(unnamed) > 1 or others):
            _say(folder, {"read as one text, whose stories are divided": unnamed}, others)
        return {"train": unnamed}
    named = [path for paths in found.values() for path in paths]
    marked, unread = [*named, *test], [*test, *unnamed, *others]
    endings = {path.suffix.lower() for path in marked}
    alike = [p for p in unnamed if p.suffix.lower() in endings and p.stem.casefold() not in NO_TEXT]
    title = len(alike) > len(marked) and all(_may_be_title(p.relative_to(folder)) for p in marked)
    if (title and "valid" not in found) or ("train" not in found and (unnamed or test)):
        raise CorpusError(
            f"{folder}: named after a split: {_names(folder, marked)}; others: "
            f"{_names(folder, unnamed) or 'none'}; name the text to train on train.*, and write a "
            "title with blanks, as The Last Train.txt"
        )
    plain = all(path.parent == folder and PLAIN.fullmatch(path.name) for path in named)
    if told and (unread or not plain):
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


def text_files(folder: Path, *splits: str) -> list[Path]:
    """Return the files of a folder that are read, sorted; none if it is refused.

    They are of both splits where none is named.
    """
    try:
        found = divide_folder(folder, told=False)
    except ValueError:  # it is said where the stories are read; or no path is called so
        return []
    return sorted({path for split in splits or found for path in found.get(split, ())})


def is_named_valid(file: Path) -> bool:
    """Say whether a file's own name tells that its text is held out."""
    try:
        return _split_of(Path(file.name)) == "valid"
    except CorpusError:  # it tells of two splits
        return False


def _refuse_unread(files: set[Path], others: list[Path]) -> None:
    """Refuse text in a form that is not read, unless it lies there unpacked as well.

    Raises:
        CorpusError: It names a file that is compressed, or Arrow's.
    """
    for path in others:
        text = path.with_suffix("")
        packed = path.suffix.lower() in PACKED and text.suffix.lower() in ENDINGS
        if packed and text not in files:
            raise CorpusError(f"{path}: is compressed, which is not read; unpack it")
        if path.suffix.lower() == ".arrow":
            raise CorpusError(
                f"{path}: is of datasets' save_to_disk, which is not read; load it by "
                "load_from_disk, and save each split by to_parquet"
            )


def refuse_missing(paths: list[Path]) -> None:
    """Refuse files such as `train-00000-of-00004.parquet` that are not one whole dataset.

    Raises:
        CorpusError: It names those that are missing, or two files of two versions of a dataset.
    """
    numbers: dict[tuple[Path, str, str], dict[int, Path]] = {}
    counts: dict[tuple[Path, str, str], int] = {}
    for path in paths:
        if match := NUMBERED.fullmatch(path.stem):
            alike, number, count = (path.parent, match[1], path.suffix), int(match[2]), match[3]
            found = numbers.setdefault(alike, {})
            if number in found or counts.setdefault(alike, int(count)) != int(count):
                other = found.get(number) or next(iter(found.values()))
                raise CorpusError(
                    f"{path}: beside {other.name}, which is of another version of the dataset; "
                    "keep the files of one version"
                )
            found[number] = path
    for (folder, name, ending), found in numbers.items():
        count = counts[folder, name, ending]
        first = int(count in found)  # some count from 1
        if missing := sorted({*range(first, first + count)} - {*found}):
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
    names = _names_in(path)
    if any(_splits_in(folder) == {"test"} for folder in names[:-1]):  # whatever is in it
        return "test"
    found = {split for name in names for split in _splits_in(name)}
    if len(found) > 1:
        raise CorpusError(
            f"{path}: its name tells of {' and '.join(sorted(found))}; rename it, so that it tells "
            "of one split"
        )
    return found.pop() if found else ""


def _may_be_title(path: Path) -> bool:
    """Whether only longer names tell of a path's split, as `The_Last_Train.txt` does."""
    return all(len(_words_in(name)) > 1 for name in _names_in(path) if _splits_in(name))


def _names_in(path: Path) -> list[str]:
    """Return the names of a path's folders and of its file, in small letters."""
    names = [*path.parts[:-1], path.name[: -len(path.suffix)]]
    return [re.sub(r"held[-_. ]?out", "heldout", name.casefold()) for name in names]


def _words_in(name: str) -> list[str]:
    match = NUMBERED.fullmatch(name)  # whose hash has letters, too
    words = re.findall(r"[^\W\d_]+", match[1] if match else name)
    return [re.sub(r"(data|set|split|text|file)s?$", "", w) for w in words if w not in BESIDE]


def _splits_in(name: str) -> set[str]:
    words = _words_in(name)
    ends = {*words[:1], *words[-1:]}
    if len(words) > 1:  # with blanks between them it is a title
        ends -= {*words} if re.search(r"[^\W\d_]\W* [^\W\d_]", name) else {*ALONE}
    return {split for split, listed in SPLIT_WORDS.items() if ends.intersection(listed)}


def _say(folder: Path, read: dict[str, list[Path]], others: list[Path]) -> None:
    parts = [f"{about}: {_names(folder, paths)}" for about, paths in read.items()]
    parts += [f"not read: {_names(folder, others)}"] * bool(others)
    say_once(f"{folder}: {'; '.join(parts)}")


def _names(folder: Path, paths: list[Path]) -> str:
    shown = [str(path.relative_to(folder)) for path in paths[:SHOWN]]
    more = [f"{len(paths) - SHOWN} more"] * (len(paths) > SHOWN)
    return ", ".join([*map(printable, shown), *more])


@cache
def say_once(line: str) -> None:
    """Print a line on stderr, the first time it is given."""
    logging.getLogger(__name__).warning(printable(line))


def held_out(text: str, fraction: float) -> bool:
    """Whether a story belongs to the `fraction` set aside for validation.

    The answer depends on the text alone: two copies of it are always in the same split.
    """
    return int.from_bytes(digest(text), "big") < fraction * 2**64


def digest(text: str) -> bytes:
    """Eight bytes that stand for a story: equal exactly for equal ones, for all purposes."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
