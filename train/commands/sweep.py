"""A W&B sweep file run here, one run after another, without an account or a network.

    python -m train sweep train/sweeps/mixers.yaml --data data/tinystories

Reads the grids that `wandb sweep` reads: `parameters` with values, and the flags in `command`.
Other methods run at W&B. The same command goes on where it was left, finished runs are skipped, if
their settings are still those of the file, and at the end the runs are compared.
"""

import argparse
import itertools
import json
import math
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from train.commands.cli import CONFIG, full_name, read_recipe
from train.commands.yaml_file import read_yaml
from train.recipe import ELSEWHERE, Recipe, flat
from train.settings import RunError

ARGUMENTS = "${args}"
MACRO = "${"
INTERPRETER = re.compile(r"(.*/)?((ba|da|z)?sh|python[\d.]*)")
"""Programs whose own -c takes a script, and no recipe."""
KEYS = ("name", "method", "metric", "command", "parameters", "program", "project", "entity",
        "description")  # fmt: skip
"""Of a sweep file, that are followed here, or change no run."""
OF_PARAMETER = ("value", "values", "distribution")
RUNS = 10_000
"""Runs of a grid, at most."""
SHORT = "{:.4g}".format
Trial = dict[str, Any]


class _Parser(argparse.ArgumentParser):
    """Reports what it cannot parse in one line."""

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the usage."""
        raise RunError(f"{message}; see {self.prog} --help")


def main(words: list[str]) -> int:
    """Runs the sweep; 0 when every run ended well, 1 when one did not.

    Raises:
        RunError: it cannot start.
    """
    parser = _Parser(
        prog="python -m train sweep",
        description="A W&B sweep file, run here.",
        epilog="What follows -- are more flags of every run.",
    )
    parser.add_argument("file", type=Path, help="a sweep file, as in train/sweeps")
    parser.add_argument("--data", metavar="DIR", help="packed data, instead of the file's")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/sweeps/NAME")
    end = words.index("--") if "--" in words else len(words)
    options, added = parser.parse_args(words[:end]), words[end + 1 :]
    content = read_sweep(options.file)
    name = str(content.get("name", options.file.stem))
    flags = [f"--wandb_group={name}", f"--wandb_tags={json.dumps([f'sweep:{name}'])}"]
    flags += fixed_flags(content)
    flags += [f"--data={options.data}"] if options.data else []
    out = options.out or Path("runs", "sweeps", name)
    return _run_all(name_trials(content, out.expanduser()), [*flags, *added], out.expanduser())


def read_sweep(path: Path) -> dict[str, Any]:
    """A sweep file's content, checked.

    Raises:
        RunError: it is not there, or says something that this cannot run.
    """
    content = read_yaml(path.expanduser())
    parameters, command = content.get("parameters"), content.get("command")
    if not isinstance(parameters, dict) or not parameters:
        raise RunError(f"{path}: has no parameters; see train/sweeps for some sweeps")
    if content.get("method") != "grid":
        raise RunError(
            f"{path}: method {content.get('method')} runs at W&B only; allowed here: grid"
        )
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise RunError(f"{path}: command is {command}; it must be a list of words")
    if ARGUMENTS not in command:
        raise RunError(f"{path}: its command does not pass {ARGUMENTS} on; see train/sweeps")
    if macros := [word for word in fixed_flags(content) if MACRO in word]:
        raise RunError(
            f"{path}: {macros[0]} is filled in at W&B only; write out what it stands for"
        )
    if others := [str(key) for key in content if key not in KEYS]:
        raise RunError(f"{path}: {others[0]} is followed at W&B only; leave it out")
    name = content.get("name", path.stem)
    if not isinstance(name, str) or not name or {"..", ""} & {*re.split(r"[/\0]", name)}:
        raise RunError(f"{path}: name is {name!r}; it must be that of a folder")
    _check_parameters(path, parameters)
    return content


def fixed_flags(content: dict[str, Any]) -> list[str]:
    """The words of a sweep's command from its first flag on: what each run is given alike."""
    words = [word for word in content["command"] if word != ARGUMENTS]
    for i, (before, word) in enumerate(zip(["", *words], words, strict=False)):
        recipe = word.partition("=")[0] in CONFIG and not INTERPRETER.fullmatch(before)
        if recipe or word.startswith("--"):
            return words[i:]
    return []


def _check_parameters(path: Path, parameters: dict[str, Any]) -> None:
    """Refuses a parameter without values, one that is no flag of its own, and too large a grid."""
    known: dict[str, str] = {}
    for name, parameter in parameters.items():
        values = parameter.get("values", []) if isinstance(parameter, dict) else None
        if not isinstance(values, list) or ("value" in parameter) == bool(values):
            raise RunError(f"{path}: parameter {name} needs a value or values, a list")
        if others := [str(key) for key in parameter if key not in OF_PARAMETER]:
            raise RunError(
                f"{path}: parameter {name}: {others[0]} is no part of a grid; leave it out"
            )
        flag = full_name(name)
        if flag in ("run", "resume") or flag in known:
            why = f"is {known[flag]} too" if flag in known else "is chosen for every run"
            raise RunError(f"{path}: parameter {name} {why}; leave it out")
        known[flag] = name
    if (count := math.prod(len(p.get("values", [0])) for p in parameters.values())) > RUNS:
        raise RunError(f"{path}: its grid has {count} runs; allowed: up to {RUNS}")


