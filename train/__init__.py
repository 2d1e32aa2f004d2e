"""Lightning training: packed data and a recipe in, a run directory out.

    python -m train fit --config flat --data DIR --run runs/flat

    from train import fit, read_recipe
    fit(read_recipe("--config", "flat", "--data", "DIR", "--run", "runs/flat"))

Imports `arch` and `tokenizer`, nothing else of this project, and them when they are needed: a
command answers Ctrl-C in a line from its first moment on.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from train.commands.cli import read_recipe
    from train.recipe import Recipe
    from train.settings import RunError

__all__ = ["Recipe", "RunError", "fit", "read_recipe"]
MODULES = {"read_recipe": "commands.cli", "Recipe": "recipe", "RunError": "settings"}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'train' has no attribute {name!r}")
    return getattr(import_module(f"train.{MODULES[name]}"), name)


def fit(recipe: Recipe) -> int | None:
    """Trains as a recipe says, from the beginning or from a checkpoint to the last step.

    Data that are a text file get a tokenizer and are packed into the run first. The recipe stays as
    it is: what is chosen for this run alone, such as those packed data, is set in a copy.

    A process that Lightning has started for a run of several devices leaves one of a single device
    to its parent.

    Returns:
        The signal that ended the run early, if one did.

    Raises:
        RunError, arch.ModelError, tokenizer.CorpusError: bad input, a full disk, too little memory,
            or a loss that is no number, in one line.
    """
    from arch.kernels.arithmetic import plain_arithmetic
    from train.commands.prepare import prepare_data
    from train.processes.launcher import check_launcher
    from train.processes.together import alone, is_left_to_parent, together

    recipe = copy.deepcopy(recipe)
    recipe.check()
    recipe.given("data")
    recipe.given("run")
    if is_left_to_parent(recipe.trainer):
        return None
    check_launcher(recipe.trainer)
    with alone(), together(recipe.trainer), plain_arithmetic():
        prepare_data(recipe)
        recipe.open_data()  # what cannot be read is reported at once
        from train.run import Run  # Lightning takes seconds

        with _random_numbers_kept():
            return Run(recipe).fit()


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """The caller's random numbers go on behind the block: a run seeds all generators."""
    import random

    import numpy as np
    import torch

    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        stack.enter_context(torch.random.fork_rng(cuda))
        yield
