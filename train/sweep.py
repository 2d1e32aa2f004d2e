"""A W&B sweep file run here, one run after another, without an account or a network.

    python -m train sweep train/sweeps/mixers.yaml --data data/tinystories

Reads the grids that `wandb sweep` reads: `parameters` with values, and the flags in `command`.
Other methods run at W&B. The same command goes on where it was left, finished runs are skipped, and
at the end the runs are compared.
"""

import argparse
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from train.settings import RunError

ARGUMENTS = "${args}"
Trial = dict[str, Any]


def main(words: list[str]) -> int:
    """Runs the sweep; 0 when every run ended well, 1 when one did not.

    Raises:
        RunError: it cannot start.
    """
    parser = argparse.ArgumentParser(
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
    flags = [word for word in content["command"] if str(word).startswith("--")]
    flags += [f"--data={options.data}"] if options.data else []
    out = options.out or Path("runs", "sweeps", content.get("name", options.file.stem))
    parameters = content["parameters"].items()
    varied = [name for name, about in parameters if len(about.get("values", [])) > 1]
    runs = {out / trial_name(trial, varied): trial for trial in plan(content)}
    return _run_all(runs, [*flags, *added], out)


def read_sweep(path: Path) -> dict[str, Any]:
    """A sweep file's content, checked.

    Raises:
        RunError: it is not there, or says something that this cannot run.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise RunError(f"{path}: not YAML; see train/sweeps for some sweeps") from None
    if not isinstance(content, dict) or not isinstance(content.get("parameters"), dict):
        raise RunError(f"{path}: has no parameters; see train/sweeps for some sweeps")
    if content.get("method") != "grid":
        raise RunError(
            f"{path}: method {content.get('method')} runs at W&B only; allowed here: grid"
        )
    if ARGUMENTS not in content.get("command", ()):
        raise RunError(f"{path}: its command does not pass {ARGUMENTS} on; see train/sweeps")
    for name, parameter in content["parameters"].items():
        if not (isinstance(parameter, dict) and ("value" in parameter or parameter.get("values"))):
            raise RunError(f"{path}: parameter {name} needs a value or values")
    return content


def plan(content: dict[str, Any]) -> Iterator[Trial]:
    """The values of the flags of each run of a grid."""
    choices = {
        name: parameter["values"] if "values" in parameter else [parameter["value"]]
        for name, parameter in content["parameters"].items()
    }
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def trial_name(trial: Trial, varied: list[str]) -> str:
    """A directory's name for a run: what varies within the sweep, the seed at the end."""
    names = sorted(varied, key=lambda name: name == "seed")
    values = [trial[name] for name in names]
    short = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
    words = [f"{name.rpartition('.')[2]}={word}" for name, word in zip(names, short, strict=True)]
    return re.sub(r"[^A-Za-z0-9.=+_-]+", "", "_".join(words)) or "run"


def _run_all(runs: dict[Path, Trial], flags: list[str], out: Path) -> int:
    failed = []
    for number, (run, trial) in enumerate(runs.items(), start=1):
        finished = _finished(run)
        print(f"run {number}/{len(runs)}  {run}{': finished before' * finished}", flush=True)
        if finished:
            continue
        words = [*flags, *(f"--{name}={value}" for name, value in trial.items())]
        command = [sys.executable, "-m", "train", "fit", *words, f"--run={run}", "--resume=auto"]
        code = subprocess.run(command).returncode
        if code >= 128 or code < 0:
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


def _finished(run: Path) -> bool:
    """Whether the run's last model is there."""
    config = run / "config.yaml"
    if not config.is_file():
        return False
    from train.rundir import RunDirectory  # torch takes seconds

    steps = yaml.safe_load(config.read_text(encoding="utf-8"))["trainer"]["max_steps"]
    return RunDirectory(run).model(steps).is_dir()
