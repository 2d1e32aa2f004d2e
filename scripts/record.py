"""A record on a track of docs/records.md: trains, validates, compares, and adds a row.

    python -m scripts.record 5min llama-small [--stories DIR] [--seeds 5] [-- FLAGS OF fit]

The fixed stories are packed once. Each seed is a fresh process of two threads on an idle machine,
which trains for the minutes of its track; `eval loss` gives bits per byte on all validation
stories. A row becomes a record where its mean is lower than that of the record before, and p < 0.01
by Welch's t; else it stands among what was tried. A seed that has ended is not trained again.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy import stats

from arch.storage.files import file_sha256, write_text
from scripts.bench.shared import processor

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "records.md"
TRACKS = {"5min": 5.0, "30min": 30.0, "any": None}
"""Minutes of training by track; `any` takes the recipe's own length."""
STORIES = {
    "train.txt": "b3e2745c0e438dc30a03d7b92788996250098ae85fda3a9b05c4e1f083148c89",
    "valid.txt": "ff56f7851c774329f9c353d9ac27b3b030bf4769b3888009040a03242124adeb",
}
"""SHA-256 of the stories: 16,158 to train on, 2,000 to validate on."""
ROOMS = ("arch", "tokenizer", "train")
"""The code that a record is made by."""
LEVEL = 0.01
IDLE = 0.3
"""Cores that may be busy with other work before a training begins."""
COLUMNS = ("date", "recipe", "bits/byte", "by seed", "p", "tokens, millions", "seconds", "lines",
           "processor", "commit", "source")  # fmt: skip


class RecordError(ValueError):
    """What stands against a record, in a line."""


