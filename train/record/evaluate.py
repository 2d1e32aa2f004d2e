"""Evaluates saved models while a run trains, by the commands of `python -m eval`.

    python -m eval loss    MODEL --out RUN/eval
    python -m eval invert  MODEL --out RUN/eval --suite quick
    python -m eval bits    MODEL --out RUN/eval
    python -m eval compare MODEL RUN/eval --csv FILE

Each is a process of its own: the command line is all that is shared with `eval`. All are given
`--trust_code`, as the run itself runs its mixers' code. What fails is said in a line, and ends no
training.
"""

import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from arch.storage.files import read_json
from arch.storage.runs import saved_steps
from train.record.log import Log
from train.record.stop import StopOnSignal
from train.rundir.rundir import RunDirectory
from train.settings import REMNANT, RunError, RunSettings

FIGURES = ("bits_per_byte", "shown", "hidden_1", "hidden_3", "bits_at_4")
"""Columns of the table of `eval compare`, in its CSV; each has a count beside it, such as
`shown_n`."""
PREFIX = "eval/"
PAUSE = 0.2
"""Seconds after which an evaluation is ended that a signal has stopped, at most."""
SUITES = Path(__file__).resolve().parents[2] / "eval" / "suites"


def check_suite(settings: RunSettings) -> None:
    """Refuses a suite that is not there before the run begins, not at its first evaluation.

    Raises:
        RunError: it is neither one of `eval/suites` nor a file.
    """
    known = sorted(path.stem for path in SUITES.glob("*.yaml"))
    if settings.eval_every and settings.eval not in known and not Path(settings.eval).is_file():
        raise RunError(
            f"--eval {settings.eval}: no such suite or file; use {', '.join(known)} or a YAML file"
        )


class Evaluations(Callback):
    """Has the models of some steps evaluated, and logs the columns of `eval compare` by step.

    A signal that stops the run, or an error, ends an evaluation that is at work. When the run goes
    on, the models of which it lacks figures since are evaluated first.

    Comes after `ModelDirectories` among the callbacks.

    Args:
        directory: the run's; results lie in its folder `eval`.
        settings: of the run: how often, which suite, and whether to wait.
        stop: knows of a signal that has come.
        waited: is given the seconds that training waited.
    """

    def __init__(
        self,
        directory: RunDirectory,
        settings: RunSettings,
        log: Log,
        stop: StopOnSignal,
        waited: Callable[[Trainer, float], None],
    ) -> None:
        self._directory, self._settings, self._log = directory, settings, log
        self._stop, self._failed, self._waited = stop, False, waited
        self._pool = ThreadPoolExecutor(1)
        self._waiting: list[tuple[dict[str, Any], Future[tuple[dict[str, float], str]]]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluates the model that the run starts from, and those before it that a stop left out.

        Of a run that was never evaluated, it is the last of them alone.
        """
        every, last = self._settings.eval_every or 1, trainer.global_step
        steps = [s for s in saved_steps(self._directory.path) if s <= last and s % every == 0]
        done = max(self._done(), default=None)
        self._evaluate(trainer, steps[-1:] if done is None else [s for s in steps if s > done])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluates the model that was validated."""
        if trainer.training or trainer.state.fn == "fit":
            step, every = trainer.global_step, self._settings.eval_every or 1
            due = step % every == 0 or step == trainer.max_steps or trainer.should_stop
            self._evaluate(trainer, [step] if due and step not in self._done() else [])

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Waits for the evaluations that are at work."""
        self._collect(wait=True)
        self._pool.shutdown()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Has the evaluation that is at work end, for which the process would wait."""
        self._failed = True

    def _stopped(self) -> bool:
        return self._failed or self._stop.received is not None

    def _evaluate(self, trainer: Trainer, steps: list[int]) -> None:
        began = time.perf_counter()
        for model in map(self._directory.model, steps if trainer.is_global_zero else []):
            if model.is_dir():
                meta, folder = read_json(model / "meta.json"), self._directory.path / "eval"
                about = {name: meta[name] for name in ("step", "tokens_seen")}
                given = model, folder, self._settings.eval, trainer.strategy.root_device
                work = self._pool.submit(measure, *given, self._stopped)
                self._waiting.append((about, work))
        self._collect(wait=self._settings.eval_wait)
        if self._settings.eval_wait:
            trainer.strategy.barrier()
        self._waited(trainer, time.perf_counter() - began)

    def _done(self) -> set[int]:
        """Steps that have figures, or will."""
        rows = self._directory.rows()
        known = {row["step"] for row in rows if any(name.startswith(PREFIX) for name in row)}
        return known | {about["step"] for about, _ in self._waiting}

    def _collect(self, wait: bool) -> None:
        """Logs the figures of evaluations that have ended; of all, if it waits."""
        while self._waiting and (wait or self._waiting[0][1].done()):
            about, work = self._waiting.pop(0)
            try:
                figures, said = work.result()
            except Exception as error:  # such as of a full disk for temporary files
                figures, said = {}, f"eval failed: {error}"
            if figures:
                self._log.add(about | {PREFIX + name: value for name, value in figures.items()})
            self._log.say(f"step {about['step']}  {said}")


def measure(
    model: Path,
    folder: Path,
    suite: str,
    device: torch.device,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, float], str]:
    """Evaluates a model directory: the columns of `eval compare` that were measured, and a line.

    Args:
        suite: of `eval invert`.
        device: where it is evaluated.
        stopped: ends it, without figures, as soon as this is true.
    """
    began, faults = time.perf_counter(), []
    run = partial(_run, _environment(device), stopped)
    for name, *more in (("loss",), ("invert", "--suite", suite), ("bits",)):
        faults += run(name, str(model), "--out", str(folder), *more)
    with tempfile.TemporaryDirectory() as scratch:
        table = Path(scratch) / "table.csv"
        faults += run("compare", str(model), str(folder), "--csv", str(table))
        figures = _read_figures(table, model) if table.is_file() else {}
    if not figures and stopped():
        return {}, "eval was ended by the signal, and gave no figures"
    shown = [f"{name} {value:.3g}" if "bits" in name else f"{name} {100 * value:.3g} %"
             for name, value in figures.items() if name in FIGURES]  # fmt: skip
    seconds = time.perf_counter() - began
    parts = [f"eval {', '.join(shown) or 'gave no figures'}", f"{seconds:.0f} s", *faults]
    return figures, "; ".join(parts)


