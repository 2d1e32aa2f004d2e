"""Where a step of training goes: torch's profiler, its kernels summed up by what they are for.

    python -m scripts.bench.steps llama-small flat-small
    python -m scripts.bench.steps llama-small --mixers "[attention(heads=4)+depthwise(size=2)]"

Steps of a recipe on random tokens, in the arithmetic that the recipe has or chooses: the model with
its loss, the gradients, the norm's clipping, the optimiser. Lightning, data and logs are left out.
"""

import argparse
import math
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch._inductor.config as inductor
from torch import nn
from torch.profiler import ProfilerActivity, profile

from arch import LanguageModel
from scripts.bench import shared as bench
from train.commands.cli import read_recipe
from train.recipe import Recipe
from train.settings import RunError
from train.steps.module import LanguageModule
from train.steps.speed import choose_arithmetic

GROUPS = {
    "head": "the head's products, over the vocabulary",
    "blocks": "the blocks' products over features",
    "mixing": "the mixers' products over positions",
    "softmax": "attention's softmax and mask",
    "loss": "the loss's softmax",
    "fused": "norms, activations, rotary embeddings, sums and casts, compiled",
    "optimizer": "the optimiser, and the clipping of the norm",
    "rest": "the rest: calls, allocation, what is not compiled",
}


def main(words: list[str] | None = None) -> int:
    """Measures and prints the tables; the exit code."""
    parser = bench.parser(__doc__, "cpu")
    add = parser.add_argument
    add("recipes", nargs="+", help="names or files of recipes")
    add("--mixers", help="in the place of the recipes' own")
    add("--steps", type=bench.natural, default=20, help="that are timed (%(default)s)")
    return bench.run("steps", bench.parse(parser, words), measure, RunError)


def measure(options: argparse.Namespace) -> bench.Pages:
    """The page of all recipes."""
    if options.device != "cpu":
        raise bench.BenchmarkError(f"--device {options.device}: only cpu is profiled")
    rows: list[dict[str, Any]] = []
    with inductor.patch({"cpp.enable_kernel_profile": True}):  # compiled kernels keep their names
        for name in options.recipes:
            rows += profile_recipe(name, options)
    yield page(rows, options), rows


def profile_recipe(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds of a step by what they are for, a row each; `step` is the whole, by the clock.

    Raises:
        RunError: there is no such recipe, or its flags are wrong.
    """
    mixers = ["--model.mixers", options.mixers] if options.mixers else []
    recipe = read_recipe("--config", name, "--trainer.accelerator", "cpu", *mixers)
    choose_arithmetic(recipe)
    step = make_step(recipe)
    seconds = []
    for _ in range(5 + options.steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(options.steps):
            step()
    spent = dict.fromkeys(GROUPS, 0.0) | sum_up(profiler.events(), recipe.model.vocab_size)
    precision = recipe.run.precision.replace("auto", "32-true")
    arithmetic = f"{precision}, compiled" if recipe.run.compile is True else precision
    about = {"recipe": Path(name).stem, "arithmetic": arithmetic}
    whole = {"part": "step", "ms": 1e3 * median(seconds[5:])}
    parts = ({"part": part, "ms": us / 1e3 / options.steps} for part, us in spent.items())
    return [about | row for row in (whole, *parts)]


def make_step(recipe: Recipe) -> Any:
    """A step of a recipe's training on random tokens, as a function."""
    torch.compiler.reset()
    torch.manual_seed(0)
    module = LanguageModule(LanguageModel(recipe.model), recipe.optimizer, recipe.schedule, 1000)
    if recipe.run.compile is True:
        module.compile_loss()
    optimizer = module.configure_optimizers()["optimizer"]
    size = recipe.batch.size, recipe.model.context + 1
    tokens = torch.randint(recipe.model.vocab_size, size)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    lower = recipe.run.precision == "bf16-mixed"

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            loss = module.training_step((inputs, targets, targets.numel()), 0)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), recipe.optimizer.clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()

    return step


def sum_up(events: Any, vocabulary: int) -> dict[str, float]:
    """Microseconds of a profile's events by group, each event without those inside it."""
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        spent[group_of(event, vocabulary)] += event.self_cpu_time_total
    return spent


def group_of(event: Any, vocabulary: int) -> str:
    """The group of an event: by what it is part of, its name, and the shapes that it multiplies."""
    outer = event
    while outer is not None:
        if outer.name.startswith(("Optimizer.", "aten::linalg_vector_norm", "aten::_foreach_norm")):
            return "optimizer"
        outer = outer.cpu_parent
    name = event.name
    if name in ("aten::mm", "aten::addmm", "aten::linear"):
        wide = any(vocabulary in shape for shape in event.input_shapes)
        return "head" if wide else "blocks"
    whole = ("remnant::", "aten::_scaled_dot_product")  # eager: the softmax is in it
    if name in ("aten::bmm", "aten::baddbmm") or name.startswith(whole):
        return "mixing"
    if "log_softmax" in name or "cross_entropy" in name or "nll_loss" in name:
        return "loss"
    if "softmax" in name:
        return "softmax"
    return "fused" if "_cpp_fused_" in name else "rest"


def page(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """A table of milliseconds and fractions, a column for each recipe."""
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    found = {(row["recipe"], row["part"]): row["ms"] for row in rows}
    kinds = {row["recipe"]: row["arithmetic"] for row in rows}
    lines = [["a step, by the clock", *(f"{found[name, 'step']:.0f} ms" for name in recipes)]]
    sums = {name: sum(found[name, part] for part in GROUPS) for name in recipes}
    for part, words in GROUPS.items():
        fractions = (found[name, part] / sums[name] for name in recipes)
        lines.append([words, *(f"{fraction:.0%}" for fraction in fractions)])
    arithmetic = "; ".join(f"{name} in {of}" for name, of in kinds.items())
    return (
        f"# Where a step of training goes on a CPU\n\n`{options.command}`, "
        f"{options.steps} steps. {bench.hardware(options)};\n{arithmetic}. Parts are fractions of "
        "the time that the profiler gives to kernels.\n\n" + bench.table(["", *recipes], lines)
    )


if __name__ == "__main__":
    sys.exit(main())
