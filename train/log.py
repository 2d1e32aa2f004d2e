"""The record of a run, Lightning's loggers, and what is said on the terminal.

`metrics.jsonl` is the record; the loggers get the same rows by the same steps. Weights & Biases is
offline by default and needs no account. Its run id is kept across resumes, and its failures never
end a run. Online, model directories are versions of the artifact `model-ID`.
"""

import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from arch.errors import printable
from arch.storage.files import write_file
from train.rundir import RunDirectory
from train.settings import RunError, RunSettings

LOGIN_TIMEOUT = 30.0
"""Seconds to wait for W&B to begin; WANDB_INIT_TIMEOUT says otherwise of its server only."""
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
        for kind in settings.loggers:
            try:
                FILES[kind](directory.path)
            except ModuleNotFoundError:
                raise RunError(
                    f"--loggers {kind} needs a package that is not installed; pip install {kind}, "
                    "or leave it out"
                ) from None

    def start(self, trainer: Trainer, step: int) -> None:
        """Opens the record without its rows after the step that the run starts from, and loggers.

        Raises:
            RunError: the record cannot be written.
        """
        self._trainer, path = trainer, self._directory.metrics
        rows = [row for row in self._directory.rows() if row["step"] <= step]
        with self._directory.writing(path):
            write_file(path, b"".join(map(_line, rows)))
        run = self._directory.path
        loggers: list[Logger] = [FILES[kind](run, name=kind) for kind in self._settings.loggers]
        if self._settings.wandb != "disabled":
            self._wandb = open_wandb(run, self._settings, self._config, self.say)
        trainer.loggers = [*loggers, *filter(None, [self._wandb])]

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row of figures, which has a `step`, and gives it to the loggers."""
        if self._trainer is not None:
            path = self._directory.metrics
            with self._directory.writing(path), path.open("ab") as file:
                file.write(_line(row))
            figures = {k: v for k, v in row.items() if k != "step" and v is not None}
            for logger in self._trainer.loggers:
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
        bar: Any = self._trainer.progress_bar_callback
        if bar is not None and bar.is_enabled:
            bar.print(line)
        else:
            print(line, flush=True)

    def flush(self) -> None:
        """Forces the rows to the disk: a checkpoint must not be there without those before it."""
        if self._trainer is not None:
            path = self._directory.metrics
            with self._directory.writing(path), path.open("ab") as file:
                os.fsync(file.fileno())

    def close(self, failed: bool) -> None:
        """Ends W&B; Lightning has ended its own loggers."""
        if self._wandb is not None:
            self._wandb.close(failed)


class TolerantWandbLogger(WandbLogger):
    """Lightning's logger of a W&B run that has begun; an error of W&B is said and ends nothing."""

    def __init__(self, run: Any, say: Callable[[str], None], flag: str) -> None:
        super().__init__(experiment=run)
        self._run: Any = run
        self._say, self._flag = say, flag

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Logs figures, with the step as their x axis."""
        self._try(lambda: self._run.log(dict(metrics) | {"trainer/global_step": step}))

    def log_hyperparams(self, params: Any) -> None:
        """Nothing: the run was begun with the whole recipe as its config."""

    def add_model(self, path: Path, meta: dict[str, Any]) -> None:
        """Logs a model directory as a version of the artifact `model-ID`, if the run is online."""
        if self._run is None or self._run.settings.mode != "online":
            return
        import wandb

        artifact = wandb.Artifact(f"model-{self._run.id}", type="model", metadata=meta)
        artifact.add_dir(str(path))
        self._try(lambda: self._run.log_artifact(artifact, aliases=["latest", path.name]))

    def close(self, failed: bool) -> None:
        """Ends the run in W&B."""
        self._try(lambda: self._run.finish(exit_code=int(failed)))
        self._run = None

    def _try(self, act: Callable[[], Any]) -> None:
        if self._run is not None:
            with tolerating_wandb(self._say, f"{self._flag}: {{}}; going on without it"):
                act()
                return
            self._run = None


def open_wandb(
    run: Path, settings: RunSettings, config: dict[str, Any], say: Callable[[str], None]
) -> TolerantWandbLogger | None:
    """The logger of the run in W&B, begun or gone on with; offline where online does not work."""
    import wandb

    id_file = run / "wandb_id"
    if not id_file.is_file():
        write_file(id_file, uuid.uuid4().hex[:8].encode())
    flag = f"--wandb {settings.wandb}"
    modes = {"online": "going on offline", "offline": "going on without it"}
    for mode in list(modes)[list(modes).index(settings.wandb) :]:
        how = wandb.Settings(console="off", silent=True, login_timeout=LOGIN_TIMEOUT)
        if mode == "offline" or "WANDB_INIT_TIMEOUT" not in os.environ:
            how.init_timeout = LOGIN_TIMEOUT
        with tolerating_wandb(say, f"{flag}: {{}}; {modes[mode]}"):
            begun: Any = wandb.init(
                project=settings.wandb_project,
                group=settings.wandb_group or architecture(config["model"]),
                tags=_tags(config["model"]["mixers"], settings.wandb_tags),
                name=run.resolve().name,
                id=id_file.read_text().strip(),
                reinit="create_new",  # never the run that something else in this process has open
                resume="allow" if mode == "online" else None,
                dir=run,
                mode=mode,  # pyright: ignore[reportArgumentType]
                config=config,
                job_type="train",
                settings=how,
            )
            begun.define_metric("*", step_metric="trainer/global_step", step_sync=True)
            return TolerantWandbLogger(begun, say, flag)
        with tolerating_wandb(say, f"{flag}: {{}}"):
            wandb.teardown()  # what remains of the attempt would hold the run's id
    return None


@contextmanager
def tolerating_wandb(say: Callable[[str], None], line: str) -> Iterator[None]:
    """Says an error of W&B in a line; what follows the block is done then. Others are raised."""
    try:
        yield
    except Exception as error:
        of_wandb = type(error).__module__.startswith(("wandb", "pydantic"))  # its settings
        if not (of_wandb or isinstance(error, OSError | EOFError)):
            raise  # a mistake of ours
        said = printable(" ".join(str(error).split()) or type(error).__name__)
        say(line.replace("{}", said))


def architecture(model: dict[str, Any]) -> str:
    """What runs are grouped by: mixers, width and depth, for example `attention+flat d128 n4`."""
    return f"{' '.join(model['mixers'])} d{model['d_model']} n{model['n_layers']}"


def _tags(mixers: list[str], more: list[str]) -> list[str]:
    """The names of the mixers without their arguments, and `more`; W&B takes 64 characters."""
    names = [name for mixer in mixers for name in re.sub(r"\(.*?\)", "", mixer).split("+")]
    return [*dict.fromkeys(tag.strip()[:64] for tag in [*names, *more])]


def _line(row: dict[str, Any]) -> bytes:
    return (json.dumps(row) + "\n").encode()