def plan(content: dict[str, Any]) -> Iterator[Trial]:
    """The values of the flags of each run of a grid."""
    choices = {
        name: parameter["values"] if "values" in parameter else [parameter["value"]]
        for name, parameter in content["parameters"].items()
    }
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def name_trials(content: dict[str, Any], out: Path) -> dict[Path, Trial]:
    """The trials of a sweep by their directories in `out`.

    Raises:
        RunError: two of them would be in one directory.
    """
    parameters = content["parameters"].items()
    varied = [name for name, about in parameters if len(about.get("values", [])) > 1]
    trials = list(plan(content))
    names = [trial_name(trial, varied) for trial in trials]
    if len({*names}) < len(names):  # numbers that differ beyond four digits
        names = [trial_name(trial, varied, repr) for trial in trials]
    runs: dict[Path, Trial] = {}
    for name, trial in zip(names, trials, strict=True):
        if out / name in runs:
            pair = [{n: t[n] for n in varied} for t in (runs[out / name], trial)]
            raise RunError(
                f"two runs would be {out / name}: {pair[0]} and {pair[1]}; make their values "
                "differ in letters or digits, or leave one out"
            )
        runs[out / name] = trial
    return runs


def trial_name(trial: Trial, varied: list[str], digits: Callable[[float], str] = SHORT) -> str:
    """A directory's name for a run: what varies within the sweep, the seed at the end."""
    names = sorted(varied, key=lambda name: name == "seed")
    values = [trial[name] for name in names]
    short = [digits(value) if isinstance(value, float) else _text(value) for value in values]
    words = [f"{name.rpartition('.')[2]}={word}" for name, word in zip(names, short, strict=True)]
    return re.sub(r"[^A-Za-z0-9.=+_-]+", "", "_".join(words)) or "run"


def _text(value: object) -> str:
    """A value as a flag takes it: null, true, 0.001, [flat, attention]."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _run_all(runs: dict[Path, Trial], flags: list[str], out: Path) -> int:
    failed = []
    for number, (run, trial) in enumerate(runs.items(), start=1):
        words = [*flags, *(f"--{name}={_text(value)}" for name, value in trial.items())]
        finished = _finished(run, words)
        print(f"run {number}/{len(runs)}  {run}{': finished before' * finished}", flush=True)
        if finished:
            continue
        command = [sys.executable, "-m", "train", "fit", *words, f"--run={run}", "--resume=auto"]
        with _waiting() as interrupts:
            code = subprocess.run(command).returncode
        if interrupts and not code:
            code = 128 + signal.SIGINT
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL) and not interrupts
        if killed:
            print(f"{run}: was killed, as by a system that has no memory left", file=sys.stderr)
        elif code >= 128 or code < 0:
            print("stopped; the same command goes on from here", file=sys.stderr)
            return code if code > 0 else 128 - code
        if code:
            failed.append(run)
    for run in failed:
        print(f"error: {run} did not end well; see above", file=sys.stderr)
    if len(failed) < len(runs):
        table = ["--last", "--sort", "bits/byte"]
        subprocess.run([sys.executable, "-m", "eval", "compare", str(out), *table])
    return 1 if failed else 0


def _finished(run: Path, words: list[str]) -> bool:
    """Whether the run has its last model and the validation of it.

    Of a run of minutes only the run itself knows the last step, and says so when it is started.

    Raises:
        RunError: it ended with other settings than those of `words`, the flags that it has now, or
            other data than lie there now.
    """
    config = run / "config.yaml"
    if not config.is_file():
        return False
    from arch.storage.files import read_json  # torch takes seconds
    from tokenizer import PackedData
    from train.commands.prepare import was_packed
    from train.rundir.rundir import RunDirectory

    content, directory = read_yaml(config), RunDirectory(run)
    trainer = content.get("trainer")
    steps = trainer.get("max_steps") if isinstance(trainer, dict) else None
    if not isinstance(steps, int):
        raise RunError(f"{config}: trainer.max_steps is {steps}; remove {run}, or mend it")
    ended = directory.model(steps).is_dir() and steps in directory.validations()
    if content.get("minutes") or not ended:
        return False
    own = ["--config", str(config), f"--run={run}"]
    held, now = (_facts(read_recipe(*given), run) for given in (own, words))
    for name in sorted({*held, *now}):
        if held.get(name) != now.get(name):
            raise RunError(
                f"{run}: it ended with {name} {held.get(name)}, this sweep gives it "
                f"{now.get(name)}; give another --out, or remove that run"
            )
    data, packed = str(now["data"]), PackedData.stands_in(str(now["data"]))
    known = read_json(directory.model(steps) / "meta.json").get("data_sha256")
    if (PackedData(data).hash != known) if packed else (was_packed(data, run) is False):
        raise RunError(
            f"{run}: it ended with other data than {data} has now; give another --out, or remove "
            "that run"
        )
    return True


def _facts(recipe: Recipe, run: Path) -> dict[str, Any]:
    """The settings of a run by which its figures may differ from another's."""
    from tokenizer import PackedData
    from train.commands.prepare import is_text
    from train.rundir.identity import NOT_RECIPE

    data, packed = recipe.given("data"), run / "data"
    if data == str(packed):  # of a text, which the run has packed
        data = PackedData(packed).meta["source"]
    text = is_text(data)
    where = str(Path(data).resolve()) if Path(data).exists() or not text else data
    facts = flat(recipe.plain()) | {"data": where}
    left_out = (NOT_RECIPE | ELSEWHERE) - {"seed", "trainer.max_steps", "data", "valid_fraction"}
    left_out |= {"model.vocab_size"} if text else set()
    return {name: value for name, value in facts.items() if name not in left_out}


@contextmanager
def _waiting() -> Iterator[list[int]]:
    """Lets Ctrl-C end the run that is trained, which saves; this process then says what is next.

    Yields:
        The signals that come, of which a run in its last step says nothing.
    """
    interrupts: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
