"""The figures of a training, every so many steps: recorded, shown, and judged.

A loss or gradient that is not finite stops the run. Lightning's `ThroughputMonitor` waits for the
device at every step; here nothing waits in between.
"""

import math
import os
import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import Tensor
from tqdm import tqdm

from train.record.log import Log
from train.rundir.rundir import RunDirectory
from train.steps.module import LanguageModule, bits_per_byte, ends_step
from train.steps.speed import peak_flops

LOSSES = "losses_since_row"
"""Key of a checkpoint under which it has the losses that no row has yet."""
SHOWN = ("loss", "bits_per_byte", "tokens_per_second")
"""Figures beside the bar."""
clock = tqdm.format_interval
"""Seconds as `1:02:03` or `02:03`."""


class Progress(Callback):
    """Logs loss, bits/byte, learning rate, tokens/s and seconds every `every` steps.

    `seconds` are of training over all starts of a run, without what is saved and validated.

    Losses are read from the device at those steps only. Where no bar shows the figures, a line
    does, with a `~` before the number of all steps if that is `guessed`.

    Raises:
        RunError: the loss or the gradient is no number.
    """

    def __init__(
        self,
        log: Log,
        directory: RunDirectory,
        every: int,
        bytes_per_token: float,
        guessed: bool = False,
    ) -> None:
        self._guessed = guessed
        self._log, self._directory, self._every = log, directory, every
        self._bytes_per_token = bytes_per_token
        self._losses: list[Tensor] = []
        self._last_step = self._tokens = self._positions = self._counted = 0
        self._since = self.seconds = 0.0
        self._steady: tuple[int, float] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts measuring time and tokens."""
        self._last_step = trainer.global_step
        self.restart(trainer)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keeps the losses since the last row: the next one is of them too when a run resumes."""
        losses = torch.stack(self._losses) if self._losses else torch.zeros(0)
        mean = trainer.strategy.reduce(losses.to(pl_module.device), reduce_op="mean")
        checkpoint[LOSSES] = {
            "losses": mean.cpu(), "parts": trainer.accumulate_grad_batches,
            "seconds": self.seconds, "tokens": self._counted
        }  # fmt: skip

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Takes the losses up again, in today's number of parts of a step."""
        saved, parts = checkpoint.get(LOSSES), trainer.accumulate_grad_batches
        if saved is None:
            return
        self.seconds, self._counted = saved.get("seconds", 0.0), saved.get("tokens", 0)
        losses = saved["losses"].to(pl_module.device)
        if saved["parts"] != parts:  # each part's is divided by their number
            losses = (losses.view(-1, saved["parts"]).sum(1) / parts).repeat_interleave(parts)
        self._losses = [*losses]

    def count(self, trainer: Trainer) -> None:
        """Counts the seconds of training until now, validation and saving left out."""
        tokens, passed = _tokens_seen(trainer), time.perf_counter() - self._since
        if tokens > self._tokens:
            self.seconds += (tokens - self._counted) * passed / (tokens - self._tokens)
            self._counted = tokens

    def restart(self, trainer: Trainer) -> None:
        """Measures tokens/s from now on: saving and validation have no part in it."""
        self._tokens, self._positions = _tokens_seen(trainer), _positions_seen(trainer)
        self._since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Reports at every `every`-th optimiser step, the first of all and the last."""
        self._losses.append(outputs["loss"].detach())
        step, total = trainer.global_step, trainer.max_steps
        regular = step % self._every == 0 or step in (1, total)
        if ends_step(trainer, batch_idx) and regular:
            self._report(trainer, pl_module, step, total)
            self.restart(trainer)

    def _report(self, trainer: Trainer, module: LanguageModule, step: int, total: int) -> None:
        mean = trainer.strategy.reduce(torch.stack(self._losses).mean(), reduce_op="mean")
        # Lightning hands out each part's loss already divided by the number of parts.
        loss = float(mean) * trainer.accumulate_grad_batches
        self._losses.clear()
        # In 16-mixed an overflow is nothing new: the step is left out and the scale lowered.
        overflow = trainer.precision == "16-mixed" and not module.gradient_norm.isfinite()
        norm = None if overflow else float(module.gradient_norm)
        for what, value in (("loss", loss), ("gradient's norm", norm or 0.0)):
            if not math.isfinite(value):
                wrong = f"the {what} is {value} at step {step}"
                raise self._directory.broken(wrong, self._last_step)
        now, tokens = time.perf_counter(), _tokens_seen(trainer)
        speed = (tokens - self._tokens) / (now - self._since)
        self.count(trainer)
        peak = peak_flops(trainer.strategy.root_device, str(trainer.precision))
        work = module.flops_per_token * (_positions_seen(trainer) - self._positions)
        row = {
            "step": step,
            "tokens_seen": tokens,
            "loss": loss,
            "bits_per_byte": bits_per_byte(loss, self._bytes_per_token),
            "lr": module.learning_rate(step - 1),
            "gradient_norm": norm,
            "tokens_per_second": speed,
            "seconds": self.seconds,
            **({"mfu": work / (now - self._since) / trainer.world_size / peak} if peak else {}),
        }
        self._last_step = step
        self._log.add(row)
        for name, value in row.items():
            if name != "step" and value is not None:  # the log has given it to the loggers
                module.log(name, value, logger=False, prog_bar=name in SHOWN)
        remaining = self._remaining(step, total, now)
        if not trainer.progress_bar_callback:
            about = "~" if self._guessed else ""  # --minutes: it follows from the speed
            self._log.say(
                f"step {step:>{len(str(total))}}/{about}{total}  loss {loss:.3f}  "
                f"bits/byte {row['bits_per_byte']:.3f}  lr {row['lr']:.2e}  {speed:,.0f} tokens/s"
                + (f"  MFU {row['mfu']:.1%}" if peak else "")
                + f"  {remaining}"
            )

    def _remaining(self, step: int, total: int, now: float) -> str:
        """The time left, by the mean of the steps after the first, which compiles the model."""
        if self._steady is None:
            self._steady = step, now
            return "time left not known yet"
        first, start = self._steady
        return f"{clock((total - step) * (now - start) / (step - first))} left"


class StepBar(TQDMProgressBar):
    """Lightning's bar of a run whose steps are one endless epoch: it counts to the last of them."""

    @property
    def total_train_batches(self) -> int:
        """How many parts all steps have."""
        return self.trainer.max_steps * self.trainer.accumulate_grad_batches

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """The figures beside the bar; the number of steps may have changed."""
        self.train_progress_bar.total = self.total_train_batches
        return super().get_metrics(trainer, pl_module)


def has_terminal() -> bool:
    """Whether a bar can be shown: on a terminal, and not in a file or a pipe."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _positions_seen(trainer: Trainer) -> int:
    """How many positions were computed, pads and others without a target as well."""
    data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
    return data.samples_seen * (data.train_windows.width - 1)


def _tokens_seen(trainer: Trainer) -> int:
    return trainer.datamodule.tokens_seen  # pyright: ignore[reportAttributeAccessIssue]
