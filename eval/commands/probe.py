"""What linear probes and a trained inverter read from a layer's outputs: rows into --out."""

import argparse
import sys

from eval.commands.options import add_models, natural, open_models, positive
from eval.errors import RequestError
from eval.inversion.slices import Slice
from eval.probes.inverter import Decoding
from eval.probes.linear import Training
from eval.probes.questions import Stories, plan, run_all
from eval.probes.tables import probe_tables
from eval.progress import track
from eval.results import Results, read_rows

DEFAULT_SLICES = ["[:, 0:, :]", "[:, 3:, :]"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_models(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="results directory")
    parser.add_argument(
        "--layers", nargs="+", type=int, metavar="L", help="0 is the embedding; default: all blocks"
    )
    parser.add_argument(
        "--corpus",
        default="toy",
        metavar="SOURCE",
        help="held-out stories, to fit on and others to judge on: toy (default), a file, a "
        "directory, hub:NAME, or data packed for the model",
    )
    parser.add_argument("--length", type=positive, default=64, help="tokens of a window")
    parser.add_argument("--train-tokens", type=positive, default=64_000)
    parser.add_argument("--valid-tokens", type=positive, default=8_000)
    parser.add_argument("--seed", type=natural, default=0)
    probes = parser.add_argument_group("linear probes")
    probes.add_argument(
        "--offsets",
        nargs="+",
        type=int,
        default=list(range(-3, 4)),
        metavar="O",
        help="the token at t + O is read from the output at t; default: -3 ... 3",
    )
    probes.add_argument(
        "--steps", type=natural, default=200, help="of softmax regression; 0: closed forms alone"
    )
    probes.add_argument("--rate", type=_rate, default=3e-3, help="its first rate")
    inverter = parser.add_argument_group("trained inverter")
    inverter.add_argument("--inverter", action="store_true", help="train one a layer and slice")
    inverter.add_argument(
        "--slices", nargs="+", metavar="SLICE", help="what it is shown; default: all, and all but 3"
    )
    inverter.add_argument("--inverter-steps", type=natural, default=300)
    inverter.add_argument("--inverter-rate", type=_rate, default=3e-3, help="its highest rate")
    inverter.add_argument("--inverter-batch", type=positive, default=16, help="windows a step")
    inverter.add_argument("--blocks", type=positive, default=2, help="encoder blocks")
    inverter.add_argument("--width", type=positive, default=128, help="features in them, at least")


def run(options: argparse.Namespace) -> None:
    """Checks everything first, then computes task by task; what is there is not redone."""
    if options.slices and not options.inverter:
        raise RequestError("--slices: only a trained inverter is shown slices; add --inverter")
    stories = Stories(
        options.corpus,
        options.length,
        _windows(options.train_tokens, options.length, "--train-tokens", 2),
        _windows(options.valid_tokens, options.length, "--valid-tokens", 1),
    )
    slices = [Slice.parse(text) for text in options.slices or DEFAULT_SLICES]
    training = Training(steps=options.steps, rate=options.rate, seed=options.seed)
    decoding = Decoding(
        blocks=options.blocks,
        width=options.width,
        steps=options.inverter_steps,
        windows=options.inverter_batch,
        rate=options.inverter_rate,
        seed=options.seed,
    )
    checkpoints = open_models(options)
    results = Results(options.out)
    tasks = []
    for checkpoint in checkpoints:
        tasks += plan(
            checkpoint,
            stories,
            options.layers,
            sorted(set(options.offsets)),
            training,
            slices if options.inverter else [],
            decoding,
            results.keys,
        )
    if not tasks:
        print(f"{results.path}: every row is there already", file=sys.stderr)
    for _ in track(run_all(tasks, results), [task.cost for task in tasks], "probing"):
        pass
    print(probe_tables(read_rows([results.directory])))
    print(f"\nrows: {results.path}")


def _windows(tokens: int, length: int, flag: str, least: int) -> int:
    if tokens < least * length:
        raise RequestError(
            f"{flag} {tokens}: {least} windows of {length} tokens are needed at least; "
            "ask for more, or give a shorter --length"
        )
    return tokens // length


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value
