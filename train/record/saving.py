"""When a run is saved and validated, by Lightning's own callbacks.

A step's model directory and checkpoint are on the disk before its validation starts: callbacks save
at the end of a step, Lightning's validation loop runs after that. A validation that a kill cut off
is done when the run goes on.
"""

import contextlib
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn

from arch import add_to_meta, save_model
from arch.storage.files import write_file
from tokenizer import PackedData
from train.recipe import Recipe, flat
from train.record.log import Log
from train.record.progress import Progress
from train.rundir.checkpoints import RECORD, read_checkpoint
from train.rundir.resume import ResumePoint
from train.rundir.rundir import RunDirectory
from train.settings import PER_PROCESS, RunError
from train.steps.module import LanguageModule, ends_step

CHECKPOINTS_KEPT = 2
"""Checkpoints that a run keeps: the last, and one for when that is damaged."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary sibling, flushes it to the disk and renames it.

    Lightning's own is not atomic where the temporary folder is on another disk.
    Then the oldest of the run's checkpoints are removed, all but `CHECKPOINTS_KEPT`.
    """

    def __init__(self, directory: RunDirectory) -> None:
        super().__init__()
        self._directory = directory

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Serialises in memory first: torch's own file writer would hide a full disk.

        Raises:
            RunError: it cannot be written.
        """
        with self._directory.writing(Path(path)):
            buffer = io.BytesIO()
            torch.save(checkpoint, buffer)
            write_file(Path(path), buffer.getbuffer())
        for old in self._directory.checkpoints()[:-CHECKPOINTS_KEPT]:
            with contextlib.suppress(OSError):
                old.unlink()

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Reads onto the CPU: a device that training fills has no room for a second copy."""
        return read_checkpoint(Path(path), whole=False)


