"""The whole project in minutes on a CPU: stories in, a page of evidence out.

    make demo                    (or: python -m scripts.demo --out demo)

Makes stories, trains a tokenizer, packs the stories, trains a flat masked mixer and a Llama-style
transformer, asks which input tokens can be recovered from their layers before and after training
and how many bits one output says about a token, and looks at the layers through every lens. Each
step is the command that a user would type: they and all that they print are in OUT/log.txt.
Finished steps are not done again.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

STORIES = 8000
STEPS = 250
BEGIN = "\n$ python -m "
"""How a command in the log begins."""
TABLE = "Tokens recovered"
"""How the table of `eval invert` begins."""
MODELS = {
    "flat": [],
    "llama": [
        "--model.mixers=[attention]",
        "--model.channel_mixer=swiglu",
        "--model.norm=rmsnorm",
        "--model.d_ff=352",  # three matrices of this width weigh what two of 512 do
    ],
}


class Step(NamedTuple):
    """A command; with `makes`, one that is not given where that is there already."""

    title: str
    words: list[str]
    makes: Path | None = None


def main(arguments: list[str] | None = None) -> int:
    """Runs the steps; the exit code of the first that fails."""
    parser = argparse.ArgumentParser(description="Stories in, a page of evidence out.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="where everything goes")
    parser.add_argument("--force", action="store_true", help="remove an earlier demo first")
    options = parser.parse_args(arguments)
    out: Path = options.out
    log = out / "log.txt"
    try:
        if options.force and out.is_dir() and any(out.iterdir()):
            if not (log.is_file() and log.read_bytes().startswith(BEGIN.encode())):
                print(
                    f"error: --out {out}: is not an earlier demo, which --force would remove; give "
                    "another folder, or remove this one yourself",
                    file=sys.stderr,
                )
                return 2
            shutil.rmtree(out)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or error
        print(f"error: --out {out}: cannot be written ({why})", file=sys.stderr)
        return 2
    started = time.perf_counter()
    print(f"commands and what they print: {log}\n")
    for step in steps(out):
        if code := _run(step, log):
            lines = log.read_text(encoding="utf-8").splitlines()
            print("\n".join(["", *lines[-5:]]), file=sys.stderr)
            return code
    table = log.read_text(encoding="utf-8").rpartition(TABLE)[2].partition("\nrows: ")[0]
    print(f"\n{TABLE}{table.rstrip()}")
    print(f"\n{time.perf_counter() - started:.0f} s in all\npage: {(out / 'page.html').resolve()}")
    command = [os.path.relpath(sys.executable), "-m", "eval", "explore", str(out)]
    print(f"try your own sentence: {shlex.join(command)}")
    return 0


def steps(out: Path) -> Iterator[Step]:
    """The commands, in their order."""

    def step(title: str, *words: object, makes: Path | None = None) -> Step:
        return Step(title, [str(word) for word in words], makes)

    corpus, data, results = f"toy:{STORIES}", out / "data", out / "results"
    tokenizer = out / "tokenizer.json"
    words = ("tokenizer", "train", corpus, "--out", tokenizer)
    yield step("a tokenizer of 4,096 entries", *words, makes=tokenizer)
    words = ("tokenizer", "pack", corpus, "--tokenizer", tokenizer, "--out", data)
    yield step(f"{STORIES:,} stories, packed", *words, makes=data)
    checkpoints: list[Path] = []
    for name, settings in MODELS.items():
        run = out / name
        last = run / "models" / f"step-{STEPS:06d}"
        limits = [f"--trainer.max_steps={STEPS}", "--resume=auto", *settings]
        fit = ("train", "fit", "--config=demo", f"--data={data}", f"--run={run}", *limits)
        yield step(f"{name}, trained for {STEPS} steps", *fit, makes=last)
        checkpoints += [run / "models" / "step-000000", last]
    stories = ("--corpus", "toy", "--stories", 100)
    yield step("loss before and after training", "eval", "loss", *checkpoints, *stories)
    # The search for shown tokens is quick enough for every layer; the others look at the last one.
    prompts = ("--count", 3, "--length", 12, "--out", results)
    search = ("--solvers", "propose", "--slices", "[:, 0:, :]", "--layers", "all")
    yield step("tokens back from every layer", "eval", "invert", *checkpoints, *prompts, *search)
    quick = ("--suite", "quick", "--layers", "last")
    yield step("the same by gradients", "eval", "invert", *checkpoints, *prompts, *quick)
    few = ("--candidates", 1024, "--count", 10, "--noise", 0.25, "--quantisers", "int4")
    yield step("bits about one token", "eval", "bits", *checkpoints, *few, "--out", results)
    # Short prompts and little text: enough to look around, and a minute at most.
    looked = ("--count", 2, "--length", 24, "--tokens", 4096, "--corpus", corpus, "--out", results)
    yield step("every lens", "eval", "lens", *checkpoints, *looked)
    yield step("the page", "eval", "report", results, "--out", out / "page.html")


def _run(step: Step, log: Path) -> int:
    """Gives a command in this process, its words and what it prints in the log; the exit code."""
    if step.makes is not None and step.makes.exists():
        return 0
    print(f"{step.title:34}", end="", flush=True)
    started = time.perf_counter()
    with (
        log.open("a", encoding="utf-8", buffering=1) as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        print(f"{BEGIN}{shlex.join(step.words)}")
        try:
            code = import_module(f"{step.words[0]}.__main__").main(step.words[1:])
        except KeyboardInterrupt:
            code = 130
    stopped = " stopped; the same command goes on from here" if code >= 128 else ""
    print(f"{time.perf_counter() - started:6.1f} s{stopped}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
