"""From text to packed data: what `fit --data FILE.txt` does first."""

import dataclasses
import fcntl
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from arch.storage.files import file_sha256, make_directory, write_text
from tokenizer import VALID_FRACTION, PackedData, load_tokenizer, open_corpus, train_tokenizer
from tokenizer import pack as pack_data
from tokenizer.corpus import describe_files
from tokenizer.pack import Layout
from tokenizer.splits import list_files
from train.processes.launcher import is_first
from train.recipe import Recipe
from train.rundir.rundir import RunDirectory
from train.settings import RunError

LOCK = ".data.lock"
"""A file of the run that the first process locks while it packs; it says what is packed."""
VOCABULARY = "vocab_size"
BINARY = (".safetensors", ".ckpt")
"""Of files in a model or a run, which have files of text as well."""
PATIENCE = 120.0
"""Seconds that a process waits for the first one to begin with packing."""


def prepare_data(recipe: Recipe) -> None:
    """Gives a recipe whose data are stories a tokenizer of their own and packs them, in its run.

    The recipe's data become `RUN/data`; its vocabulary gets smaller if the stories are too few for
    so many entries. The validation split, `valid_fraction`, has no part in the tokenizer. Nothing
    is done where the data are a directory, or were packed by an earlier start.

    Raises:
        RunError: the run's data are of another source or vocabulary, the first process did not
            pack them, or the run has begun without them.
        tokenizer.CorpusError: the stories cannot be read, or are too few.
    """
    source, run = recipe.given("data"), Path(recipe.given("run"))
    out, main = run / "data", is_first()
    if not is_text(source):
        return
    if not main:
        _wait_for(out)
    elif not out.exists():
        _pack(recipe, source, run)
    data = PackedData(out)
    packed, alike = data.meta["source"], was_packed(source, run)
    moved = alike and Path(packed).suffix == Path(source).suffix  # by which a file is read
    if packed != source and not moved and not _is_same_file(packed, source):
        raise RunError(f"--data {source}: {out} was packed from {packed}; choose another --run")
    if main and alike is False:
        print(
            f"--data {source}: has changed since {out} was packed from it; the run has the earlier "
            "text: choose another --run for this one",
            file=sys.stderr,
        )
    size, wanted = load_tokenizer(out).get_vocab_size(), recipe.model.vocab_size
    before = _read_request(run).get(VOCABULARY, max(size, wanted))  # a short text has fewer
    if wanted not in (size, before):
        raise RunError(
            f"--model.vocab_size {wanted}: {out} was packed with {size:,} entries"
            + f", of {before} asked for" * (before != size)
            + "; choose another --run for other ones"
        )
    if main:
        counts = (f"{data.meta['splits'][split]['tokens']:,}" for split in ("train", "valid"))
        print(f"{out}: {' + '.join(counts)} tokens, {size:,} entries in the vocabulary", flush=True)
    recipe.run.data = str(out)
    recipe.model = dataclasses.replace(recipe.model, vocab_size=size)


def was_packed(source: str, run: Path) -> bool | None:
    """Whether a text is what was packed into a run, wherever it lies; None if nothing says so."""
    packed, now = _read_request(run), _describe(source)
    if not now or not packed:
        return None
    if all(packed.get(name) == value for name, value in now.items()):
        return True
    return Path(source).is_file() and packed.get("sha256") == file_sha256(Path(source))


def _describe(source: str) -> dict[str, Any]:
    """When a file or those of a folder were written, and their size; of other sources nothing."""
    path = Path(source)
    if path.is_file():
        return {"size": path.stat().st_size, "changed": path.stat().st_mtime_ns}
    return {"files": describe_files(source)} if path.is_dir() else {}


def _read_request(run: Path) -> dict[str, Any]:
    """What was packed into a run, as `_pack` wrote it; empty if that is not known."""
    try:
        request = json.loads((run / LOCK).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return request if isinstance(request, dict) else {}


def _is_same_file(first: str, second: str) -> bool:
    """Whether two sources are paths of one file or folder that is there."""
    return Path(first).exists() and Path(second).exists() and Path(first).samefile(second)


def is_text(source: str) -> bool:
    """Whether a source of data is stories, which are packed first, and no packed data."""
    path = Path(source)
    if path.is_file() or source.partition(":")[0] == "toy":
        return True
    files, others = list_files(path)  # nothing where no folder is
    return bool(files) and not any(map(_is_binary, others))


def _is_binary(path: Path) -> bool:
    """Whether a file is one of packed data, a model or a run; a .bin alone may be anything."""
    beside = (path.with_name(name) for name in ("meta.json", "config.json"))
    kind = path.suffix.lower()
    return kind in BINARY or (kind == ".bin" and any(file.is_file() for file in beside))


def _pack(recipe: Recipe, source: str, run: Path) -> None:
    """Trains a tokenizer and packs; other processes of the run see by a lock that it goes on.

    Raises:
        RunError: the run has begun, and is not to be gone on with; or a fraction is asked for of
            stories that are divided.
        tokenizer.CorpusError: the stories cannot be read, or are too few.
    """
    if recipe.run.resume == "never":
        RunDirectory(run).refuse_begun()
    print(f"{source}: training a tokenizer and packing into {run / 'data'}", flush=True)
    fraction = recipe.run.valid_fraction or VALID_FRACTION
    stories = open_corpus(source, "train", valid_fraction=fraction)
    if recipe.run.valid_fraction and stories.fraction is None:
        raise RunError(
            f"--valid_fraction {fraction}: {source} sets stories aside itself; leave it out"
        )
    make_directory(run)
    with (run / LOCK).open("a", encoding="utf-8") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.lockf(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        request: dict[str, Any] = {VOCABULARY: recipe.model.vocab_size, **_describe(source)}
        if "size" in request:
            request["sha256"] = file_sha256(Path(source))
        lock.write(json.dumps(request))
        lock.flush()
        tokenizer = train_tokenizer(stories, recipe.model.vocab_size, fewer=True)
        write_text(run / "tokenizer.json", tokenizer.to_str(pretty=True))
        layout = recipe.run.layout or "packed"
        context = recipe.model.context + 1 if layout == "rows" else None  # the last is a target
        pack_data(
            source,
            run / "tokenizer.json",
            run / "data",
            Layout(layout, context),
            valid_fraction=fraction,
        )


def _wait_for(out: Path) -> None:
    """Waits until the first process has packed, as long as it is at it.

    Raises:
        RunError: it is not, and has left no data.
    """
    alive = time.monotonic()
    while not (out / "meta.json").is_file():
        if _is_locked(out.parent / LOCK):
            alive = time.monotonic()
        elif time.monotonic() - alive > PATIENCE:
            raise RunError(
                f"--data: the first process has not packed {out} within {PATIENCE:.0f} s; see what "
                "it says, or pack the data first, by python -m tokenizer pack"
            )
        time.sleep(min(1.0, PATIENCE))


def _is_locked(path: Path) -> bool:
    """Whether another process holds the lock of a file, which may not be there."""
    try:
        with path.open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        pass
    return False
