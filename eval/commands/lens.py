"""What a model looks like inside: stream, logits by layer, tokens, mixers: documents and rows."""

import argparse
import sys
from collections.abc import Iterator

from eval.checkpoints import Checkpoint
from eval.commands.options import add_models, natural, open_models, positive
from eval.errors import RequestError
from eval.lenses.documents import FOLDER
from eval.lenses.lens import ALL, TOKENS, Request, choose
from eval.lenses.questions import Look
from eval.lenses.tables import lens_tables
from eval.lenses.trace import gather
from eval.lenses.words import word_tokens
from eval.plugins import add_plugin, run_plugins
from eval.progress import track
from eval.results import Results
from eval.text import Prompt, held_out_text, story_prompts, text_prompts

LENGTH = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_models(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="results directory")
    parser.add_argument(
        "--lens",
        nargs="+",
        default=[ALL],
        metavar="NAME",
        help="default: all that can look at the model; `python -m eval lenses` lists them",
    )
    add_plugin(parser)
    prompts = parser.add_argument_group("what is looked at")
    prompts.add_argument("--text", nargs="+", metavar="T", help="texts; default: stories")
    prompts.add_argument("--count", type=positive, metavar="N", help="of stories; default: 4")
    prompts.add_argument(
        "--length", type=positive, metavar="L", help=f"tokens of a story's beginning; {LENGTH}"
    )
    prompts.add_argument(
        "--words",
        nargs="+",
        default=[],
        metavar="W",
        help="tokens that are followed, each one token, its space before it included: ' happy'",
    )
    parser.add_argument(
        "--corpus",
        default="toy",
        metavar="SOURCE",
        help="where stories come from, and the text that lenses are fitted on: toy (default), a "
        "file, a directory, or hub:NAME",
    )
    parser.add_argument(
        "--tokens", type=positive, default=TOKENS, metavar="N", help=f"of text to fit on; {TOKENS}"
    )
    parser.add_argument("--seed", type=natural, default=0)


def run(options: argparse.Namespace) -> None:
    """Checks everything first, then looks; what was looked at before is shown again."""
    run_plugins(options.plugin)
    lenses = choose(options.lens)
    if options.text and (options.count or options.length):
        raise RequestError("--count and --length are of stories; leave them out with --text")
    checkpoints = open_models(options)
    requests = [_request(options, checkpoint) for checkpoint in checkpoints]
    results = Results(options.out)
    looks = [
        Look(lens, checkpoint, request)
        for checkpoint, request in zip(checkpoints, requests, strict=True)
        for lens in lenses
    ]
    answers = _answers(looks, results, strict=ALL not in options.lens)
    for shown in track(answers, [1.0] * len(looks), "looking"):
        if shown:
            print(shown + "\n")
    print(f"rows: {results.path}, documents: {results.directory / FOLDER}")


def _answers(looks: list[Look], results: Results, strict: bool) -> Iterator[str]:
    """Each look's tables; nothing where a lens cannot look, unless it was asked for by name."""
    for before, look in zip([None, *looks], looks, strict=False):
        if before and before.checkpoint is not look.checkpoint:
            before.checkpoint.kept.clear()
        try:
            document, rows = look.run(results.directory)
            results.append(rows)
            yield lens_tables(document, rows)
        except RequestError as refusal:
            if strict:
                raise
            print(f"{look.lens.name} left out: {refusal}", file=sys.stderr)
            yield ""


def _request(options: argparse.Namespace, checkpoint: Checkpoint) -> Request:
    word_tokens(checkpoint, options.words)
    prompts = tuple(_prompts(options, checkpoint))
    gather(checkpoint, prompts)
    return Request(
        prompts, tuple(options.words), options.corpus, tokens=options.tokens, seed=options.seed
    )


def _prompts(options: argparse.Namespace, checkpoint: Checkpoint) -> list[Prompt]:
    if options.text:
        return text_prompts(options.text, checkpoint.tokenizer)
    context = checkpoint.config.context
    length = options.length or min(LENGTH, context)
    if length > context:
        raise RequestError(
            f"--length {length}: the context of {checkpoint.path} is {context}; give a shorter one"
        )
    return story_prompts(held_out_text(checkpoint, options.corpus), options.count or 4, length)