class Checkpoints(Checkpoint):
    """Writes a checkpoint every `every` steps, before validations, after the last step, at a stop.

    A checkpoint records the settings of `start`: those that the run began with, and how they were
    changed; and `fixed`, its model and its data.
    """

    def __init__(
        self,
        directory: RunDirectory,
        every: int,
        record: dict[str, Any],
        progress: Progress,
        log: Log,
    ) -> None:
        self._directory, self._every, self._record = directory, every, record
        self._progress, self._log, self._saved = progress, log, 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves after the steps that are asked for; Lightning calls it after other callbacks."""
        if not ends_step(trainer, batch_idx):
            return
        step = trainer.global_step
        due = _every(self._every, step) or step == trainer.max_steps or trainer.should_stop
        if due or trainer.val_check_batch == 1:  # a validation that is killed loses no step
            self._save_now(trainer, step)
            self._progress.restart(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Saves the last step of a run that a callback has ended, such as an early stopping."""
        step = trainer.global_step
        if trainer.should_stop and step < trainer.max_steps and step != self._saved:
            self._save_now(trainer, step)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Says in the checkpoint which model and data it belongs to, and the settings so far."""
        checkpoint[RECORD] = self._record
        self._log.flush()

    def _save_now(self, trainer: Trainer, step: int) -> None:
        self._saved = step
        trainer.save_checkpoint(self._directory.checkpoint(step))


class ModelDirectories(Callback):
    """Writes a model directory after the steps that are asked for, and has them validated.

    Every directory records the settings of `start`, as a checkpoint does. A model that is saved is
    validated; of a step that is only validated nothing is written but its figures.

    Args:
        given: settings as this process was given them, before a machine chooses what is left open.

    Attributes:
        opening: whether a validation before the training is one of the run: that of step 0, or one
            that a kill cut off.
        stopped_early: whether early stopping has ended the run.
    """

    def __init__(
        self,
        directory: RunDirectory,
        recipe: Recipe,
        data: PackedData,
        given: dict[str, Any],
        start: ResumePoint,
        identity: str,
        progress: Progress,
        log: Log,
    ) -> None:
        self.opening, self.stopped_early, self._saved = False, False, 0
        self._directory, self._settings, self._data = directory, recipe.run, data
        self._start, self._progress, self._log = start, progress, log
        given = flat(given) | {"data": f"data of hash {data.hash[:12]}"}
        self._shared = {name: value for name, value in given.items() if name not in PER_PROCESS}
        self._provenance = {
            "name": directory.path.resolve().name,
            **start.settings,
            "data": str(data.path),
            "data_sha256": data.hash,
            "model_id": identity,
            "data_source": data.meta["source"],
            "field": data.meta.get("field", "text"),
            "valid_fraction": data.meta["valid_fraction"],
            "source_files": data.meta.get("source_files"),
        }

    def opens(self, total: int) -> bool:
        """Whether the run begins with a validation: of step 0, or of a checkpoint that lacks it.

        All processes of a run have one answer, whenever the first of them opens the record.
        """
        if self._start.checkpoint is None:
            return True  # the record begins anew, whatever a killed run left in it
        step = self._start.step
        return self._due(step, total)[1] and step not in self._directory.validated_steps()

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Compares the processes of a run: each has read its flags and the directory by itself.

        Raises:
            RunError: this one was given other settings or data than the first, or begins elsewhere,
                as where a file system shows it an earlier state of the directory.
        """
        own = self._start.step, self.opening, self._shared
        first = trainer.strategy.broadcast(own)
        for name in {**first[2], **own[2]}:
            if own[2].get(name) != first[2].get(name):
                raise RunError(
                    f"--{name}: process {trainer.global_rank} has {own[2].get(name)}, the first "
                    f"{first[2].get(name)}; give all of them the same flags, recipe and data"
                )
        if own != first:
            told = [f"step {step}" + ", validated first" * opens for step, opens, _ in (own, first)]
            raise RunError(
                f"--run {self._directory.path}: process {trainer.global_rank} would go on from "
                f"{told[0]}, the first from {told[1]}; wait until all machines see the same files "
                "there, then start again with --resume auto"
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves what is due after this step, and has Lightning validate it if that is due."""
        trainer.val_check_batch = math.inf
        if not ends_step(trainer, batch_idx):
            return
        step, stop = trainer.global_step, trainer.should_stop
        last = step == trainer.max_steps
        model, validate = self._due(step, trainer.max_steps)
        validate = validate and (last or not stop)  # who stops a run may not wait: see `opens`
        if validate:
            trainer.val_check_batch = 1
        elif stop:
            trainer.limit_val_batches = 0
        if model or validate or last or stop or _every(self._settings.checkpoint_every, step):
            self._progress.count(trainer)
            self._saved = step if last or stop else self._saved
            self._save_step(trainer, pl_module, step, model)
            self._progress.restart(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Saves the model that is validated before the training."""
        pl_module.recorded = self.opening or trainer.state.fn is TrainerFn.FITTING
        if self.opening:
            step = self._start.step
            self._save_step(trainer, pl_module, step, self._due(step, trainer.max_steps)[0])

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Records the validation."""
        if pl_module.recorded:
            step = self._start.step if self.opening else trainer.global_step
            self._record_validation(trainer, pl_module, step)
            self._progress.restart(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Saves the model of the last step, if a callback has ended the run after it."""
        step = trainer.global_step
        if trainer.should_stop and step < trainer.max_steps and step != self._saved:
            self._save_model(trainer, pl_module, self._directory.model(step), step)

    def _due(self, step: int, total: int) -> tuple[bool, bool]:
        """Whether a step is worth a model directory, and a validation, which every model has."""
        settings = self._settings
        saved = any(_every(n, step) for n in (settings.save_every, settings.eval_every))
        model = saved or step in (0, total, *settings.save_steps)
        return model, model or _every(settings.validate_every, step)

    def _save_step(self, trainer: Trainer, module: Any, step: int, model: bool) -> None:
        """Saves the model of a step if asked for; weights that are no numbers end the run."""
        if not weights_are_finite(trainer, module):
            raise self._directory.broken(f"the weights are not finite after step {step}", step)
        module.validation = {}
        if model:
            self._save_model(trainer, module, self._directory.model(step), step)

    def _record_validation(self, trainer: Trainer, module: LanguageModule, step: int) -> None:
        """Records it, keeps the best model, and stops early.

        Raises:
            RunError: early stopping waits for a lower loss, and this one is no number.
        """
        path, figures = self._directory.model(step), module.validation
        lacking = [name for name, value in figures.items() if not math.isfinite(value)]
        module.validation = {n: value for n, value in figures.items() if n not in lacking}
        meta = self._meta(trainer, step)
        model = self._due(step, trainer.max_steps)[0]
        # As they are on record: a checkpoint is older than the validation of its step.
        known = self._directory.comparable(figures["val_tokens"])
        earlier = {at: loss for at, loss in known.items() if at < step}
        losses = [*trainer.strategy.broadcast([*earlier.values()]), figures["val_loss"]]
        without, patience = since_best(losses), self._settings.early_stopping
        if patience and lacking:
            wrong = f"the validation loss is {figures['val_loss']} at step {step}"
            raise self._directory.broken(wrong, max(earlier, default=-1))
        stop = bool(patience) and without >= (patience or 0)
        if model:
            self._write(trainer, path, lambda: add_to_meta(path, module.validation))
        elif stop:  # the run's last model
            self._save_model(trainer, module, path, step)
            self._saved = step
        if model or stop:
            self._log.add_model(path, meta)
        if self._settings.save_best and not without and not lacking:
            self._save_model(trainer, module, self._directory.best, step)
        # Last, as this row says that the step is done with: see `opens`.
        self._log.add(meta | {"seconds": self._progress.seconds})
        self._log.say(
            f"step {step}  valid loss {figures['val_loss']:.3f}  bits/byte "
            f"{figures['val_bits_per_byte']:.3f} over {figures['val_tokens']:,} tokens"
            + (f"  -> {path}" if model or stop else "")
        )
        if lacking:
            self._log.say(f"step {step}  {' and '.join(lacking)} are not finite: not recorded")
        if stop:
            trainer.should_stop = self.stopped_early = True
            self._log.say(
                f"step {step}  stopping early: {without} validations without a lower loss than "
                f"{min(losses):.3f}"
            )

    def _meta(self, trainer: Trainer, step: int) -> dict[str, Any]:
        module: Any = trainer.lightning_module
        tokens = trainer.datamodule.tokens_seen  # pyright: ignore
        return {"step": step, "tokens_seen": tokens, **module.validation}

    def _save_model(self, trainer: Trainer, module: LanguageModule, path: Path, step: int) -> None:
        meta = self._provenance | self._meta(trainer, step)
        self._write(
            trainer, path, lambda: save_model(path, module.model, self._data.tokenizer_json, meta)
        )

    def _write(self, trainer: Trainer, path: Path, write: Callable[[], object]) -> None:
        """Writes in the first process; the others wait."""
        if trainer.is_global_zero:
            with self._directory.writing(path):
                write()
        trainer.strategy.barrier()


def since_best(losses: list[float]) -> int:
    """How many validations there were after the first with the lowest loss."""
    return len(losses) - 1 - losses.index(min(losses)) if losses else 0


def weights_are_finite(trainer: Trainer, module: LightningModule) -> bool:
    """Whether no weight is infinite or not a number, on any device: they all get one answer."""
    finite = bool(torch.nn.utils.get_total_norm(list(module.parameters())).isfinite())
    if trainer.world_size > 1:
        finite = trainer.strategy.reduce_boolean_decision(finite, all=True)
    return finite


def _every(steps: int | None, step: int) -> bool:
    return steps is not None and step % steps == 0
