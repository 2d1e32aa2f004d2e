"""From a text file to packed data: what `fit --data FILE.txt` does first."""

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
from tokenizer.pack import Layout
from train.processes.launcher import is_first
from train.recipe import Recipe
from train.rundir.rundir import RunDirectory
from train.settings import RunError

LOCK = ".data.lock"
"""A file of the run that the first process locks while it packs; it says what is packed."""
VOCABULARY = "vocab_size"
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
    elif _has_changed(Path(source), run):
        print(
            f"--data {source}: has changed since {out} was packed from it; the run has the earlier "
            "text: choose another --run for this one",
            file=sys.stderr,
        )
    data = PackedData(out)
    packed = data.meta["source"]
    if packed != source and not _is_same_file(packed, source):
        raise RunError(f"--data {source}: {out} was packed from {packed}; choose another --run")
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


def _has_changed(source: Path, run: Path) -> bool:
    """Whether a source that is a file holds something else than was packed into a run."""
    packed, now = _read_request(run), _describe(source)
    if not now or not packed:
        return False
    unwritten = all(packed.get(name) == value for name, value in now.items())
    return not unwritten and packed.get("sha256") != file_sha256(source)


def _describe(source: Path) -> dict[str, int]:
    """When a source that is a file was written, and its size; of any other nothing."""
    if not source.is_file():
        return {}
    about = source.stat()
    return {"size": about.st_size, "changed": about.st_mtime_ns}


def _read_request(run: Path) -> dict[str, Any]:
    """What was packed into a run, as `_pack` wrote it; empty if that is not known."""
    try:
        request = json.loads((run / LOCK).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return request if isinstance(request, dict) else {}


def _is_same_file(first: str, second: str) -> bool:
    """Whether two sources are paths of one file that is there."""
    return Path(first).is_file() and Path(second).is_file() and Path(first).samefile(second)


def is_text(source: str) -> bool:
    """Whether a source of data is stories, which are packed first, and no packed data."""
    return Path(source).is_file() or source.partition(":")[0] == "toy"


def _pack(recipe: Recipe, source: str, run: Path) -> None:
    """Trains a tokenizer and packs; other processes of the run see by a lock that it goes on.

    Raises:
        RunError: the run has begun, and is not to be gone on with.
        tokenizer.CorpusError: the stories cannot be read, or are too few.
    """
    if recipe.run.resume == "never":
        RunDirectory(run).refuse_begun()
    print(f"{source}: training a tokenizer and packing into {run / 'data'}", flush=True)
    fraction = recipe.run.valid_fraction or VALID_FRACTION
    stories = open_corpus(source, "train", valid_fraction=fraction)
    make_directory(run)
    with (run / LOCK).open("w") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.lockf(lock, fcntl.LOCK_EX)
        request: dict[str, Any] = {VOCABULARY: recipe.model.vocab_size, **_describe(Path(source))}
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
