"""When a run is saved and validated, and how it is stopped.

Whatever a step is worth saving for is on the disk before that step's validation starts.
"""

import signal
import subprocess
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from arch import save_model
from tokenizer import PackedData
from train.checkpoints import IDENTITY
from train.errors import RunError
from train.module import LanguageModule, bits_per_byte, ends_step
from train.progress import Progress, broken
from train.rundir import RunDirectory
from train.settings import RunSettings


class Saving(Callback):
    """Checkpoints, model directories and validations, at their steps.

    Args:
        directory: of the run.
        settings: the steps.
        data: what the run trains on.
        identity: what a checkpoint must agree with to be resumed from.
        progress: where to report.
    """

    def __init__(
        self,
        directory: RunDirectory,
        settings: RunSettings,
        data: PackedData,
        identity: dict[str, Any],
        progress: Progress,
    ) -> None:
        self._directory, self._settings, self._data = directory, settings, data
        self._identity, self._progress = identity, progress
        self._provenance = {
            "name": directory.path.resolve().name,
            "data_sha256": data.hash,
            "data_source": data.meta.get("source"),
            "git_commit": git_commit(),
        }

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves the untrained model."""
        if trainer.global_step == 0:
            with self._progress.paused():
                self._work(trainer, pl_module, model=True, checkpoint=False)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Does what is due after this step."""
        if not ends_step(trainer, batch_idx):
            return
        step, settings = trainer.global_step, self._settings
        last = step == trainer.max_steps
        model = last or step in settings.save_steps or _every(settings.save_every, step)
        checkpoint = last or trainer.should_stop or _every(settings.checkpoint_every, step)
        validate = not trainer.should_stop and _every(settings.validate_every, step)
        if model or checkpoint or validate:
            with self._progress.paused():
                self._work(trainer, pl_module, model, checkpoint, validate)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Says in the checkpoint which model and data it belongs to."""
        checkpoint[IDENTITY] = self._identity

    def _work(
        self,
        trainer: Trainer,
        module: LightningModule,
        model: bool,
        checkpoint: bool,
        validate: bool = False,
    ) -> None:
        assert isinstance(module, LanguageModule)
        step = trainer.global_step
        if not torch.nn.utils.get_total_norm(list(module.parameters())).isfinite():
            raise broken(self._directory, f"the weights are not finite after step {step}")
        meta: dict[str, Any] = {"step": step, "tokens_seen": trainer.datamodule.tokens_seen}  # pyright: ignore
        if model:
            self._save_model(trainer, module, meta)
        if checkpoint:
            self._save_checkpoint(trainer)
        if not (model or validate):
            return
        nats, tokens = validation_loss(trainer, module)
        bits = bits_per_byte(nats, self._data.bytes_per_token("valid"))
        figures = {"val_loss": nats, "val_bits_per_byte": bits, "val_tokens": tokens}
        if model:
            self._save_model(trainer, module, meta | figures)
        self._progress.report(
            {**meta, **figures},
            f"step {step}  valid loss {nats:.3f}  bits/byte {bits:.3f} over {tokens:,} tokens"
            + (f"  -> {self._directory.model(step)}" if model else ""),
        )

    def _save_model(self, trainer: Trainer, module: LanguageModule, meta: dict[str, Any]) -> None:
        if trainer.is_global_zero:
            path = self._directory.model(meta["step"])
            try:
                save_model(path, module.model, self._data.tokenizer_json, self._provenance | meta)
            except OSError as error:
                raise self._unsaved(path, error) from error
        trainer.strategy.barrier()

    def _save_checkpoint(self, trainer: Trainer) -> None:
        path = self._directory.checkpoint(trainer.global_step)
        try:
            trainer.save_checkpoint(path)
        except OSError as error:
            raise self._unsaved(path, error) from error
        if trainer.is_global_zero:
            self._directory.prune(self._settings.keep_checkpoints)

    def _unsaved(self, path: Path, error: OSError) -> RunError:
        good = self._directory.checkpoints()
        last = f"the last checkpoint is {good[-1].name}" if good else "there is no checkpoint yet"
        return RunError(
            f"{path}: cannot be saved ({error.strerror}); {last}; mend that, then go on with "
            "--resume auto"
        )


class StopOnSignal(Callback):
    """SIGTERM and Ctrl-C end the run after the current step, saved; a second Ctrl-C at once.

    Comes before `Saving` among the callbacks.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the signals over, also from Lightning, which puts them back at the end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Stops every device after the same step."""
        if not ends_step(trainer, batch_idx):
            return
        stop = self.received is not None
        if trainer.world_size > 1:
            stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
        trainer.should_stop = trainer.should_stop or stop

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        signal.signal(
            number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler
        )


def validation_loss(trainer: Trainer, module: LanguageModule) -> tuple[float, int]:
    """Mean loss in nats over the validation split, and over how many tokens."""
    sums: list[Any] = []
    module.eval()
    with torch.no_grad():
        for i, batch in enumerate(trainer.datamodule.val_dataloader()):  # pyright: ignore
            on_device = tuple(tensor.to(module.device) for tensor in batch)
            sums.append(trainer.strategy.validation_step(on_device, i))
    module.train()
    total = torch.stack(sums).cpu().double().sum(0) if sums else torch.zeros(2).double()
    if trainer.world_size > 1:
        total = trainer.strategy.reduce(total.to(module.device), reduce_op="sum")
    nats, tokens = total.tolist()  # pyright: ignore
    return nats / tokens, int(tokens)


def git_commit() -> str | None:
    """The commit of this project's checkout, marked where files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        answers = [
            subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return answers[0].strip() + ("-dirty" if answers[1].strip() else "")


def _every(steps: int | None, step: int) -> bool:
    return steps is not None and step % steps == 0
