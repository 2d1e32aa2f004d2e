"""A W&B sweep file run here, one run after another, without an account or a network.

    python -m train sweep train/sweeps/mixers.yaml --data data/tinystories

Reads the grids that `wandb sweep` reads: `parameters` with values, and the flags in `command`.
Other methods run at W&B. The same command goes on where it was left, finished runs are skipped, if
their settings are still those of the file, and at the end the runs are compared.
"""

import argparse
import hashlib
import itertools
import json
import math
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from train.commands.cli import CONFIG, full_name, read_recipe
from train.commands.yaml_file import read_yaml
from train.recipe import ELSEWHERE, Recipe, flat
from train.settings import REMNANT, RunError

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
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that end a run of `fit` after its step, saved; after one of them no other run begins."""
PAUSE = 0.2
"""Seconds between looks at whether a signal has come."""
NAME_LETTERS = 120
"""Of a run's name before its seed: W&B takes 128 in all, file systems 255."""
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
    _refuse_resume([*flags, *added])
    out = options.out or Path("runs", "sweeps", name)
    return _run_all(name_trials(content, out.expanduser()), [*flags, *added])


def _refuse_resume(words: list[str]) -> None:
    """Refuses flags by which runs would begin elsewhere than by `--resume auto`, which they get."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, mark, value = word.partition("=")
        if name == "--resume" and (value if mark else following) != "auto":
            raise RunError(f"{word}: every run of a sweep has --resume auto; leave it out")


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
    """A directory's name for a run: what varies within the sweep, the seed at the end.

    A long name is cut, and ends in eight digits of a hash before the seed.
    """
    names = sorted(varied, key=lambda name: name == "seed")
    values = [trial[name] for name in names]
    short = [digits(value) if isinstance(value, float) else _text(value) for value in values]
    words = [f"{name.rpartition('.')[2]}={word}" for name, word in zip(names, short, strict=True)]
    name = re.sub(r"[^A-Za-z0-9.=+_-]+", "", "_".join(words)) or "run"
    rest, mark, seed = name.rpartition("_seed=") if "seed" in varied else (name, "", "")
    if len(rest) > NAME_LETTERS:
        rest = f"{rest[: NAME_LETTERS - 9]}-{hashlib.sha256(rest.encode()).hexdigest()[:8]}"
    return f"{rest}{mark}{seed}"


def _text(value: object) -> str:
    """A value as a flag takes it: null, true, 0.001, [flat, attention]."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _run_all(runs: dict[Path, Trial], flags: list[str]) -> int:
    failed = []
    for number, (run, trial) in enumerate(runs.items(), start=1):
        words = [*flags, *(f"--{name}={_text(value)}" for name, value in trial.items())]
        finished = _finished(run, words)
        print(f"run {number}/{len(runs)}  {run}{': finished before' * finished}", flush=True)
        if finished:
            continue
        command = [sys.executable, REMNANT, "train", "fit", *words, f"--run={run}", "--resume=auto"]
        code, stop = _train(command)
        ended_by = -code if code < 0 else code - 128
        if stop is not None or ended_by in STOPS:
            with suppress(OSError):  # its terminal may be closed
                print("stopped; the same command goes on from here", file=sys.stderr)
            return 128 + (ended_by if ended_by > 0 else stop or 0)
        if ended_by in signal.valid_signals():
            no_memory = ", as by a system that has no memory left" * (ended_by == signal.SIGKILL)
            print(f"{run}: was ended by signal {ended_by}{no_memory}", file=sys.stderr)
        if code:
            failed.append(run)
    for run in failed:
        print(f"error: {run} did not end well; see above", file=sys.stderr)
    if len(failed) < len(runs):
        begun = [str(run) for run in runs if (run / "metrics.jsonl").is_file()]
        table = ["--trust_code", "--last", "--sort", "bits/byte"]  # of mixers that were trained
        subprocess.run([sys.executable, REMNANT, "eval", "compare", *begun, *table])
    return 1 if failed else 0


def _train(command: list[str]) -> tuple[int, int | None]:
    """Trains a run in a process of its own; its exit code, and the signal that came meanwhile.

    A run in its last step says nothing of one. Ctrl-C reaches the run by the terminal; others are
    sent on, unless they have reached it, too: a second one would end it unsaved. It has handlers of
    them from the begin of its training until the first one comes.
    """
    with _waiting() as signals:
        process, sent, caught = subprocess.Popen(command), False, False
        while True:
            try:
                return process.wait(PAUSE), signals[0] if signals else None
            except subprocess.TimeoutExpired:
                number = signals[0] if signals else signal.SIGTERM
                catches = _catches(process.pid, number)
                new = signals and number != signal.SIGINT and not sent
                if new and (catches or not caught):
                    process.send_signal(number)
                    sent = True
                caught = caught or catches


def _catches(process: int, number: int) -> bool:
    """Whether a process has a handler of a signal."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:  # no Linux, which alone can say so
        return True
    caught = re.search(r"SigCgt:\s*(\w+)", status)
    return caught is None or bool(int(caught[1], 16) >> (number - 1) & 1)


def _finished(run: Path, words: list[str]) -> bool:
    """Whether the run has its last model and the validation of it.

    Of a run of minutes only the run itself knows the last step, and says so when it is started.

    Raises:
        RunError: it ended, or would go on, with other settings than it had by now, by `words`, the
            flags that it has now; or it ended with other data than lie there now.
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
    ended = ended and not content.get("minutes")
    if not ended and not directory.checkpoints():  # it begins anew
        return False
    own = ["--config", str(config), f"--run={run}"]
    held, now = (_facts(read_recipe(*given), run) for given in (own, words))
    for name in sorted({*held, *now}):
        if held.get(name) != now.get(name):
            raise RunError(
                f"{run}: it {'ended' if ended else 'began'} with {name} {held.get(name)}, this "
                f"sweep gives it {now.get(name)}; give another --out, or remove that run"
            )
    if not ended:
        return False
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
    if Path(data).resolve() == packed.resolve():  # of a text, which the run has packed
        data = PackedData(packed).meta["source"]
    text = is_text(data)
    where = str(Path(data).resolve()) if Path(data).exists() or not text else data
    facts = flat(recipe.plain()) | {"data": where}
    left_out = (NOT_RECIPE | ELSEWHERE) - {"seed", "trainer.max_steps", "data", "valid_fraction"}
    left_out |= {"model.vocab_size"} if text else set()
    return {name: value for name, value in facts.items() if name not in left_out}


@contextmanager
def _waiting() -> Iterator[list[int]]:
    """Lets signals end the run that is trained, which saves; this process then says what is next.

    Yields:
        The signals that come.
    """
    signals: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in STOPS if main}
    before = {n: h for n, h in handlers.items() if h not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, lambda number, _: signals.append(number))
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
