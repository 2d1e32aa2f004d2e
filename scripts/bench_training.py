"""How fast training is: ours beside other people's trainers, in one run on the same tokens.

    python -m scripts.bench_training --device cpu --data DIR
    python -m scripts.bench_training --device cuda --seconds 400 --out gpu-check

Races: llama (against transformers' Trainer, eager and compiled), flat, expanded, parallel and
headed (against the reference's block under the same Trainer), kernels (ours with and without them,
CUDA only). Without --data all train on toy stories, packed first. Without accelerate transformers'
Trainer cannot start: then its inner loop, restated, runs instead, and the page says so. Writes
training-DEVICE.csv and .md.
"""

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from arch import describe
from scripts.baselines import contenders
from scripts.baselines.contenders import Work
from scripts.baselines.page import page, write
from scripts.baselines.races import RACES, Race, races
from scripts.baselines.rows import Row, row
from scripts.baselines.turns import Entrant, end, enter, race
from tokenizer import CorpusError, PackedData, open_corpus, pack, train_tokenizer
from train.speed import peak_flops

TOGETHER = {"cpu": 3, "cuda": 12}  # contenders that exist at once
TURN = {"cpu": 3.0, "cuda": 1.0}  # seconds
ROUNDS = {"cpu": 15, "cuda": 20}
STORIES = 16000  # of the toy corpus: 3.6 M tokens


def main(arguments: list[str] | None = None) -> int:
    """Measures and writes the page; the exit code."""
    options = _options(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("error: --device cuda: there is no CUDA device here; use cpu", file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="bench-training-") as folder:
            rows = measure(options, Path(folder))
    except (CorpusError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print((options.out / f"training-{options.device}.md").read_text(encoding="utf-8"))
    return int(any(row.failed for row in rows))


def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Runs the races and writes the page anew after each group of them.

    Raises:
        CorpusError: the data cannot be read.
    """
    deadline = time.monotonic() + options.seconds
    data = PackedData(options.data or _toy(folder))
    peak = _peak(options)
    planned = list(races(options, data.meta["vocab_size"]))
    groups = list(_groups(planned, TOGETHER[options.device]))
    rows: list[Row] = []
    left_out: list[str] = []
    for number, group in enumerate(groups):
        left = deadline - time.monotonic()
        if left > 0:
            until = time.monotonic() + left / (len(groups) - number)
            rows += _run(group, data.path, folder / str(number), until, options)
        else:
            left_out += [f"{one.name}: {one.size}" for one in group]
        device, threads = options.device, options.threads
        about = (options.command, device, threads, peak, contenders.TRAINER)
        write(rows, page(rows, left_out, *about), options.out, device)
    return rows


def _run(
    group: list[Race], data: Path, folder: Path, until: float, options: argparse.Namespace
) -> list[Row]:
    """The rows of races that take place together."""
    entered: list[tuple[Race, list[Entrant]]] = []
    try:
        for i, one in enumerate(group):
            print(f"{one.name}: {one.size} ...", file=sys.stderr, flush=True)
            entrants: list[Entrant] = []
            entered.append((one, entrants))
            for j, (name, contender) in enumerate(one.contenders.items()):
                place = folder / f"{i}-{j}"
                place.mkdir(parents=True)
                work = Work(
                    one.model,
                    one.batch,
                    options.device,
                    contender.precision,
                    contender.compiled,
                    data,
                    place,
                )
                log = folder / f"{i}-{j}.log"
                start = (name, options.device, options.threads, log, contender.work)
                entrants.append(enter(*start, work, *contender.arguments))
        everyone = [entrant for _, entrants in entered for entrant in entrants]
        least = min(3, options.rounds)
        race(everyone, options.turn, until, (least, options.rounds))
    finally:
        end([entrant for _, entrants in entered for entrant in entrants])
    return [found for one, entrants in entered for found in _rows(one, entrants)]


def _rows(one: Race, entrants: list[Entrant]) -> Iterator[Row]:
    flops = describe(one.model).cost.training_flops
    for entrant in entrants:
        precision = one.contenders[entrant.name].precision
        about = Row(one.name, one.size, entrant.name, precision)
        if entrant.failed is not None or not entrant.readings:
            yield replace(about, failed=entrant.failed or "no turn was timed")
            continue
        tokens = one.batch * one.model.context
        yield row(about, entrant.readings, entrants[0].readings, tokens, flops)


def _groups(all_races: list[Race], together: int) -> Iterator[list[Race]]:
    group: list[Race] = []
    for one in all_races:
        if group and sum(len(r.contenders) for r in [*group, one]) > together:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _toy(folder: Path) -> Path:
    """Packed stories of the built-in corpus."""
    tokenizer = train_tokenizer(open_corpus("toy:4000", "train"), vocab_size=4096)
    tokenizer.save(str(folder / "tokenizer.json"))
    return pack(f"toy:{STORIES}", folder / "tokenizer.json", folder / "data").path


def _peak(options: argparse.Namespace) -> tuple[float, str]:
    """FLOP/s of the device, and where that number comes from."""
    cuda = options.device == "cuda"
    if cuda and (stated := peak_flops(torch.device("cuda"), "bf16-mixed")):
        return stated, "the data sheet's for bf16"
    side, best = 8192 if cuda else 1024, float("inf")
    a = torch.randn(side, side, device=options.device).to(torch.bfloat16 if cuda else None)
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    for _ in range(8):
        start = time.perf_counter()
        product = a @ a
        product[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - start)
    torch.set_num_threads(threads)
    return 2 * side**3 / best, f"reached here in a product of two {side}-square matrices"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--seconds", type=float, help="in all; cpu: 900, cuda: 400")
    parser.add_argument("--only", choices=RACES, nargs="+", default=RACES)
    parser.add_argument("--eager", action="store_true", help="leave out who is compiled on top")
    parser.add_argument("--data", help="packed data, of 4096 tokens; default: toy stories")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), metavar="DIR")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--widths", type=int, nargs="+", metavar="D", help="cpu: 128 256; cuda: 512"
    )
    parser.add_argument("--layers", type=int, metavar="N", help="cpu: 4; cuda: 8")
    parser.add_argument("--length", type=int, metavar="T", help="cpu: 128; cuda: 512")
    parser.add_argument("--batch", type=int, metavar="B", help="cpu: 16; cuda: 128")
    parser.add_argument("--turn", type=float, metavar="SECONDS", help="cpu: 3; cuda: 1")
    parser.add_argument("--rounds", type=int, help="at most; cpu: 15, cuda: 20")
    options = parser.parse_args(arguments)
    cuda = options.device == "cuda"
    options.seconds = options.seconds or (400 if cuda else 900)
    options.widths = options.widths or ([512] if cuda else [128, 256])
    options.layers = options.layers or (8 if cuda else 4)
    options.length = options.length or (512 if cuda else 128)
    options.batch = options.batch or (128 if cuda else 16)
    options.turn = options.turn or TURN[options.device]
    options.rounds = options.rounds or ROUNDS[options.device]
    words = sys.argv[1:] if arguments is None else arguments
    hidden = {"--data": "DATA", "--out": None}  # where they lie is nobody's business
    options.command = shlex.join(["python", "-m", "scripts.bench_training", *_plain(words, hidden)])
    return options


def _plain(words: list[str], hidden: dict[str, str | None]) -> Iterator[str]:
    place = 0
    while place < len(words):
        if words[place] in hidden:
            if instead := hidden[words[place]]:
                yield from (words[place], instead)
            place += 2
        else:
            yield words[place]
            place += 1


if __name__ == "__main__":
    sys.exit(main())
