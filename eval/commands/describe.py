"""A model as a table: parts, shapes, parameters, FLOPs per token, memory for training."""

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from arch import ModelConfig, ModelError, check_model, describe
from arch.describe import Part
from eval.commands.options import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("model", metavar="DIR", help="a model directory, or its config.json")
    parser.add_argument("--context", type=positive, help="tokens in a sequence; default: the most")
    parser.add_argument("--batch", type=positive, default=1, help="sequences in a training step")
    parser.add_argument(
        "--precision", choices=("32", "bf16-mixed"), default="32", help="of training's products"
    )


def run(options: argparse.Namespace) -> None:
    """Prints the table, its sum, and the memory."""
    with torch.enable_grad():  # what autograd keeps is part of the answer
        description = describe(
            _config(options.model), options.context, options.batch, options.precision
        )
    table = Table(box=None, header_style="bold")
    table.add_column("part", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("shapes", overflow="fold")
    for heading in ("parameters", "FLOPs/token"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, count, part in _alike(description.parts):
        shapes = ", ".join(
            f"{tensor.removesuffix('.weight')} {'x'.join(map(str, shape))}"
            for tensor, shape in part.shapes.items()
        )
        figures = (f"{count * part.cost.parameters:,}", f"{count * part.cost.flops:,.0f}")
        table.add_row(name, part.kind, shapes, *figures)
    cost, memory = description.cost, description.memory
    table.add_row("all", "", "", f"{cost.parameters:,}", f"{cost.flops:,.0f}", style="bold")
    Console().print(table)
    print(
        f"\ntraining: {cost.training_flops:,.0f} FLOPs per token at a context of "
        f"{description.length}\nmemory for {description.batch} x {description.length} tokens a "
        f"step, {description.precision}: {_bytes(memory.total)} (weights {_bytes(memory.weights)}, "
        f"gradients {_bytes(memory.gradients)}, optimiser {_bytes(memory.optimiser)}, "
        f"activations {_bytes(memory.activations)})"
    )


def _alike(parts: tuple[Part, ...]) -> list[tuple[str, int, Part]]:
    """Parts with the same part of other blocks folded in: name, how many, the first of them."""
    alike: dict[object, list[Part]] = {}
    for part in parts:
        place = part.name.split(".")[-1]
        alike.setdefault((place, part.kind, str(part.shapes), part.cost), []).append(part)
    return [
        (f"{len(same)} x {same[0].name.split('.')[-1]}", len(same), same[0])
        if len(same) > 1
        else (same[0].name, 1, same[0])
        for same in alike.values()
    ]


def _config(place: str) -> ModelConfig:
    path = Path(place)
    if path.is_dir():
        return check_model(path)
    if not path.is_file():
        raise ModelError(f"{place}: no such file; give a model directory, or its config.json")
    return ModelConfig.from_json(path.read_text(), str(path))


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
