"""Lightning training: packed data and a recipe in, a run directory out.

    python -m train fit --config flat --data DIR --run runs/flat

    from train import fit, read_recipe
    fit(read_recipe("--config", "flat", "--data", "DIR", "--run", "runs/flat"))

Imports `arch` and `tokenizer`, nothing else of this project.
"""

from train.cli import read_recipe
from train.inputs import given, open_data
from train.settings import Recipe, RunError

__all__ = ["Recipe", "RunError", "fit", "read_recipe"]


def fit(recipe: Recipe) -> int | None:
    """Trains as a recipe says, from the beginning or from a checkpoint to the last step.

    Returns:
        The signal that ended the run early, if one did.

    Raises:
        RunError, arch.ModelError, tokenizer.CorpusError: bad input, a full disk, or a loss that is
            no number, in one line.
    """
    given("data", recipe.run.data)
    given("run", recipe.run.run)
    open_data(recipe)  # what cannot be read is said at once
    from train.run import Run  # Lightning takes seconds

    return Run(recipe).fit()
