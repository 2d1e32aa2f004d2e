"""How well models predict the validation stories: nats/token, bits/byte, perplexity, tokens/s."""

import argparse

from rich.console import Console
from rich.table import Table

from eval.checkpoints import Checkpoint
from eval.commands.options import add_corpus, add_models, open_models, positive
from eval.language import bits_per_byte, measure_loss
from eval.results import Results, Row, read_rows, row_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_models(parser)
    add_corpus(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="results directory, for `python -m eval compare`"
    )
    parser.add_argument("--stories", type=positive, help="only the first so many stories")
    parser.add_argument("--batch-size", type=positive, default=32)


def run(options: argparse.Namespace) -> None:
    """Measures model by model and prints a line for each; what is in --out is not measured anew."""
    checkpoints = open_models(options)
    results = Results(options.out) if options.out else None
    known = {row["key"]: row for row in read_rows([options.out])} if results else {}
    table = Table(box=None, header_style="bold")
    for heading in ("model", "step", "tokens"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for heading in ("nats/token", "bits/byte", "95 %", "perplexity", "tokens/s"):
        table.add_column(heading, justify="right")
    for checkpoint in checkpoints:
        row = known.get(_key(checkpoint, options)) or _measure(checkpoint, options)
        if results:
            results.append([row])
        interval = bits_per_byte([row["parts"]], [0])
        table.add_row(
            row["checkpoint"]["name"],
            str(row["checkpoint"]["step"]),
            f"{row['tokens']:,}",
            f"{row['nats_per_token']:.4f}",
            f"{row['bits_per_byte']:.4f}",
            f"{interval.low:.3f}–{interval.high:.3f}" if interval else "",
            f"{row['perplexity']:.2f}",
            f"{row['tokens_per_second']:,.0f}",
        )
    Console().print(table)
    if results:
        print(f"\nrows: {results.path}")


def _measure(checkpoint: Checkpoint, options: argparse.Namespace) -> Row:
    loss = measure_loss(checkpoint, options.corpus, options.stories, options.batch_size)
    return {
        "key": _key(checkpoint, options),
        "kind": "loss",
        "checkpoint": checkpoint.provenance,
        "corpus": options.corpus,
        "device": checkpoint.model.embedding.weight.device.type,
        **loss.record(),
    }


def _key(checkpoint: Checkpoint, options: argparse.Namespace) -> str:
    about = [checkpoint.provenance[field] for field in ("name", "step", "weights_sha256")]
    return row_key(*about, "loss", options.corpus, options.stories)
