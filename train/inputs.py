"""What a run reads, checked before anything large is imported."""

from arch import ModelConfig
from tokenizer import PackedData
from train.settings import Recipe, RunError


def open_data(recipe: Recipe) -> PackedData:
    """The data that a recipe names.

    Raises:
        RunError: it names none, or its vocabulary or layout is not the recipe's.
        tokenizer.CorpusError: it is not there, or not packed data.
    """
    data = PackedData(given("data", recipe.run.data))
    _check_vocabulary(recipe.model, data)
    _check_layout(recipe.run.layout, data)
    return data


def given(flag: str, value: str | None) -> str:
    """Returns the value of a flag that a run cannot do without.

    Raises:
        RunError: it is missing.
    """
    if value is None:
        what = {
            "data": "a directory of packed data, from python -m tokenizer pack",
            "run": "a directory for the run, for example runs/first",
        }[flag]
        raise RunError(f"--{flag} is missing; give {what}")
    return value


def _check_vocabulary(model: ModelConfig, data: PackedData) -> None:
    size = data.meta["vocab_size"]
    if size != model.vocab_size:
        raise RunError(
            f"--data {data.path}: packed with a vocabulary of {size}, --model.vocab_size is "
            f"{model.vocab_size}; make them equal"
        )


def _check_layout(wanted: str | None, data: PackedData) -> None:
    layout = data.meta["layout"]
    if wanted not in (None, layout):
        advice = " --context N" if wanted == "rows" else ""
        raise RunError(
            f"--data {data.path}: its layout is {layout}, the recipe's is {wanted}; pack it with "
            f"--layout {wanted}{advice}, or train with --layout {layout}"
        )
