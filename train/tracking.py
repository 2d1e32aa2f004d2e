"""Weights & Biases: a view of a run, never its only home, and never a reason for it to end.

Offline unless asked: it needs no account and writes into the run directory (`wandb sync
RUN/wandb/offline-run-*` uploads it later). The run keeps its id across resumes. Online, model
directories are logged as versions of the artifact `model-ID`, with aliases such as `step-000500`.
"""

import html
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arch.files import write_file
from train.settings import RunSettings

PATIENCE = 30.0
"""Seconds to wait for W&B to begin; WANDB_INIT_TIMEOUT says otherwise of its server only."""


class Tracker:
    """The run in W&B.

    Args:
        run: the run directory.
        settings: project, group, tags, and whether to go online.
        config: the whole configuration.
        say: shows the user a line.
    """

    def __init__(
        self,
        run: Path,
        settings: RunSettings,
        config: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._path, self._settings, self._config, self._say = run, settings, config, say
        self._run: Any = None

    def start(self) -> None:
        """Begins it, or goes on with it; offline where online does not work."""
        id_file = self._path / "wandb_id"
        if not id_file.is_file():
            write_file(id_file, uuid.uuid4().hex[:8].encode())
        name = id_file.read_text().strip()
        if self._settings.wandb == "offline":
            self._attempt(lambda: self._init(name, "offline"), "going on without it")
            return
        if not self._attempt(lambda: self._init(name, "online"), "going on offline"):
            import wandb

            # What is left of the attempt would hold the run's id.
            self._attempt(wandb.teardown, "going on without it")
            self._attempt(lambda: self._init(name, "offline"), "going on without it")

    def add(self, row: dict[str, Any]) -> None:
        """Logs figures at their `step`."""
        self._log(row["step"], {k: v for k, v in row.items() if k != "step"})

    def add_samples(self, step: int, samples: list[dict[str, str]]) -> None:
        """Logs texts, to be leafed through by step."""
        if self._run is None:
            return
        import wandb

        page = "".join(
            f"<p><b>{html.escape(sample['prompt'])}</b>{html.escape(sample['text'])}</p>"
            for sample in samples
        )
        self._log(step, {"samples": wandb.Html(page)})

    def add_model(self, path: Path, meta: dict[str, Any]) -> None:
        """Logs a model directory as a version of the run's artifact; online only."""
        if self._run is None or self._run.settings.mode != "online":
            return

        def log() -> None:
            import wandb

            artifact = wandb.Artifact(f"model-{self._run.id}", type="model", metadata=meta)
            artifact.add_dir(str(path))
            self._run.log_artifact(artifact, aliases=["latest", path.name])

        self._attempt(log, "going on without it")

    def finish(self, failed: bool = False) -> None:
        """Ends it."""
        if self._run is not None:
            self._attempt(lambda: self._run.finish(exit_code=int(failed)), "its last rows may lack")
            self._run = None

    def _log(self, step: int, figures: dict[str, Any]) -> None:
        if self._run is None:
            return
        if not self._attempt(lambda: self._run.log(figures, step=step), "going on without it"):
            self._run = None

    def _attempt(self, action: Callable[[], Any], then: str) -> bool:
        """Whether it worked; what did not is said, and ends nothing: the files hold it all."""
        try:
            action()
        except Exception as error:
            if not (
                isinstance(error, OSError | EOFError) or type(error).__module__.startswith("wandb")
            ):
                raise  # a mistake of ours
            reason = " ".join(str(error).split()) or type(error).__name__
            self._say(f"--wandb {self._settings.wandb}: {reason}; {then}")
            return False
        return True

    def _init(self, name: str, mode: str) -> None:
        import wandb

        settings = wandb.Settings(console="off", silent=True, login_timeout=PATIENCE)
        if mode == "offline" or "WANDB_INIT_TIMEOUT" not in os.environ:
            settings.init_timeout = PATIENCE
        self._run = wandb.init(
            project=self._settings.wandb_project,
            group=self._settings.wandb_group or architecture(self._config["model"]),
            tags=[*dict.fromkeys([*self._config["model"]["mixers"], *self._settings.wandb_tags])],
            name=self._path.resolve().name,
            id=name,
            resume="allow" if mode == "online" else None,
            dir=self._path,
            mode=mode,  # pyright: ignore[reportArgumentType]
            config=self._config,
            job_type="train",
            settings=settings,
        )


def architecture(model: dict[str, Any]) -> str:
    """What runs are grouped by: mixers, width and depth, for example `attention+flat d128 n4`."""
    return f"{' '.join(model['mixers'])} d{model['d_model']} n{model['n_layers']}"
