"""What a recipe needs, before it runs: memory, time, disk.

    python -m train plan --config flat-small --data DIR

A step is run on shapes alone, with nothing allocated, and every tensor that it would hold is
counted; then a few real steps are timed on this machine, and on a GPU their memory is measured.
Nothing is written.
"""

import itertools
import math
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed._tools.mem_tracker import MemTracker

from arch import LanguageModel, describe
from arch.mixers import without_numbers
from train.commands.prepare import is_text, prepare_data
from train.recipe import Recipe
from train.record.evaluate import check_suite
from train.record.progress import clock
from train.record.saving import CHECKPOINTS_KEPT
from train.rundir.rundir import RunDirectory
from train.settings import PAIRS, RunSettings
from train.steps.budget import epochs_advice
from train.steps.data import PackedDataModule
from train.steps.module import LanguageModule
from train.steps.pairs import check_pairs
from train.steps.speed import choose_arithmetic, compiles, precision_dtype, prepare
from train.trainer import build_trainer

CHEAP = 2e11
"""FLOP of a measured step on a CPU, at most: it sees fewer windows if need be."""


class Nobody(LightningEnvironment):
    """Stands for a launcher: a plan is of all processes, whatever has started this one."""

    def local_rank(self) -> int:
        """The first of them."""
        return 0

    def node_rank(self) -> int:
        """The first of them."""
        return 0


class Needs(NamedTuple):
    """Bytes on one device when a step needs the most; workspaces of libraries are not counted.

    `buckets` are DDP's copy of the gradients, which it keeps from the first step on.
    """

    peak: int
    weights: int
    optimiser: int
    buckets: int = 0


class Speed(NamedTuple):
    """What a few real steps took.

    Attributes:
        positions: a second, of all devices.
        steps: that were timed.
        windows: of each of these steps.
        held: the most bytes on a GPU, by PyTorch's tensors, without DDP's buckets; None on a CPU.
    """

    positions: float
    steps: int
    windows: int
    held: int | None


def print_plan(recipe: Recipe) -> None:
    """Prints what a run needs; a few real steps are timed.

    Raises:
        RunError, arch.ModelError, tokenizer.CorpusError: bad input, in one line.
    """
    source = recipe.run.data
    with tempfile.TemporaryDirectory() as folder:
        if source is not None and is_text(source):
            recipe.run.run = folder
            prepare_data(recipe)
        _print_plan(recipe, source)


def _print_plan(recipe: Recipe, source: str | None) -> None:
    """Prints the plan of a run on packed data, which were made of `source`."""
    arithmetic = choose_arithmetic(recipe)
    trainer = build_trainer(recipe, RunDirectory(Path()), [], launcher=[Nobody()])
    settings, config, batch = recipe.run, recipe.model, recipe.batch
    micro, parts = batch.split(trainer.world_size)
    data = _open_data(recipe)
    speed = measure_speed(recipe, trainer, micro, bool(arithmetic))
    again = settings.checkpoint_activations
    needs = count_memory(recipe, trainer, micro, parts, again)
    other = count_memory(recipe, trainer, micro, parts, not again)
    unit = "positions" if data and data.train_windows.padded else "tokens"
    cost, steps = describe(config).cost, _count_steps(recipe, data, speed)
    models, tokens = count_models(settings, steps), steps * batch.size * config.context
    epochs, validations = "", "validations not counted: give --data"
    if data:
        count = steps * batch.size / data.train_windows.count
        epochs = f", {count:.2f} epochs of {source}{epochs_advice(count)}"
        times = count_validations(settings, steps)
        validations = (
            f"about {clock(times * _time_validation(data, speed))} for {times} validations"
        )
    validations += "; --eval_every's evaluations not counted" * bool(settings.eval_every)
    minutes = f" in {settings.minutes:g} minutes, by the speed below:" if settings.minutes else ""

    print(
        f"model    {cost.parameters:,} parameters: {' '.join(config.mixers)}, d {config.d_model}, "
        f"n {config.n_layers}, context {config.context}, vocabulary {config.vocab_size}\n"
        f"work    {minutes} {steps:,} steps of {batch.size} x {config.context} = {tokens:,} {unit}"
        f"{epochs}\n"
        f"         {cost.training_flops / 1e6:,.1f} MFLOP a {unit[:-1]}, "
        f"{cost.training_flops * tokens:.2e} FLOP in all"
    )
    _print_memory(trainer, needs, speed.held)
    flag = f"--checkpoint_activations {str(not again).lower()}"
    print(f"         {bytes_in_words(other.peak)} with {flag}")
    device = trainer.strategy.root_device.type
    others = f", times {trainer.world_size} devices" if trainer.world_size > 1 else ""
    print(
        f"speed    {speed.positions:,.0f} {unit}/s, measured over {speed.steps} steps of "
        f"{speed.windows} x {config.context} tokens on one {device}{others}"
    )
    if arithmetic:
        print(f"         {arithmetic}")
    print(f"time     {clock(tokens / speed.positions)} of training, {validations}")
    _print_disk(needs, models + settings.save_best)


