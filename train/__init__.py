"""Lightning training: packed data and a recipe in, a run directory out.

    python -m train fit --config flat --data DIR --run runs/flat

    from train import fit, read_recipe
    fit(read_recipe("--config", "flat", "--data", "DIR", "--run", "runs/flat"))

Imports `arch` and `tokenizer`, nothing else of this project.
"""

from train.cli import read_recipe
from train.prepare import prepare_data
from train.settings import Recipe, RunError

__all__ = ["Recipe", "RunError", "fit", "read_recipe"]


def fit(recipe: Recipe) -> int | None:
    """Trains as a recipe says, from the beginning or from a checkpoint to the last step.

    Data that are a text file get a tokenizer and are packed into the run first.

    Returns:
        The signal that ended the run early, if one did.

    Raises:
        RunError, arch.ModelError, tokenizer.CorpusError: bad input, a full disk, or a loss that is
            no number, in one line.
    """
    recipe.given("data")
    recipe.given("run")
    prepare_data(recipe)
    recipe.open_data()  # what cannot be read is reported at once
    from train.run import Run  # Lightning takes seconds

    return Run(recipe).fit()
