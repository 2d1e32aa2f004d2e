"""Which input tokens can be recovered from which layer: rows of evidence into --out."""

import argparse
import sys

from eval.commands.options import add_corpus, add_models, natural, open_models, positive
from eval.errors import RequestError
from eval.inversion.methods import Method, methods
from eval.inversion.run import Question, plan, run_all
from eval.inversion.slices import Slice
from eval.progress import track
from eval.prompts import SETS, random_prompts, story_prompts, text_prompts
from eval.report import terminal_table
from eval.results import Results, read_rows

DEFAULT_SLICES = ["[:, 0:, :]", "[:, 1:, :]", "[:, 3:, :]"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_models(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="results directory")
    parser.add_argument(
        "--layers", nargs="+", type=int, metavar="L", help="0 is the embedding; default: all blocks"
    )
    parser.add_argument(
        "--slices",
        nargs="+",
        default=DEFAULT_SLICES,
        metavar="SLICE",
        help="what is shown of (B, T, D); default: '[:, 0:, :]' '[:, 1:, :]' '[:, 3:, :]'",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME",
        help="descent, adam, sweep, alternating; default: all that fit a slice",
    )
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument("--prompts", nargs="+", choices=SETS, metavar="SET", help="story, random")
    prompts.add_argument("--text", nargs="+", help="texts to recover as they are")
    prompts.add_argument("--count", type=positive, default=8, help="prompts of each set")
    prompts.add_argument("--length", type=positive, default=16, help="tokens of each prompt")
    add_corpus(prompts)  # pyright: ignore[reportArgumentType]
    chance = parser.add_argument_group("solvers")
    chance.add_argument("--seeds", nargs="+", type=natural, default=[0], metavar="N")
    chance.add_argument("--gd-steps", type=positive, default=500, help="steps of descent")
    chance.add_argument("--gd-rate", type=float, default=0.02, help="first rate of descent")
    chance.add_argument("--adam-steps", type=positive, default=300)
    chance.add_argument("--starts", type=positive, default=8, help="random starts of alternating")


def run(options: argparse.Namespace) -> None:
    """Checks everything first, then computes row by row; what is there already is not redone."""
    question = Question(
        options.layers,
        [Slice.parse(text) for text in options.slices],
        _choose(
            methods(options.gd_steps, options.gd_rate, options.adam_steps, options.starts),
            options.methods,
        ),
        options.seeds,
    )
    checkpoints = open_models(options)
    results = Results(options.out)
    tasks = []
    for checkpoint in checkpoints:
        prompts = text_prompts(options.text or [], checkpoint.tokenizer)
        sets = options.prompts or ([] if options.text else ["story"])
        if "story" in sets:
            prompts += story_prompts(
                options.corpus, checkpoint.tokenizer, options.count, options.length
            )
        if "random" in sets:
            prompts += random_prompts(checkpoint.tokenizer, options.count, options.length)
        longest = max(len(prompt.tokens) for prompt in prompts)
        if longest > checkpoint.config.context:
            raise RequestError(
                f"a prompt of {longest} tokens is longer than the context of {checkpoint.path}, "
                f"{checkpoint.config.context}; shorten --text or --length"
            )
        tasks += plan(checkpoint, question, prompts, results.keys)
    if not tasks:
        print(f"{results.path}: every row is there already", file=sys.stderr)
    for _ in track(run_all(tasks, results.append), [task.cost for task in tasks], "inverting"):
        pass
    print(terminal_table(read_rows([results.directory])))
    print(f"\nrows: {results.path}\nnext: python -m eval report {options.out} --out page.html")


def _choose(known: dict[str, Method], wanted: list[str] | None) -> dict[str, Method]:
    for name in wanted or []:
        if name not in known:
            raise RequestError(f"--methods {name}: there is no such method; use {', '.join(known)}")
    return {name: known[name] for name in wanted} if wanted else known