def main(words: Sequence[str] | None = None) -> int:
    """Measures and adds the row; 2 where something stands against it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("track", choices=TRACKS)
    parser.add_argument("recipe", help="of `python -m train recipes`, or a file")
    parser.add_argument("--stories", type=Path, default=Path("data/tinystories"))
    parser.add_argument("--seeds", type=int, default=5, help="how many (%(default)s)")
    parser.add_argument("--out", type=Path, help="where runs are kept; default: runs/records/TRACK")
    parser.epilog = "after -- stand flags of `train fit`"
    given = list(sys.argv[1:] if words is None else words)
    end = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:end])
    options.flags = given[end + 1 :]
    try:
        print(add_row(options))
    except (RecordError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def add_row(options: argparse.Namespace) -> str:
    """Measures all seeds, adds a row to the page, and says whether it is a record.

    Raises:
        RecordError: other stories, a busy machine, uncommitted code, no history of the code, too
            few seeds, a command that fails, or a model that leaks.
    """
    if options.seeds < 5:
        raise RecordError(f"--seeds {options.seeds}: a record needs 5 or more")
    if changed := git("status", "--porcelain", "--", *ROOMS):
        raise RecordError(
            f"{changed.split()[-1]}: not committed; commit it, so that the row names it"
        )
    made_by = git("rev-parse", "--short", "HEAD"), source_hash()
    before = last_record(PAGE.read_text(encoding="utf-8"), options.track)
    lines = lines_since(before["commit"]) if before else ""
    out = options.out or Path("runs/records") / options.track
    data, flags = pack_stories(options.stories, out), options.flags
    seeds = [train_seed(options, flags, data, out, seed) for seed in range(options.seeds)]
    bits = [seed["bits"] for seed in seeds]
    p, record = None, True
    if before:
        tested: Any = stats.ttest_ind(bits, before["bits"], equal_var=False)
        p = float(tested.pvalue)
        record = p < LEVEL and fmean(bits) < fmean(before["bits"])
    line = row_text(options, flags, seeds, p, lines, made_by)
    page = PAGE.read_text(encoding="utf-8")
    write_text(PAGE, with_row(page, options.track if record else "Tried", line))
    return f"{'record' if record else 'no record'}: {line}"


def pack_stories(stories: Path, out: Path) -> Path:
    """Trains the tokenizer of 4,096 entries on the stories and packs them; their directory.

    Raises:
        RecordError: they are not the stories of the rules.
    """
    check_stories(stories)
    tokenizer, data = out / "tokenizer.json", out / "data"
    if not (data / "meta.json").is_file():
        out.mkdir(parents=True, exist_ok=True)
        python("tokenizer", "train", stories, "--out", tokenizer)
        python("tokenizer", "pack", stories, "--tokenizer", tokenizer, "--out", data)
    return data


def check_stories(stories: Path) -> None:
    """Raises a `RecordError` where a folder does not hold the stories of the rules."""
    for name, expected in STORIES.items():
        path = stories / name
        if not path.is_file() or file_sha256(path) != expected:
            raise RecordError(
                f"--stories {stories}: {name} is not that of the rules, {expected[:8]}"
            )


def train_seed(
    options: argparse.Namespace, flags: Sequence[str], data: Path, out: Path, seed: int
) -> dict[str, Any]:
    """Trains and validates one seed in fresh processes: bits, tokens and seconds.

    A seed that was trained before is not trained again, and one that was measured is read again.

    Raises:
        RecordError: the machine is busy, a command fails, or the seed was measured before with
            another recipe, other minutes, flags or code.
    """
    recipe = Path(options.recipe)
    run, minutes = out / f"{recipe.stem}-s{seed}", TRACKS[options.track]
    known, loss = run / "made_of.json", run / "loss.json"
    own = file_sha256(recipe) if recipe.is_file() else None
    made_of = json.dumps([options.recipe, own, minutes, *flags, source_hash()])
    trained = known.is_file() and known.read_text(encoding="utf-8") == made_of
    if not trained and (known.is_file() or loss.is_file()):
        raise RecordError(
            f"{run}: was trained with other flags or other code; give another --out, or remove it"
        )
    if not trained:
        if (busy := busy_cores()) > IDLE:
            raise RecordError(
                f"{busy:.1f} cores are busy with other work; wait until they are idle"
            )
        length = ["--minutes", minutes] if minutes else []
        python("train", "fit", "--config", options.recipe, "--data", data, "--run", run, "--seed",
               seed, "--wandb", "disabled", "--validate_tokens", 4096, *length, *flags)  # fmt: skip
        write_text(known, made_of)
    if not loss.is_file():
        python("arch", "check", run)  # which fails of a model that leaks
        write_text(loss, python("eval", "loss", run, "--corpus", data, "--format", "json"))
    (figures,) = json.loads(loss.read_text(encoding="utf-8"))
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = max(json.loads(row).get("seconds", 0.0) for row in rows)
    return {"bits": figures["bits_per_byte"], "tokens": figures["checkpoint"]["tokens_seen"],
            "seconds": seconds}  # fmt: skip


def row_text(
    options: argparse.Namespace, flags: Sequence[str], seeds: Sequence[dict[str, Any]],
    p: float | None, lines: str, made_by: tuple[str, str],
) -> str:  # fmt: skip
    """The line of the table."""
    bits = [seed["bits"] for seed in seeds]
    low, high = stats.t.interval(0.95, len(bits) - 1, fmean(bits), stats.sem(bits))
    cells = (
        time.strftime("%Y-%m-%d"),
        " ".join([options.recipe, *flags]),
        f"{fmean(bits):.4f} ({low:.4f} to {high:.4f})",
        " ".join(f"{value:.4f}" for value in bits),
        "" if p is None else f"{p:.2g}",
        f"{fmean(seed['tokens'] for seed in seeds) / 1e6:.2f}",
        f"{fmean(seed['seconds'] for seed in seeds):.0f}",
        lines,
        processor(),
        *made_by,
    )
    return f"| {' | '.join(cells)} |"


def last_record(page: str, track: str) -> dict[str, Any] | None:
    """The last row of a track: its bits by seed and its commit; None where there is none."""
    section = page.partition(f"## {track}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if re.match(r"\| \d{4}-", line)]
    if not rows:
        return None
    cells = dict(
        zip(COLUMNS, [cell.strip() for cell in rows[-1].strip("|").split("|")], strict=True)
    )
    return {"bits": [float(value) for value in cells["by seed"].split()], "commit": cells["commit"]}


def with_row(page: str, heading: str, line: str) -> str:
    """The page with a line at the end of the table under a heading."""
    sections = page.split("\n## ")
    named = [i for i, section in enumerate(sections) if section.startswith(f"{heading}\n")]
    if not named:
        raise RecordError(f"{PAGE}: there is no heading '## {heading}'")
    lines = sections[named[0]].split("\n")
    last = max(number for number, text in enumerate(lines) if text.startswith("|"))
    sections[named[0]] = "\n".join([*lines[: last + 1], line, *lines[last + 1 :]])
    return "\n## ".join(sections)


def lines_since(commit: str) -> str:
    """Lines added less lines deleted in the code since a commit, as `+12`."""
    counts = [
        line.split() for line in git("diff", "--numstat", commit, "HEAD", "--", *ROOMS).splitlines()
    ]
    return f"{sum(int(a) - int(d) for a, d, *_ in counts if a != '-'):+d}"


def source_hash() -> str:
    """Eight digits of the SHA-256 over the code's files, as they are committed."""
    listed = git("ls-tree", "-r", "HEAD", "--", *ROOMS)
    return hashlib.sha256(listed.encode()).hexdigest()[:8]


def busy_cores() -> float:
    """How many cores work while this process waits; 0 where the system does not say."""

    def spent() -> list[int]:
        file = Path("/proc/stat")
        return [int(n) for n in file.read_text().split()[1:9]] if file.is_file() else [0] * 8

    before = spent()
    time.sleep(3.0)
    gone = [after - first for first, after in zip(before, spent(), strict=True)]
    _, _, _, idle, waiting, *_ = gone
    return (1 - (idle + waiting) / sum(gone)) * (os.cpu_count() or 1) if sum(gone) else 0.0


def git(*words: str) -> str:
    """What git says of the checkout.

    Raises:
        RecordError: it refuses.
    """
    run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        said, *_ = [*run.stderr.splitlines(), "failed"]
        raise RecordError(
            f"git {' '.join(words[:3])}: {said}; a record needs a clone with its whole history "
            "(git fetch --unshallow)"
        )
    return run.stdout.strip()


def python(room: str, *words: object) -> str:
    """Runs a command of ours with two threads, and nothing compiled before; what it prints.

    Its errors go to the terminal.

    Raises:
        RecordError: it fails.
    """
    command = [sys.executable, "-m", room, *map(str, words)]
    settings = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as compiled:
        settings["TORCHINDUCTOR_CACHE_DIR"] = compiled
        environment = os.environ | settings
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if run.returncode:
        raise RecordError(f"`python -m {' '.join(command[2:5])} ...` failed: {run.returncode}")
    return run.stdout


if __name__ == "__main__":
    sys.exit(main())