def _read_figures(table: Path, model: Path) -> dict[str, float]:
    """The figures of one step in a table of `eval compare`, with their counts."""
    step = int(model.name.removeprefix("step-"))
    with table.open(newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["step"] == str(step)]
    names = [name for figure in FIGURES for name in (figure, f"{figure}_n")]
    found = {name: line[name] for line in lines[:1] for name in names if line.get(name)}
    # without rows of `eval loss`, bits per byte are of the validation, which is logged as such
    if lines and lines[0]["bits_per_byte_of"] != "loss":
        found = {name: value for name, value in found.items() if "per_byte" not in name}
    return {name: float(value) for name, value in found.items()}


def _environment(device: torch.device) -> dict[str, str]:
    """The variables of an evaluation, which sees the device that trains and no other GPU."""
    visible, number = "", device.index or 0
    if device.type == "cuda":
        listed = os.environ.get("CUDA_VISIBLE_DEVICES")
        visible = listed.split(",")[number] if listed else str(number)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible}
    environment.pop("REMNANT_KERNELS", None)  # chosen for training: an evaluation is in fp32
    return environment


def _run(environment: dict[str, str], stopped: Callable[[], bool], *words: str) -> list[str]:
    """Runs a command of `eval`, until it is stopped; what went wrong, if anything."""
    if stopped():
        return []
    process = subprocess.Popen(
        [sys.executable, REMNANT, "eval", *words, "--trust_code"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",  # a library may print in another encoding
        env=environment,
    )
    said = None
    while said is None:
        try:
            _, said = process.communicate(timeout=PAUSE)
        except subprocess.TimeoutExpired:
            if stopped():
                process.terminate()
    if not process.returncode:
        return []
    last = (said.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    return [f"eval {words[0]} failed: {last.removeprefix('error: ')}"]