def _open_data(recipe: Recipe) -> PackedDataModule | None:
    """The batches of the data that a recipe names; refuses what `fit` refuses.

    Raises:
        RunError, tokenizer.CorpusError: bad input, in one line.
    """
    settings, config = recipe.run, recipe.model
    check_suite(settings)
    if settings.init_from == PAIRS:
        check_pairs(config)
    if settings.data is None:
        return None
    data, tokens = recipe.open_data(), settings.validate_tokens
    return PackedDataModule(data, config.context, recipe.batch, settings.seed, tokens)


def count_models(settings: RunSettings, steps: int, *more: int) -> int:
    """How many model directories a run of so many steps writes; `more` are other periods of it."""
    periods = [every for every in (settings.save_every, settings.eval_every, *more) if every]
    single_steps = {0, steps, *(step for step in settings.save_steps if step <= steps)}
    count = sum(all(step % every for every in periods) for step in single_steps)
    for size in range(1, len(periods) + 1):  # inclusion and exclusion: a list may fill the memory
        for group in itertools.combinations(periods, size):
            count -= (-1) ** size * (steps // math.lcm(*group) + 1)
    return count


def count_validations(settings: RunSettings, steps: int) -> int:
    """How many validations a run of so many steps has: those of its models, and others."""
    return count_models(settings, steps, settings.validate_every)


def _time_validation(data: PackedDataModule, speed: Speed) -> float:
    """About how many seconds a validation takes."""
    valid = data.valid_windows
    windows = -(-valid.tokens // valid.stride)
    positions = min(windows, data.validate_windows or windows) * (valid.width - 1)
    return positions / (3 * speed.positions)  # a forward pass alone is a third of the work


def _count_steps(recipe: Recipe, data: PackedDataModule | None, speed: Speed) -> int:
    """The steps of a run; of its minutes validations take a part, but for the first and last."""
    settings = recipe.run
    if not settings.minutes:
        return recipe.trainer.max_steps
    seconds = recipe.batch.size * recipe.model.context / speed.positions
    steps = max(1, int(60 * settings.minutes / seconds))
    if data:
        between = max(0, count_validations(settings, steps) - 2)
        seconds += between * _time_validation(data, speed) / steps
    return max(1, int(60 * settings.minutes / seconds))


def _print_memory(trainer: Trainer, needs: Needs, held: int | None) -> None:
    """Prints what a step needs, beside what was measured."""
    device, words = trainer.strategy.root_device.type, bytes_in_words
    rest = needs.peak - needs.weights - needs.optimiser - needs.buckets
    buckets = f", DDP's buckets {words(needs.buckets)}" if needs.buckets else ""
    print(
        f"memory   {words(needs.peak)} on each of {trainer.world_size} {device} at the peak: "
        f"weights {words(needs.weights)}, optimiser {words(needs.optimiser)}{buckets}, activations "
        f"and gradients {words(rest)}"
    )
    if held:
        print(f"         {words(held)} measured on one {device}, over the timed steps")


def _print_disk(needs: Needs, saved: int) -> None:
    """Prints what so many model directories and the checkpoints take."""
    checkpoint, words = needs.weights + needs.optimiser, bytes_in_words
    print(
        f"disk     {words(saved * needs.weights + (CHECKPOINTS_KEPT + 1) * checkpoint)}: {saved} "
        f"model directories of {words(needs.weights)}, {CHECKPOINTS_KEPT} checkpoints of "
        f"{words(checkpoint)} and one being written"
    )


def count_memory(recipe: Recipe, trainer: Trainer, micro: int, parts: int, again: bool) -> Needs:
    """What training holds on one device, from two steps of at most two parts.

    They run on shapes alone, but for mixers of somebody else's, which may read their numbers.
    `again` says whether activations are computed again rather than kept.
    """
    mixed = str(trainer.precision).endswith("mixed")
    with without_numbers(recipe.model.mixers):
        with trainer.precision_plugin.module_init_context():
            module = _module(recipe)
        module.model.checkpoint_activations = again
        module.chunked_loss = not compiles(recipe.run, trainer.strategy.root_device)
        optimizer = module.configure_optimizers()["optimizer"]
        tokens = torch.zeros(micro, recipe.model.context, dtype=torch.long)
        tracker = MemTracker()
        tracker.track_external(module, optimizer, tokens)
        with tracker:
            for _ in range(2):  # the optimiser's moments are there from the first on
                for part in range(min(parts, 2)):
                    tracker.reset_mod_stats()
                    with torch.autocast("cpu", precision_dtype(trainer), enabled=mixed):
                        loss = module.training_step((tokens, tokens, 1.0), part)
                    loss.backward()
                    del loss
                optimizer.step()
                optimizer.zero_grad()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    held = {str(getattr(kind, "value", kind)): count for kind, count in peak.items()}
    buckets = weights if isinstance(trainer.strategy, DDPStrategy) else 0
    return Needs(held["Total"] + buckets, weights, held["Optstate"], buckets)


def measure_speed(recipe: Recipe, trainer: Trainer, micro: int, chosen: bool = False) -> Speed:
    """Times a few real steps.

    They are of random tokens, fewer at once on a CPU, where they would be slow. A step of several
    parts has their passes and one step of the optimiser.
    """
    device, times = trainer.strategy.root_device, list[tuple[float, float]]()
    module = _module(recipe)
    prepare(module, recipe.run, trainer, chosen)
    windows = micro
    if device.type == "cpu":
        work = describe(module.model.config).cost.training_flops * recipe.model.context
        windows = max(1, min(micro, int(CHEAP // work)))
    tokens = torch.randint(recipe.model.vocab_size, (windows, recipe.model.context), device=device)
    trainer.precision_plugin.convert_module(module.to(device))
    optimizer = module.configure_optimizers()["optimizer"]

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    while len(times) < 2 or (len(times) < 5 and sum(map(sum, times[2:])) < 2):
        if device.type == "cuda" and len(times) == 2:
            torch.cuda.reset_peak_memory_stats(device)
        before = now()
        with trainer.precision_plugin.train_step_context():
            loss = module.training_step((tokens, tokens, float(tokens.numel())), 0)
        loss.backward()
        between = now()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append((between - before, now() - between))
    times = times[2:]  # of the first two, one compiles and one makes the optimiser's moments
    passes, updates = (sum(part) / len(times) for part in zip(*times, strict=True))
    batch = recipe.batch.size
    seconds = batch / trainer.world_size / windows * passes + updates
    held = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return Speed(batch * recipe.model.context / seconds, len(times), windows, held)


def _module(recipe: Recipe) -> LanguageModule:
    model, total = LanguageModel(recipe.model), recipe.trainer.max_steps
    schedule = recipe.schedule.within(total) if recipe.run.minutes else recipe.schedule
    return LanguageModule(model, recipe.optimizer, schedule, total)


def bytes_in_words(count: float) -> str:
    """A number of bytes, such as `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
