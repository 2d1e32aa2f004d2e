"""How well models predict the validation stories: nats/token, bits/byte, perplexity, tokens/s."""

import argparse

from rich.console import Console
from rich.table import Table

from eval.commands.options import add_corpus, add_models, open_models, positive
from eval.language import measure_loss


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_models(parser)
    add_corpus(parser)
    parser.add_argument("--stories", type=positive, help="only the first so many stories")
    parser.add_argument("--batch-size", type=positive, default=32)


def run(options: argparse.Namespace) -> None:
    """Prints a line a model."""
    table = Table(box=None, header_style="bold")
    for heading in ("model", "step", "tokens"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for heading in ("nats/token", "bits/byte", "perplexity", "tokens/s"):
        table.add_column(heading, justify="right")
    for checkpoint in open_models(options):
        loss = measure_loss(checkpoint, options.corpus, options.stories, options.batch_size)
        table.add_row(
            checkpoint.provenance["name"],
            str(checkpoint.provenance["step"]),
            f"{loss.tokens:,}",
            f"{loss.nats_per_token:.4f}",
            f"{loss.bits_per_byte:.4f}",
            f"{loss.perplexity:.2f}",
            f"{loss.tokens_per_second:,.0f}",
        )
    Console().print(table)
