"""The record of a run, the loggers that get its rows, and what is said on the terminal.

`metrics.jsonl` is the record; the loggers get the same rows by the same steps.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from tqdm import tqdm

from arch.kernels.process import discard_output
from arch.storage.files import read_json, write_file
from train.record.loggers import TolerantWandbLogger, TrackioLogger, open_wandb
from train.rundir.rundir import RunDirectory
from train.settings import RunError, RunSettings

FILES = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}


class Log:
    """The rows and lines of one run; silent on all processes but the first.

    Raises:
        RunError: a logger's package is not installed.
    """

    def __init__(
        self, directory: RunDirectory, settings: RunSettings, config: dict[str, Any]
    ) -> None:
        self._directory, self._settings, self._config = directory, settings, config
        self._trainer: Trainer | None = None
        self._wandb: TolerantWandbLogger | None = None
        self._trackio: TrackioLogger | None = None
        self._logged: dict[str, int] = {}
        for kind in settings.loggers:
            try:
                FILES[kind](directory.path) if kind in FILES else import_module(kind)
            except ModuleNotFoundError:
                raise RunError(
                    f"--loggers {kind} needs a package that is not installed; pip install {kind}, "
                    "or leave it out"
                ) from None

    def start(self, trainer: Trainer, step: int, repeats: bool) -> None:
        """Opens the loggers, and the record without its rows after `step`, where the run starts.

        Where the run `repeats` what it did before it was interrupted, W&B and trackio are not given
        the rows of those steps twice.

        Raises:
            RunError: the record cannot be written.
        """
        self._trainer, path = trainer, self._directory.metrics
        known = self._directory.rows()
        rows = [row for row in known if row["step"] <= step]
        self._logged = self._given(known) if repeats else {}
        with self._directory.writing(path):
            if self._settings.wandb != "disabled" or "trackio" in self._settings.loggers:
                write_file(self._directory.logged, json.dumps(self._logged).encode())
            write_file(path, b"".join(map(_line, rows)))
        run = self._directory.path
        chosen = self._settings.loggers
        loggers: list[Logger] = [FILES[k](run, name=k) for k in chosen if k in FILES]
        if "trackio" in chosen:
            self._trackio = TrackioLogger(run, self._settings, self._config, self.say)
            loggers.append(self._trackio)
        if self._settings.wandb != "disabled":
            self._wandb = open_wandb(run, self._settings, self._config, self.say)
        trainer.loggers = [*loggers, *filter(None, [self._wandb])]

    def _given(self, known: list[dict[str, Any]]) -> dict[str, int]:
        """The last steps that W&B and trackio have, by the kind of row.

        Those of the record, and those that an earlier start has cut off it.
        """
        file = self._directory.logged
        last = read_json(file) if file.is_file() else {}
        for row in known:
            last[_kind(row)] = max(last.get(_kind(row), -1), row["step"])
        return last

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row of figures, which has a `step`, and gives it to the loggers."""
        if self._trainer is not None:
            path = self._directory.metrics
            with self._directory.writing(path), path.open("ab") as file:
                file.write(_line(row))
            figures = {k: v for k, v in row.items() if k != "step" and v is not None}
            for logger in self._trainer.loggers:
                board = logger in (self._wandb, self._trackio)
                if board and row["step"] <= self._logged.get(_kind(row), -1):
                    continue
                logger.log_metrics(figures, row["step"])
                logger.save()

    def add_model(self, path: Path, meta: dict[str, Any]) -> None:
        """Logs a model directory as a version of the artifact in W&B, where that is online."""
        if self._wandb is not None:
            self._wandb.add_model(path, meta)

    def say(self, line: str) -> None:
        """Prints a line, above the bar where there is one."""
        if self._trainer is None:
            return
        try:
            if self._trainer.progress_bar_callback:
                tqdm.write(line)  # Lightning's `bar.print` drops what comes while no bar is drawn
            else:
                print(line, flush=True)
        except OSError:  # who reads is gone, as `tee` after Ctrl-C: what follows goes nowhere
            discard_output(sys.stdout)

    def flush(self) -> None:
        """Forces the rows to the disk: a checkpoint must not be there without those before it."""
        if self._trainer is not None:
            path = self._directory.metrics
            with self._directory.writing(path), path.open("ab") as file:
                os.fsync(file.fileno())

    def close(self, failed: bool) -> None:
        """Ends W&B and trackio; Lightning has ended its own loggers."""
        if self._trackio is not None:
            self._trackio.close()
        if self._wandb is not None:
            self._wandb.close(failed)


def _kind(row: dict[str, Any]) -> str:
    """What tells the rows of a step apart: whether they are of a validation or an evaluation."""
    kinds = (kind for kind in ("val_", "eval/") if any(name.startswith(kind) for name in row))
    return next(kinds, "")


def _line(row: dict[str, Any]) -> bytes:
    return (json.dumps(row) + "\n").encode()
