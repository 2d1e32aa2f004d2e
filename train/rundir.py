"""The run directory.

config.yaml     every setting, so that `--config RUN/config.yaml` repeats the run
metrics.jsonl   a row per line of progress and per validation
checkpoints/    step-000500.ckpt ..., for resuming only
models/         step-000000 ..., model directories
wandb/          what W&B wrote offline; its run id stands in wandb_id
"""

import contextlib
import os
import tempfile
from pathlib import Path

from arch.files import write_file
from train.checkpoints import step_of
from train.errors import RunError

FAILED_START = {"config.yaml", "metrics.jsonl", "wandb", "wandb_id"}


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resume_from(self, resume: str) -> Path | None:
        """Which checkpoint to start from, if any.

        Args:
            resume: never, auto, or the path of a checkpoint.

        Raises:
            RunError: a run is there already, or has gone on from the chosen checkpoint.
        """
        found = self.checkpoints()
        if resume == "never":
            if self.path.exists() and (not self.path.is_dir() or self._begun()):
                raise RunError(
                    f"--run {self.path}: exists already; go on with --resume auto, or choose "
                    "another --run"
                )
            return None
        if resume == "auto":
            return found[-1] if found else None
        chosen = Path(resume)
        if found and chosen.resolve() != found[-1].resolve():
            raise RunError(
                f"--resume {chosen}: {self.path} has a last checkpoint of its own, "
                f"{found[-1].name}; use --resume auto, or another --run"
            )
        return chosen

    def prepare(self, config: str) -> None:
        """Makes the directory, tries to write in it, and writes config.yaml.

        Raises:
            RunError: the place cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
            write_file(self.path / "config.yaml", config.encode())
        except OSError as error:
            raise RunError(
                f"--run {self.path}: cannot be written ({error.strerror}); choose another place"
            ) from None

    def checkpoints(self) -> list[Path]:
        """The run's checkpoints, oldest first."""
        return sorted((self.path / "checkpoints").glob("step-*.ckpt"), key=step_of)

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step goes."""
        return self.path / "checkpoints" / f"step-{step:06d}.ckpt"

    def model(self, step: int) -> Path:
        """Where the model directory of a step goes."""
        return self.path / "models" / f"step-{step:06d}"

    def _begun(self) -> bool:
        """Whether more is there than a start that failed leaves behind."""
        return bool({p.name for p in self.path.iterdir()} - FAILED_START)

    def prune(self, keep: int) -> None:
        """Removes all but the last checkpoints; one that cannot be removed stays."""
        for path in self.checkpoints()[:-keep]:
            with contextlib.suppress(OSError):
                os.unlink(path)
