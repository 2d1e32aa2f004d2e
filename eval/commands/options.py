"""Flags that several commands share, and what they mean."""

import argparse

import torch

from eval import shards
from eval.checkpoints import Checkpoint, open_checkpoint
from eval.errors import RequestError


def add_models(parser: argparse.ArgumentParser, several: bool = True) -> None:
    """The model directories asked about, and where to run them."""
    parser.add_argument(
        "models", nargs="+" if several else 1, metavar="DIR", help="a model directory"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")


def add_corpus(parser: argparse.ArgumentParser) -> None:
    """Where held-out stories come from."""
    parser.add_argument(
        "--corpus",
        default="toy",
        metavar="SOURCE",
        help="held-out stories: of toy (the embedded generator, default), hub:NAME, a directory "
        "with valid.*, or packed data; of a .txt, .jsonl or .parquet file, the share that packing "
        "sets aside",
    )


def open_models(options: argparse.Namespace) -> list[Checkpoint]:
    """Loads every model directory before anything is computed."""
    device = device_of(options.device)
    return [open_checkpoint(path, device) for path in options.models]


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    return _at_least(text, 1)


def natural(text: str) -> int:
    """A whole number of at least 0, for argparse."""
    return _at_least(text, 0)


def _at_least(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return value


def device_of(name: str) -> torch.device:
    """The device that --device names; of several GPUs each of torchrun's processes takes its own.

    Raises:
        RequestError: no such device, or none in reach.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise RequestError(f"--device {name}: allowed are cpu, cuda and auto")
    if name == "cuda" and not torch.cuda.is_available():
        raise RequestError("--device cuda: no CUDA device is in reach; use --device cpu")
    number = shards.local_rank()
    if name == "cuda" and number is not None:
        torch.cuda.set_device(number % torch.cuda.device_count())  # what "cuda" means from here on
    return torch.device(name)
