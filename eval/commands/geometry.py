"""How visible outputs move with hidden tokens (Jacobian), and how wide a solver's basin is."""

import argparse
import sys

from eval.commands.options import add_corpus, add_models, natural, open_models, positive
from eval.probes.local import plan_local, run_local
from eval.probes.questions import choose_layers
from eval.probes.tables import geometry_tables
from eval.progress import track
from eval.results import Results, read_rows
from eval.text import held_out_text, story_prompts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_models(parser)
    add_corpus(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="results directory")
    parser.add_argument(
        "--layers", nargs="+", type=int, metavar="L", help="from 1; default: all blocks"
    )
    parser.add_argument(
        "--hidden", nargs="+", type=positive, default=[1, 3], metavar="K", help="first K tokens"
    )
    parser.add_argument("--count", type=positive, default=4, help="story prompts")
    parser.add_argument("--length", type=positive, default=16, help="tokens of each prompt")
    basins = parser.add_argument_group("basins: Adam from starts near the truth")
    basins.add_argument(
        "--radii",
        nargs="*",
        type=_radius,
        default=[0.3, 1.0, 2.0, 4.0, 8.0],
        metavar="R",
        help="distances of the start in lengths of each token's embedding; none: no basins",
    )
    basins.add_argument("--adam-steps", type=positive, default=300)
    basins.add_argument("--seed", type=natural, default=0, help="of the directions")


def run(options: argparse.Namespace) -> None:
    """Checks everything first, then computes task by task; what is there is not redone."""
    checkpoints = open_models(options)
    results = Results(options.out)
    tasks = []
    for checkpoint in checkpoints:
        text = held_out_text(checkpoint, options.corpus)
        prompts = story_prompts(text, options.count, options.length)
        tasks += plan_local(
            checkpoint,
            choose_layers(checkpoint, options.layers),
            sorted(set(options.hidden)),
            prompts,
            sorted(set(options.radii)),
            options.adam_steps,
            options.seed,
            results.keys,
        )
    if not tasks:
        print(f"{results.path}: every row is there already", file=sys.stderr)
    for _ in track(run_local(tasks, results), [task.cost for task in tasks], "measuring"):
        pass
    print(geometry_tables(read_rows([results.directory])))
    print(f"\nrows: {results.path}")


def _radius(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value
