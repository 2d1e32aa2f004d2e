"""A W&B sweep file run here, one run after another, without an account or a network.

    python -m train sweep train/sweeps/mixers.yaml --data data/tinystories

The same command goes on where it was left. Finished runs are skipped, if their settings are still
those of the file. At the end the runs are compared.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from train.commands.cli import flag_value, read_recipe
from train.commands.sweep_file import Trial, fixed_flags, name_trials, read_sweep
from train.commands.yaml_file import read_yaml
from train.recipe import Recipe, flat
from train.settings import NOT_IN_MODEL_ID, REMNANT, UNRECORDED, RunError

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""Signals that end a run of `fit` after its step, saved; after one of them no other run begins."""
COMPARED = {"seed", "trainer.max_steps", "data", "valid_fraction"}
"""Settings that a run of a sweep shares with its trial, beside those of its model's id."""
PAUSE = 0.2
"""Seconds between looks at whether a signal has come."""


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
    _refuse_chosen([*flags, *added])
    out = options.out or Path("runs", "sweeps", name)
    return _run_all(name_trials(content, out.expanduser()), [*flags, *added])


def _refuse_chosen(words: list[str]) -> None:
    """Refuses other flags in the place of `--run` and `--resume auto`, which every run is given."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, mark, value = word.partition("=")
        if name == "--run" or (name == "--resume" and (value if mark else following) != "auto"):
            raise RunError(
                f"{word}: every run of a sweep has its own --run, in --out, and --resume auto; "
                "leave it out"
            )


def _run_all(runs: dict[Path, Trial], flags: list[str]) -> int:
    failed = []
    for number, (run, trial) in enumerate(runs.items(), start=1):
        words = [*flags, *(f"--{name}={flag_value(value)}" for name, value in trial.items())]
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

    Args:
        words: the flags that the run has now.

    Raises:
        RunError: it ended, or would go on, with other settings than it has now, or ended with other
            data than lie there now.
    """
    config = run / "config.yaml"
    if not config.is_file():
        return False
    from train.rundir.rundir import RunDirectory  # torch takes seconds

    settings, directory = flat(read_yaml(config)), RunDirectory(run)
    steps = settings.get("trainer.max_steps")
    if not isinstance(steps, int):
        raise RunError(f"{config}: trainer.max_steps is {steps}; remove {run}, or mend it")
    ended = directory.model(steps).is_dir() and steps in directory.validated_steps()
    ended = ended and not settings.get("minutes")
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
    if ended:
        _refuse_changed_data(run, str(now["data"]), directory.model(steps))
    return ended


def _refuse_changed_data(run: Path, data: str, model: Path) -> None:
    """Refuses a run that ended with other data than lie there now, by its last model.

    Raises:
        RunError: it did.
    """
    from arch.storage.files import read_json
    from tokenizer import PackedData
    from train.commands.prepare import was_packed

    packed = PackedData.stands_in(data)
    known = read_json(model / "meta.json").get("data_sha256")
    if (PackedData(data).hash != known) if packed else (was_packed(data, run) is False):
        raise RunError(
            f"{run}: it ended with other data than {data} has now; give another --out, or remove "
            "that run"
        )


def _facts(recipe: Recipe, run: Path) -> dict[str, Any]:
    """The settings of a run by which its figures may differ from another's."""
    from tokenizer import PackedData
    from train.commands.prepare import is_text

    data, packed = recipe.given("data"), run / "data"
    if Path(data).resolve() == packed.resolve():  # of a text, which the run has packed
        data = PackedData(packed).meta["source"]
    text = is_text(data)
    where = str(Path(data).resolve()) if Path(data).exists() or not text else data
    facts = flat(recipe.plain()) | {"data": where}
    left_out = (NOT_IN_MODEL_ID | UNRECORDED) - COMPARED
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
