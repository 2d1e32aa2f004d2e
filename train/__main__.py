"""The commands of this room.

python -m train recipes
python -m train sweep train/sweeps/mixers.yaml --data DIR
python -m train plan --config flat --data DIR
python -m train fit --config flat --data DIR --run runs/flat
python -m train fit --config flat --data DIR --run runs/flat --resume auto
"""

import sys
from collections.abc import Sequence
from pathlib import Path

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
LETTERS = 4000
"""Of an error, at most: it may name many settings."""
NO_MEMORY = (
    "out of memory; free some, or lower --batch.micro, --model.d_model or --model.context; what "
    "was saved stays"
)
KEPT = {
    "fit": "what was saved stays; the same command with --resume auto goes on",
    "sweep": "runs that ended stay; the same command goes on",
}
"""What Ctrl-C leaves, by the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code: 2 for bad input, 130 after Ctrl-C."""
    from arch.kernels.process import prepare_streams  # before torch

    prepare_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    try:
        return _run(words)
    except KeyboardInterrupt:
        print(f"interrupted: {KEPT.get(words[0], 'nothing was written')}", file=sys.stderr)
        return 130


def _run(words: list[str]) -> int:
    from arch.errors import ModelError, is_out_of_memory, printable
    from arch.kernels.process import discard_output
    from tokenizer import CorpusError
    from train.settings import RunError

    try:
        code = _answer(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # a reader such as `head` has seen enough
        discard_output(sys.stdout)
        if words[0] not in KEPT:
            return 0
        print(f"error: the reader of the output has gone; {KEPT[words[0]]}", file=sys.stderr)
    except (RunError, ModelError, CorpusError, OSError) as error:
        if text := printable(error, LETTERS):  # none where another process of the run has said it
            print(f"error: {text}", file=sys.stderr)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        print(f"error: {NO_MEMORY}", file=sys.stderr)
    return 2


def _answer(words: list[str]) -> int:
    from train import fit
    from train.commands import sweep
    from train.commands.cli import COMMANDS, list_recipes, read_command
    from train.processes.launcher import check_numbers
    from train.settings import RunError

    command, *flags = words
    if command == "recipes":
        if flags and flags[0] in ("-h", "--help"):
            print(USAGE)
            return 0
        if flags:
            raise RunError(f"recipes {flags[0]}: one word too many; it takes none")
        for name, line in list_recipes().items():
            print(f"{name:12}  {line}")
        return 0
    if command == "sweep":
        return sweep.main(flags)
    if command not in COMMANDS:
        allowed = ", ".join([*COMMANDS, "recipes", "sweep"])
        raise RunError(f"there is no command {command!r}; allowed: {allowed}")
    recipe = read_command(command, flags)
    if command == "plan":
        check_numbers()
        from train.commands.plan import print_plan  # Lightning takes seconds: not for --help

        print_plan(recipe)
        return 0
    signal = fit(recipe)
    return 0 if signal is None else 128 + signal


if __name__ == "__main__":
    # The working directory may have folders or files of our names, or a library's: it comes last.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.append(sys.path.pop(0))
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.modules.pop("train", None)
    sys.exit(main())
