"""Weights & Biases, and trackio's local board.

W&B is offline by default and needs no account. Failures of either never end a run. W&B's run id is
kept across resumes. Online, model directories are versions of the artifact `model-ID`.
"""

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from lightning.pytorch.loggers import Logger, WandbLogger

from arch.errors import LETTERS, reason
from arch.storage.files import write_file
from train.settings import RunSettings

LOGIN_TIMEOUT = 30.0
"""Seconds to wait for W&B to begin; WANDB_INIT_TIMEOUT says otherwise of its server only."""
FINISH_TIMEOUT = 60.0
"""Seconds to wait for W&B to end, where WANDB_FINISH_TIMEOUT says nothing else."""
NAME_LETTERS = 128
"""Of the name of a run or a group, at most: W&B refuses longer ones."""
AXES = ("trainer/global_step", "tokens_seen", "seconds")
"""What figures may be plotted over: they go on where they were when a run resumes."""


class TolerantWandbLogger(WandbLogger):
    """Lightning's logger of a W&B run that has begun; an error of W&B is said and ends nothing."""

    def __init__(self, run: Any, say: Callable[[str], None], flag: str) -> None:
        super().__init__(experiment=run)
        self._run: Any = run
        self._say, self._flag = say, flag
        self._undrawn = set[str]()

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Logs figures, with the step as their x axis; counts and other axes have no panel."""

        def log() -> None:
            for name in [name for name in metrics if _is_undrawn(name)]:
                if name not in self._undrawn:
                    self._run.define_metric(name, step_metric=AXES[0], hidden=True)
                    self._undrawn.add(name)
            self._run.log(dict(metrics) | {AXES[0]: step})

        self._try(log)

    def log_hyperparams(self, params: Any) -> None:
        """Logs nothing: the run was begun with the whole recipe as its config."""

    def add_model(self, path: Path, meta: dict[str, Any]) -> None:
        """Logs a model directory as a version of the artifact `model-ID`, if the run is online."""
        if self._run is None or self._run.settings.mode != "online":
            return
        import wandb

        about = {name: value for name, value in meta.items() if name != "source_files"}

        def add() -> None:
            artifact = wandb.Artifact(f"model-{self._run.id}", type="model", metadata=about)
            artifact.add_dir(str(path))
            self._run.log_artifact(artifact, aliases=["latest", path.name])

        self._try(add)

    def close(self, failed: bool) -> None:
        """Ends the run in W&B; one that was offline can be uploaded later, which is said.

        So can one whose end W&B has not got in time.
        """
        run = self._run
        self._try(lambda: self._run.finish(exit_code=int(failed)))
        lacking = self._run is None
        if run is not None and (lacking or run.settings.mode == "offline"):
            about = "not all of it has arrived" if lacking else "offline"
            self._say(f"W&B, {about}: {_sync_command(run.settings)}")
        self._run = None

    def _try(self, act: Callable[[], Any]) -> None:
        if self._run is not None:
            with tolerating_wandb(self._say, f"{self._flag}: {{}}; going on without it"):
                act()
                return
            self._run = None


class TrackioLogger(Logger):
    """Gives the figures to trackio, which keeps them in its own local board: `trackio show`.

    An error of trackio is said once; the run goes on without it.

    Args:
        run: the run's directory; by its name alone trackio would take two runs for one.
    """

    def __init__(
        self,
        run: Path,
        settings: RunSettings,
        config: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        super().__init__()
        import trackio  # pyright: ignore[reportMissingImports]

        self._name = _board_id(run / "trackio_id", say, "trackio", f"{run.resolve().name}-")
        self._say = say
        self._run: Any = None

        def begin() -> None:
            self._run = trackio.init(
                project=settings.wandb_project,
                name=self._name,
                group=settings.wandb_group or architecture(config["model"]),
                config=config,
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

        self._try(begin)

    @property
    def name(self) -> str:
        """The name of the logger, which Lightning asks for."""
        return "trackio"

    @property
    def version(self) -> str:
        """The run's name."""
        return self._name

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Logs figures by the training step."""
        if self._run is not None:
            self._try(lambda: self._run.log(dict(metrics), step=step))

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Logs nothing: the run was begun with its config."""

    def close(self) -> None:
        """Ends the run: what is not written yet is written."""
        if self._run is not None:
            self._try(self._run.finish)

    def _try(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except Exception as error:  # of its database, its files, its server
            self._say(f"--loggers trackio: {reason(error, LETTERS)}; going on without it")
            self._run = None


def open_wandb(
    run: Path, settings: RunSettings, config: dict[str, Any], say: Callable[[str], None]
) -> TolerantWandbLogger | None:
    """The logger of the run in W&B, begun or gone on with; offline where online does not work."""
    import wandb

    begun_before = (run / "wandb_id").is_file()
    own = _board_id(run / "wandb_id", say, "W&B")
    flag = f"--wandb {settings.wandb}"
    modes = {"online": "going on offline", "offline": "going on without it"}
    for mode in list(modes)[list(modes).index(settings.wandb) :]:
        how = wandb.Settings(console="off", silent=True, login_timeout=LOGIN_TIMEOUT)
        if mode == "offline" or "WANDB_INIT_TIMEOUT" not in os.environ:
            how.init_timeout = LOGIN_TIMEOUT
        if hasattr(how, "finish_timeout"):  # older versions wait for ever
            how.finish_timeout_raises = True
            if "WANDB_FINISH_TIMEOUT" not in os.environ:
                how.finish_timeout = FINISH_TIMEOUT
        with tolerating_wandb(say, f"{flag}: {{}}; {modes[mode]}"):
            begun: Any = wandb.init(
                project=settings.wandb_project,
                group=(settings.wandb_group or architecture(config["model"]))[:NAME_LETTERS],
                tags=_tags(config["model"]["mixers"], settings.wandb_tags),
                name=run.resolve().name[:NAME_LETTERS],
                id=own,
                reinit="create_new",  # never the run that something else in this process has open
                # also offline: `wandb sync` would write this start over those before
                resume="allow" if begun_before else None,
                dir=run,
                mode=mode,  # pyright: ignore[reportArgumentType]
                config=config,
                job_type="train",
                settings=how,
            )
            begun.define_metric("*", step_metric=AXES[0], step_sync=True)
            return TolerantWandbLogger(begun, say, flag)
        with tolerating_wandb(say, f"{flag}: {{}}"):
            wandb.teardown()  # what remains of the attempt would hold the run's id
    return None


def _sync_command(settings: Any) -> str:
    """What uploads a W&B run later, by its settings: if it is offline, what all starts wrote."""
    path = Path(settings.sync_dir)
    if settings.mode == "online":
        return f"wandb sync --include-online {quote(str(path))}"
    return f"wandb sync {quote(str(path.parent))}/offline-run-*-{settings.run_id}*"


def _is_undrawn(name: str) -> bool:
    """Whether figures of a name get no panel in W&B: other axes, and numbers of what was asked."""
    return name in (*AXES[1:], "val_tokens") or (name.startswith("eval/") and name.endswith("_n"))


def _board_id(id_file: Path, say: Callable[[str], None], board: str, before: str = "") -> str:
    """What a run is called on a board, which its directory keeps; a copy gets a name anew."""
    if original := _original_of(id_file):
        say(f"{id_file.parent} is a copy of {original}: it begins a run of its own in {board}")
    if original or not id_file.is_file():
        write_file(id_file, (before + uuid.uuid4().hex[:8]).encode())
    return id_file.read_text().strip()


def _original_of(id_file: Path) -> Path | None:
    """The run beside this one of which it is a copy, whose figures would join its own."""
    if not id_file.is_file():
        return None
    known, made = id_file.read_bytes(), id_file.stat().st_ctime_ns
    for file in id_file.resolve().parent.parent.glob(f"*/{id_file.name}"):
        if file.stat().st_ctime_ns < made and file.read_bytes() == known:
            return file.parent
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
        say(line.replace("{}", reason(error, LETTERS)))


def architecture(model: dict[str, Any]) -> str:
    """What runs are grouped by: mixers, width and depth, for example `attention+flat d128 n4`."""
    return f"{' '.join(model['mixers'])} d{model['d_model']} n{model['n_layers']}"


def _tags(mixers: list[str], more: list[str]) -> list[str]:
    """The names of the mixers without their arguments, and `more`; W&B takes 64 characters."""
    names = [name for mixer in mixers for name in re.sub(r"\(.*?\)", "", mixer).split("+")]
    return [*dict.fromkeys(tag.strip()[:64] for tag in [*names, *more])]
