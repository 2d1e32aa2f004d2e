"""Which input tokens can be recovered from which layer: rows of evidence into --out."""

import argparse
import sys
from itertools import islice
from typing import Any

from eval import shards
from eval.checkpoints import Checkpoint
from eval.circuit import ABLATIONS, PARTS
from eval.commands.options import add_corpus, add_models, natural, open_models, positive
from eval.errors import RequestError
from eval.inversion.controls import derive
from eval.inversion.methods import methods
from eval.inversion.questions import Job, plan
from eval.inversion.run import SHUFFLED, Runner
from eval.inversion.suites import load_suite, read_suite
from eval.progress import track
from eval.report import terminal_table
from eval.results import Results, read_rows
from eval.text import SETS, Prompt, drawn_prompts, held_out_text, padded, text_prompts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_models(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="results directory")
    parser.add_argument(
        "--suite",
        default="quick",
        metavar="NAME|FILE",
        help="quick (default), standard, full, or a YAML file; the flags below replace its fields",
    )
    question = parser.add_argument_group("what is shown, and who is asked")
    question.add_argument(
        "--layers",
        nargs="+",
        metavar="L",
        help="all, last, or numbers; 0 is the embedding; 1+4 joins two",
    )
    question.add_argument("--parts", nargs="+", metavar="PART", help=", ".join(PARTS))
    question.add_argument(
        "--without", nargs="+", metavar="PIECE", help=f"ablations: {', '.join(ABLATIONS)}"
    )
    question.add_argument(
        "--slices",
        nargs="+",
        metavar="SLICE",
        help="what is shown of (B, T, D), as in '[:, 3:, :]' or '[:, :, :16]'",
    )
    question.add_argument("--methods", nargs="+", metavar="NAME", help=", ".join(methods()))
    question.add_argument(
        "--set",
        nargs="+",
        metavar="METHOD.NAME=VALUE",
        help="a setting of a method, as in adam.steps=500; --methods must be given",
    )
    question.add_argument("--seeds", nargs="+", type=natural, metavar="N")
    question.add_argument("--noise", nargs="+", type=float, help="in the target's own units")
    question.add_argument(
        "--controls",
        nargs="+",
        metavar="NAME",
        default=[],
        help="asked beside: shuffled, identity, scale=NUMBER, embedding=DIR",
    )
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument("--prompts", nargs="+", choices=SETS, metavar="SET", help=", ".join(SETS))
    prompts.add_argument("--text", nargs="+", help="texts to recover as they are")
    prompts.add_argument("--count", type=positive, help="prompts of each set")
    prompts.add_argument(
        "--skip", type=natural, default=0, metavar="N", help="stories left out at the start"
    )
    prompts.add_argument("--length", type=positive, help="tokens of each prompt")
    prompts.add_argument("--pad-to", type=positive, metavar="N", help="pads after each prompt")
    prompts.add_argument("--allowed", metavar="TEXT", help="gradient methods answer in its tokens")
    add_corpus(prompts)  # pyright: ignore[reportArgumentType]
    work = parser.add_argument_group("work")
    work.add_argument("--batch", type=positive, default=64, help="rows of a gradient batch")
    work.add_argument("--limit", type=positive, metavar="N", help="stop after about N rows")
    work.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="go on where DIR was left (default), or refuse a DIR that holds rows",
    )


