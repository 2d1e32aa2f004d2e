"""The commands of this room.

python -m train recipes
python -m train sweep train/sweeps/mixers.yaml --data DIR
python -m train plan --config flat --data DIR
python -m train fit --config flat --data DIR --run runs/flat
python -m train fit --config flat --data DIR --run runs/flat --resume auto
"""

import sys
from collections.abc import Sequence

import arch.threads  # noqa: F401 - before torch
from arch import ModelError
from tokenizer import CorpusError
from train import fit, sweep
from train.cli import COMMANDS, read_command, recipes
from train.settings import RunError

USAGE = """usage: python -m train [-h] {fit,plan,recipes,sweep} ...

Trains a model on packed data, as a recipe says, into a run directory.

  fit      train; python -m train fit --help lists every setting
  plan     print the memory, time and disk that fit would need, with the same settings
  recipes  list the recipes that come with the project
  sweep    run a W&B sweep file here, one run after another, without an account

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
        if words[0] == "sweep":
            return sweep.main(words[1:])
        if words[0] not in COMMANDS:
            allowed = ", ".join([*COMMANDS, "recipes", "sweep"])
            raise RunError(f"there is no command {words[0]!r}; allowed: {allowed}")
        recipe = read_command(words[0], words[1:])
        if words[0] == "plan":
            from train.plan import print_plan  # Lightning takes seconds: not for --help

            print_plan(recipe)
            return 0
        signal = fit(recipe)
        return 0 if signal is None else 128 + signal
    except (RunError, ModelError, CorpusError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
