"""What a run leaves to be read: `metrics.jsonl` and `samples.jsonl`, and a view of them in W&B."""

import json
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from arch.files import write_file
from train.rundir import RunDirectory, read_rows
from train.settings import RunError
from train.tracking import Tracker


class Records:
    """Rows of figures and of samples. The files are the record, W&B shows them.

    Args:
        directory: of the run.
        tracker: the run in W&B, if there is to be one.
        loggers: Lightning's loggers that show the figures too: csv, tensorboard.

    Raises:
        RunError: a logger's package is not installed.
    """

    def __init__(
        self, directory: RunDirectory, tracker: Tracker | None, loggers: Sequence[str] = ()
    ) -> None:
        self._directory, self._tracker = directory, tracker
        self._metrics = directory.path / "metrics.jsonl"
        self._samples = directory.path / "samples.jsonl"
        self._files: dict[Path, FileIO] = {}
        self._loggers = [_logger(kind, directory.path) for kind in loggers]

    def start(self, step: int | None) -> None:
        """Opens the records and drops what is about to happen again.

        Args:
            step: of the checkpoint that the run goes on from.

        Raises:
            RunError: a file cannot be written.
        """
        last = -1 if step is None else step
        metrics = [row for row in read_rows(self._metrics) if row["step"] <= last]
        validated = {row["step"] for row in metrics if "val_loss" in row}
        samples = [row for row in read_rows(self._samples) if row["step"] in validated]
        for path, rows in ((self._metrics, metrics), (self._samples, samples)):
            try:
                write_file(path, b"".join(_line(row) for row in rows))
                self._files[path] = path.open("ab", buffering=0)
            except OSError as error:
                raise self._directory.unsaved(path, error) from error
        if self._tracker is not None:
            self._tracker.start()

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row of figures; it has at least a `step`."""
        if self._files:
            self._append(self._metrics, [row])
            if self._tracker is not None:
                self._tracker.add(row)
            figures = {k: v for k, v in row.items() if k != "step" and v is not None}
            for logger in self._loggers:
                logger.log_metrics(figures, row["step"])
                logger.save()

    def add_samples(self, step: int, samples: list[dict[str, str]]) -> None:
        """Appends generated texts, each with its `prompt` and `text`."""
        if self._files:
            self._append(self._samples, [{"step": step, **sample} for sample in samples])
            if self._tracker is not None:
                self._tracker.add_samples(step, samples)

    def add_model(self, path: Path, meta: dict[str, Any]) -> None:
        """Tells W&B of a model directory, where it is online."""
        if self._files and self._tracker is not None:
            self._tracker.add_model(path, meta)

    def flush(self) -> None:
        """Forces the rows to the disk: a checkpoint must not be there without those before it."""
        for path, file in self._files.items():
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise self._directory.unsaved(path, error) from error

    def close(self, failed: bool = False) -> None:
        """Ends the files and the W&B run."""
        for file in self._files.values():
            file.close()
        self._files = {}
        for logger in self._loggers:
            logger.finalize("failed" if failed else "success")
        if self._tracker is not None:
            self._tracker.finish(failed)

    def _append(self, path: Path, rows: list[dict[str, Any]]) -> None:
        content = b"".join(_line(row) for row in rows)
        try:
            while content:
                content = content[self._files[path].write(content) :]
        except OSError as error:
            raise self._directory.unsaved(path, error) from error


def _logger(kind: str, path: Path) -> Logger:
    """A logger that writes into `path/KIND/version_0` and so on, a version for each start."""
    try:
        return {"csv": CSVLogger, "tensorboard": TensorBoardLogger}[kind](path, name=kind)
    except ModuleNotFoundError:
        raise RunError(
            f"--loggers {kind} needs a package that is not installed; pip install {kind}, or leave "
            "it out"
        ) from None


def _line(row: dict[str, Any]) -> bytes:
    return (json.dumps(row) + "\n").encode()
