"""When a run is saved and validated.

Whatever a step is worth saving for is on the disk before that step's validation starts; a
validation that a run did not live to see is made up for when it goes on.
"""

import math
import subprocess
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from arch import save_model
from tokenizer import PackedData
from train.checkpoints import IDENTITY
from train.module import LanguageModule, bits_per_byte, ends_step
from train.progress import Progress
from train.records import Records
from train.rundir import RunDirectory
from train.samples import Samples
from train.settings import RunSettings
from train.watch import broken

ELSEWHERE = {"model", "run", "data", "resume"}
"""Settings that a model directory does not record: its config.json has the model's own and
`data_sha256` stands for the data; the others are about this machine."""


class Saving(Callback):
    """Checkpoints, model directories and validations, at their steps.

    Args:
        directory: of the run.
        settings: the steps.
        recipe: all settings of the run, which every model directory records.
        data: what the run trains on.
        identity: what a checkpoint must agree with to be resumed from.
        progress: where to report.
        records: told of every model directory and every sample.
        samples: drawn at every validation.
        done: the steps done before.
    """

    def __init__(
        self,
        directory: RunDirectory,
        settings: RunSettings,
        recipe: dict[str, Any],
        data: PackedData,
        identity: dict[str, Any],
        progress: Progress,
        records: Records,
        samples: Samples,
        done: int,
    ) -> None:
        self._directory, self._settings, self._data = directory, settings, data
        self._identity, self._progress, self._records = identity, progress, records
        self._samples, self._done = samples, done
        self._provenance = {
            "name": directory.path.resolve().name,
            "recipe": {name: recipe[name] for name in recipe if name not in ELSEWHERE},
            "data_sha256": data.hash,
            "data_source": data.meta.get("source"),
            "valid_fraction": data.meta.get("valid_fraction"),
            "git_commit": git_commit(),
        }

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Makes up for the last step's validation: Lightning will not train a complete run."""
        if self._done == trainer.max_steps and not trainer.strategy.restore_checkpoint_after_setup:
            self._make_up(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves the untrained model, or makes up for a validation."""
        if self._done:
            self._make_up(trainer, pl_module)
        else:
            with self._progress.paused():
                self._work(trainer, pl_module, 0, model=True, checkpoint=False, validate=True)

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
        step, must = trainer.global_step, trainer.should_stop
        last = step == trainer.max_steps
        model, validate = self.due(step, last)
        checkpoint = last or must or _every(self._settings.checkpoint_every, step)
        validate = validate and (last or not must)  # who stops a run may not wait: see _make_up
        if model or checkpoint or validate:
            with self._progress.paused():
                if checkpoint and not (last or must) and self._progress.rising(trainer):
                    self._progress.say(f"step {step}  the loss is jumping: no checkpoint is taken")
                    checkpoint = False
                self._work(trainer, pl_module, step, model, checkpoint, validate)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Says in the checkpoint which model and data it belongs to."""
        checkpoint[IDENTITY] = self._identity

    def due(self, step: int, last: bool) -> tuple[bool, bool]:
        """Whether a model directory and a validation are due after a step; the one has the other.

        Args:
            step: of the optimiser.
            last: whether the run ends with it.
        """
        settings = self._settings
        model = last or step in settings.save_steps or _every(settings.save_every, step)
        return model, model or _every(settings.validate_every, step)

    def _make_up(self, trainer: Trainer, module: LightningModule) -> None:
        model, validate = self.due(self._done, self._done == trainer.max_steps)
        missing = validate and not self._directory.validated(self._done)
        if trainer.strategy.broadcast(missing):
            with self._progress.paused():
                self._work(trainer, module, self._done, model, checkpoint=False, validate=True)

    def _work(
        self,
        trainer: Trainer,
        module: LightningModule,
        step: int,
        model: bool,
        checkpoint: bool,
        validate: bool,
    ) -> None:
        assert isinstance(module, LanguageModule)
        if not weights_are_finite(trainer, module):
            raise broken(self._directory, f"the weights are not finite after step {step}", step)
        meta: dict[str, Any] = {"step": step, "tokens_seen": trainer.datamodule.tokens_seen}  # pyright: ignore
        if model:
            self._save_model(trainer, module, meta)
        if checkpoint:
            self._save_checkpoint(trainer, step)
        if not validate:
            return
        nats, tokens = validation_loss(trainer, module)
        bits = bits_per_byte(nats, self._data.bytes_per_token("valid"))
        figures = {"val_loss": nats, "val_bits_per_byte": bits, "val_tokens": tokens}
        if trainer.is_global_zero:
            samples = self._samples.draw(module.model)
            self._records.add_samples(step, samples)
            for sample in samples:
                self._progress.say(f"step {step}  {_one_line(sample['prompt'] + sample['text'])}")
        if model:
            self._save_model(trainer, module, meta | figures)
            self._records.add_model(self._directory.model(step), meta | figures)
        earlier = self._validations(trainer, step - 1)
        if self._settings.save_best and nats < min(earlier, default=math.inf):
            self._save_model(trainer, module, meta | figures, self._directory.best)
        # Last, as this row says that the step is done with: see `RunDirectory.validated`.
        self._progress.report(
            {**meta, **figures},
            f"step {step}  valid loss {nats:.3f}  bits/byte {bits:.3f} over {tokens:,} tokens"
            + (f"  -> {self._directory.model(step)}" if model else ""),
        )
        patience = self._settings.early_stopping
        if step < trainer.max_steps and stalled([*earlier, nats], patience):
            self._progress.say(
                f"step {step}  stopping early: {patience} validations without a lower loss than "
                f"{min(earlier):.3f}"
            )
            self._save_model(trainer, module, meta | figures)
            self._save_checkpoint(trainer, step)
            trainer.should_stop = True

    def _validations(self, trainer: Trainer, until: int) -> list[float]:
        """The losses so far, on every device."""
        return trainer.strategy.broadcast(self._directory.validations(until))

    def _save_model(
        self,
        trainer: Trainer,
        module: LanguageModule,
        meta: dict[str, Any],
        path: Path | None = None,
    ) -> None:
        if trainer.is_global_zero:
            path = path or self._directory.model(meta["step"])
            try:
                save_model(path, module.model, self._data.tokenizer_json, self._provenance | meta)
            except OSError as error:
                raise self._directory.unsaved(path, error) from error
        trainer.strategy.barrier()

    def _save_checkpoint(self, trainer: Trainer, step: int) -> None:
        path = self._directory.checkpoint(step)
        if trainer.is_global_zero:
            self._records.flush()
        try:
            trainer.save_checkpoint(path)
        except OSError as error:
            raise self._directory.unsaved(path, error) from error
        if trainer.is_global_zero:
            self._directory.prune(self._settings.keep_checkpoints)


def stalled(losses: list[float], patience: int | None) -> bool:
    """Whether none of the last `patience` validations has a lower loss than all before them."""
    if patience is None or len(losses) <= patience:
        return False
    return min(losses[-patience:]) >= min(losses[:-patience])


def validation_loss(trainer: Trainer, module: LanguageModule) -> tuple[float, int]:
    """Mean loss in nats over the validation split, and over how many tokens."""
    sums: list[Any] = []
    module.eval()
    with torch.no_grad():
        for i, batch in enumerate(trainer.datamodule.val_dataloader()):  # pyright: ignore
            inputs, targets, _ = batch
            on_device = inputs.to(module.device), targets.to(module.device), 1.0
            sums.append(trainer.strategy.validation_step(on_device, i))
    module.train()
    total = torch.stack(sums).cpu().double().sum(0) if sums else torch.zeros(2).double()
    if trainer.world_size > 1:
        total = trainer.strategy.reduce(total.to(module.device), reduce_op="sum")
    nats, tokens = total.tolist()  # pyright: ignore
    return nats / tokens, int(tokens)


def weights_are_finite(trainer: Trainer, module: LightningModule) -> bool:
    """Whether no weight is infinite or not a number, on any device: they all get one answer."""
    finite = bool(torch.nn.utils.get_total_norm(list(module.parameters())).isfinite())
    if trainer.world_size > 1:
        finite = trainer.strategy.reduce_boolean_decision(finite, all=True)
    return finite


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


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


def _every(steps: int | None, step: int) -> bool:
    return steps is not None and step % steps == 0