def run(options: argparse.Namespace) -> None:
    """Checks everything first, then computes job by job; what is there already is not redone."""
    suite = read_suite(load_suite(options.suite), _override(options))
    given = {"set": options.prompts, "count": options.count, "length": options.length}
    suite.prompts.update({name: value for name, value in given.items() if value is not None})
    checkpoints = [
        checkpoint
        for own in open_models(options)
        for checkpoint in (own, *(derive(own, c) for c in options.controls if c != SHUFFLED))
    ]
    prompts, texts, allowed = {}, {}, {}
    for checkpoint in checkpoints:
        name = checkpoint.provenance["name"]
        own = _prompts(options, suite.prompts, checkpoint)
        if prompts.setdefault(name, own) != own:
            raise RequestError(
                f"{checkpoint.path}: another model is named {name} too, and reads text otherwise; "
                "ask them apart"
            )
        texts[name] = held_out_text(checkpoint, options.corpus).background()
        allowed[name] = _tokens(options.allowed, checkpoint)

    def planned(done: set[str]) -> list[Job]:
        jobs = []
        for checkpoint in checkpoints:
            name = checkpoint.provenance["name"]
            for question in suite.questions:
                jobs += plan(
                    checkpoint, question, prompts[name], done, options.batch, allowed[name]
                )
        return jobs

    planned(set())  # what cannot be asked is refused before anything is written
    with shards.together():
        whole = Results(options.out) if shards.rank() == 0 else None
        if whole:
            whole.merge()
        shards.wait()
        results = Results(options.out, shards.rank()) if shards.world() > 1 else whole
        assert results
        if results.keys and not options.resume:
            raise RequestError(
                f"--no-resume: {options.out} holds {len(results.keys)} rows; give another directory"
            )
        jobs = shards.share(_first(planned(results.keys), options.limit))
        if not jobs:
            print(f"{results.path}: every row is there already", file=sys.stderr)
        work = Runner(prompts, texts).run_all(jobs, results.append)
        for _ in track(work, [job.cost for job in jobs], "inverting"):
            pass
        shards.wait()
        if whole:
            whole.merge()
            print(terminal_table(read_rows([whole.directory])))
            print(
                f"\nrows: {whole.path}\nnext: python -m eval report {options.out} --out page.html"
            )


def _override(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a question that flags replace."""
    found: dict[str, Any] = {}
    for name in ("parts", "slices", "seeds", "noise"):
        if getattr(options, name) is not None:
            found[name] = getattr(options, name)
    if options.layers is not None:
        found["layers"] = _layers(options.layers)
    if options.without is not None:
        found["without"] = [options.without]
    if SHUFFLED in options.controls:
        found["shuffled"] = True
    if options.set and not options.methods:
        raise RequestError("--set: needs --methods, to say which solvers are asked")
    if options.methods:
        found["methods"] = {name: {} for name in options.methods}
    for text in options.set or []:
        label, dot, rest = text.partition(".")
        name, equals, value = rest.partition("=")
        if not (dot and equals and label in found["methods"]):
            raise RequestError(
                f"--set {text}: must be METHOD.NAME=VALUE with METHOD one of "
                f"{', '.join(found['methods'])}"
            )
        found["methods"][label][name] = _value(value)
    return found


def _layers(words: list[str]) -> Any:
    if words in (["all"], ["last"]):
        return words[0]
    try:
        layers = [[int(one) for one in word.split("+")] for word in words]
    except ValueError:
        raise RequestError(
            f"--layers {' '.join(words)}: must be all, last, or numbers, as in 1 4 1+4"
        ) from None
    return [layer[0] if len(layer) == 1 else layer for layer in layers]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _prompts(
    options: argparse.Namespace, wanted: dict[str, Any], checkpoint: Checkpoint
) -> list[Prompt]:
    tokenizer = checkpoint.tokenizer
    prompts = text_prompts(options.text or [], tokenizer)
    sets = wanted["set"] if options.prompts or not options.text else []
    for kind in [kind for kind in SETS if kind in sets]:
        count, length = wanted["count"], wanted["length"]
        text = held_out_text(checkpoint, options.corpus)
        prompts += drawn_prompts(kind, text, count, length, options.skip)
    if options.pad_to:
        prompts = padded(prompts, tokenizer, options.pad_to)
    longest = max(len(prompt.tokens) for prompt in prompts)
    if longest > checkpoint.config.context:
        raise RequestError(
            f"a prompt of {longest} tokens is longer than the context of {checkpoint.path}, "
            f"{checkpoint.config.context}; shorten --text, --length or --pad-to"
        )
    return prompts


def _tokens(text: str | None, checkpoint: Checkpoint) -> tuple[int, ...] | None:
    if text is None:
        return None
    found = tuple(sorted(set(checkpoint.tokenizer.encode(text, add_special_tokens=False).ids)))
    if not found:
        raise RequestError(f"--allowed {text!r}: there is no token in it; give some text")
    return found


def _first(jobs: list[Job], limit: int | None) -> list[Job]:
    """As many jobs as it takes to make `limit` rows."""
    if limit is None:
        return jobs
    sizes = [0]
    for job in jobs:
        sizes.append(sizes[-1] + len(job.cells))
    return list(islice(jobs, sum(size < limit for size in sizes[:-1])))
