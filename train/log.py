"""The log of a run: rows in its files, loggers, lines on the terminal and a progress bar.

`metrics.jsonl` and `samples.jsonl` are the record; loggers and the bar show the same figures.
Weights & Biases is offline by default and needs no account. Its run id is kept across resumes, and
its failures never end a run. Online, model directories are versions of the artifact `model-ID`.
Lightning's `WandbLogger` is not used: it would join all runs of a process, number W&B's steps by
calls and not by the model's, and raise where the network fails.
"""

import html
import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from tqdm import tqdm

from arch.files import write_file
from train.rundir import RunDirectory, read_lines
from train.settings import RunError, RunSettings

PATIENCE = 30.0
"""Seconds to wait for W&B to begin; WANDB_INIT_TIMEOUT says otherwise of its server only."""


BAR = "step {n_fmt}/{total_fmt} {bar} {desc}"


class Log:
    """The rows, loggers, lines and bar of one run; silent on all processes but the first.

    Raises:
        RunError: a logger's package is not installed.
    """

    def __init__(
        self, directory: RunDirectory, settings: RunSettings, config: dict[str, Any]
    ) -> None:
        self._directory, self._settings, self._config = directory, settings, config
        self._files: dict[str, FileIO] = {}
        self._loggers = [_logger(kind, directory.path) for kind in settings.loggers]
        self._wandb: Any = None
        self._speaks = False
        self._bar: tqdm | None = None

    def start(self, step: int | None) -> None:
        """Opens the records, and drops rows after the step that the run resumes from.

        Raises:
            RunError: a file cannot be written.
        """
        self._speaks = True
        last = -1 if step is None else step
        metrics = [r for r in read_lines(self._path("metrics")) if r["step"] <= last]
        validated = {row["step"] for row in metrics if "val_loss" in row}
        samples = [r for r in read_lines(self._path("samples")) if r["step"] in validated]
        for name, rows in (("metrics", metrics), ("samples", samples)):
            path = self._path(name)
            with self._directory.writing(path):
                write_file(path, b"".join(_line(row) for row in rows))
                self._files[name] = path.open("ab", buffering=0)
        if self._settings.wandb != "disabled":
            self._start_wandb()

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row of figures; it has at least a `step`."""
        if self._files:
            self._append("metrics", [row])
            figures = {k: v for k, v in row.items() if k != "step" and v is not None}
            for logger in self._loggers:
                logger.log_metrics(figures, row["step"])
                logger.save()
            self._show(figures, row["step"])

    def add_samples(self, step: int, samples: list[dict[str, str]]) -> None:
        """Appends generated texts, each with its `prompt` and `text`, and prints them."""
        if self._files:
            self._append("samples", [{"step": step, **sample} for sample in samples])
            for sample in samples:
                text = " ".join((sample["prompt"] + sample["text"]).split())
                printable = "".join(c if c.isprintable() else "\ufffd" for c in text)
                self.say(f"step {step}  {printable}")
            if self._wandb is not None:
                import wandb

                page = "".join(
                    f"<p><b>{html.escape(sample['prompt'])}</b>{html.escape(sample['text'])}</p>"
                    for sample in samples
                )
                self._show({"samples": wandb.Html(page)}, step)

    def add_model(self, path: Path, meta: dict[str, Any]) -> None:
        """Logs a model directory as a version of the artifact in W&B, where that is online."""
        run = self._wandb
        if run is None or run.settings.mode != "online":
            return

        import wandb

        with self._tolerating("going on without it"):
            artifact = wandb.Artifact(f"model-{run.id}", type="model", metadata=meta)
            artifact.add_dir(str(path))
            run.log_artifact(artifact, aliases=["latest", path.name])

    def say(self, line: str) -> None:
        """Prints a line, above the bar."""
        if not self._speaks:
            return
        if self._bar is not None:
            self._bar.write(line, file=sys.stdout)
        else:
            print(line, flush=True)

    def passing(self, step: int, total: int, figures: str, remaining: str) -> None:
        """Shows the progress of the training: in a bar on a terminal, else on a line."""
        if not self._speaks:
            return
        if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            self.say(f"step {step:>{len(str(total))}}/{total}  {figures}  {remaining}")
            return
        if self._bar is None:
            self._bar = tqdm(total=total, bar_format=BAR, file=sys.stdout, dynamic_ncols=True)
        self._bar.n = step
        self._bar.set_description_str(f"{remaining}  {figures}")

    def flush(self) -> None:
        """Forces the rows to the disk: a checkpoint must not be there without those before it."""
        for name, file in self._files.items():
            with self._directory.writing(self._path(name)):
                os.fsync(file.fileno())

    def close(self, failed: bool = False) -> None:
        """Ends the files, the bar and the loggers."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        for file in self._files.values():
            file.close()
        self._files = {}
        for logger in self._loggers:
            logger.finalize("failed" if failed else "success")
        if self._wandb is not None:
            with self._tolerating("its last rows may lack"):
                self._wandb.finish(exit_code=int(failed))
            self._wandb = None

    def _path(self, name: str) -> Path:
        return self._directory.path / f"{name}.jsonl"

    def _append(self, name: str, rows: list[dict[str, Any]]) -> None:
        content = b"".join(_line(row) for row in rows)
        with self._directory.writing(self._path(name)):
            while content:
                content = content[self._files[name].write(content) :]

    def _show(self, figures: dict[str, Any], step: int) -> None:
        if self._wandb is not None:
            with self._tolerating("going on without it"):
                self._wandb.log(figures, step=step)
                return
            self._wandb = None

    def _start_wandb(self) -> None:
        """Begins the run in W&B, or goes on with it; offline where online does not work."""
        id_file = self._directory.path / "wandb_id"
        if not id_file.is_file():
            write_file(id_file, uuid.uuid4().hex[:8].encode())
        name = id_file.read_text().strip()
        if self._settings.wandb == "online":
            with self._tolerating("going on offline"):
                self._init(name, "online")
                return
            import wandb

            with self._tolerating("going on without it"):
                wandb.teardown()  # what remains of the attempt would hold the run's id
        with self._tolerating("going on without it"):
            self._init(name, "offline")

    def _init(self, name: str, mode: str) -> None:
        import wandb

        how = wandb.Settings(console="off", silent=True, login_timeout=PATIENCE)
        if mode == "offline" or "WANDB_INIT_TIMEOUT" not in os.environ:
            how.init_timeout = PATIENCE
        model = self._config["model"]
        self._wandb = wandb.init(
            project=self._settings.wandb_project,
            group=self._settings.wandb_group or architecture(model),
            tags=_tags(model["mixers"], self._settings.wandb_tags),
            name=self._directory.path.resolve().name,
            id=name,
            reinit="create_new",  # never the run that something else in this process has open
            resume="allow" if mode == "online" else None,
            dir=self._directory.path,
            mode=mode,  # pyright: ignore[reportArgumentType]
            config=self._config,
            job_type="train",
            settings=how,
        )

    @contextmanager
    def _tolerating(self, then: str) -> Iterator[None]:
        """An error of W&B is reported and ends nothing; what follows the block is done then."""
        try:
            yield
        except Exception as error:
            of_wandb = type(error).__module__.startswith("wandb")
            if not (of_wandb or isinstance(error, OSError | EOFError)):
                raise  # a mistake of ours
            reason = " ".join(str(error).split()) or type(error).__name__
            self.say(f"--wandb {self._settings.wandb}: {reason}; {then}")


def architecture(model: dict[str, Any]) -> str:
    """What runs are grouped by: mixers, width and depth, for example `attention+flat d128 n4`."""
    return f"{' '.join(model['mixers'])} d{model['d_model']} n{model['n_layers']}"


def _tags(mixers: list[str], more: list[str]) -> list[str]:
    """The names of the mixers without their arguments, and `more`; W&B takes 64 characters."""
    names = [name for mixer in mixers for name in re.sub(r"\(.*?\)", "", mixer).split("+")]
    return [*dict.fromkeys(tag.strip()[:64] for tag in [*names, *more])]


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
