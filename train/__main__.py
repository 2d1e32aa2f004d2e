"""The commands of this room.

python -m train recipes
python -m train plan --config flat --data DIR
python -m train fit --config flat --data DIR --run runs/flat
python -m train fit --config flat --data DIR --run runs/flat --resume auto
"""

import sys
from collections.abc import Sequence

from arch import ModelError
from tokenizer import CorpusError
from train.errors import RunError
from train.recipes import find_recipe, recipes

USAGE = """usage: python -m train [-h] {fit,plan,recipes} ...

Trains a model on packed data, as a recipe says, into a run directory.

  fit      train; python -m train fit --help lists every setting
  plan     print the memory, time and disk that fit would need, with the same settings
  recipes  list the recipes that come with the project

  python -m train plan --config flat --data DIR
  python -m train fit --config flat --data DIR --run runs/flat
  python -m train fit --config llama --data DIR --run runs/llama --optimizer.lr 1e-3
  python -m train fit --config runs/flat/config.yaml --resume auto
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    try:
        if words[0] == "recipes":
            for name, line in recipes().items():
                print(f"{name:12}  {line}")
            return 0
        if words[0] not in ("fit", "plan"):
            raise RunError(f"there is no command {words[0]!r}; allowed: fit, plan, recipes")
        return _run(words)
    except (RunError, ModelError, CorpusError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(words: list[str]) -> int:
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in ("--config", "-c"):
            if equals:
                words[i] = f"{flag}={find_recipe(value)}"
            elif i + 1 < len(words):
                words[i + 1] = str(find_recipe(words[i + 1]))
    from train.cli import (
        TrainingCLI,
    )  # takes seconds: only now that the recipe is known to be there

    signal = TrainingCLI(words).signal
    return 0 if signal is None else 128 + signal


if __name__ == "__main__":
    sys.exit(main())
