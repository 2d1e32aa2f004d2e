"""The line of progress: one that updates itself on a terminal, one every so often on a pipe."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from train.errors import RunError
from train.module import LanguageModule, bits_per_byte, ends_step
from train.rundir import RunDirectory
from train.tracking import Records


class Progress(Callback):
    """Reports loss, bits/byte, learning rate, tokens/s and the time left every `every` steps.

    The device is waited for on those steps only.

    Args:
        directory: of the run, to name its last checkpoint when the loss is no number.
        records: where the figures go; only the process that records also shows them.
        every: steps between reports.
        bytes_per_token: of the training data.
    """

    def __init__(
        self, directory: RunDirectory, records: Records, every: int, bytes_per_token: float
    ) -> None:
        self._directory, self._records, self._every = directory, records, every
        self._bytes_per_token = bytes_per_token
        self._losses: list[Tensor] = []
        self._first_step = self._tokens = 0
        self._since = self._start = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._first_step = trainer.global_step
        self._tokens = _tokens_seen(trainer)
        self._since = self._start = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Reports when it is time to."""
        self._losses.append(outputs["loss"].detach())
        if not ends_step(trainer, batch_idx):
            return
        step = trainer.global_step
        if step % self._every and step != trainer.max_steps and step - self._first_step > 1:
            return
        mean = trainer.strategy.reduce(torch.stack(self._losses).mean(), reduce_op="mean")
        # Lightning hands out each part's loss already divided by the number of parts.
        loss = float(mean) * trainer.accumulate_grad_batches
        self._losses.clear()
        if not math.isfinite(loss):
            raise broken(self._directory, f"the loss is {loss} at step {step}")
        assert isinstance(pl_module, LanguageModule)
        now, tokens = time.perf_counter(), _tokens_seen(trainer)
        row = {
            "step": step,
            "tokens_seen": tokens,
            "loss": loss,
            "bits_per_byte": bits_per_byte(loss, self._bytes_per_token),
            "lr": pl_module.learning_rate(step - 1),
            "gradient_norm": float(pl_module.gradient_norm),
            "tokens_per_second": (tokens - self._tokens) / (now - self._since),
        }
        left = (trainer.max_steps - step) * (now - self._start) / (step - self._first_step)
        self._since, self._tokens = now, tokens
        self._records.add(row)
        self._show(
            f"step {step:>{len(str(trainer.max_steps))}}/{trainer.max_steps}  "
            f"loss {loss:.3f}  bits/byte {row['bits_per_byte']:.3f}  lr {row['lr']:.2e}  "
            f"{row['tokens_per_second']:,.0f} tokens/s  {_duration(left)} left",
            passing=True,
        )

    def report(self, row: dict[str, Any], line: str) -> None:
        """Records other figures, and shows them on a line that stays."""
        self._records.add(row)
        self.say(line)

    def say(self, line: str) -> None:
        """Shows a line that stays."""
        self._show(line, passing=False)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keeps what is done inside (saving, validation) out of tokens/s and the time left."""
        before = time.perf_counter()
        yield
        spent = time.perf_counter() - before
        self._since += spent
        self._start += spent

    def _show(self, line: str, passing: bool) -> None:
        if not self._records.started:
            return
        if sys.stdout.isatty():
            sys.stdout.write(f"\r\x1b[K{line}" + ("" if passing else "\n"))
        else:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()


def broken(directory: RunDirectory, what: str) -> RunError:
    """The one line for a training that diverged."""
    good = directory.checkpoints()
    last = f"the last good checkpoint is {good[-1]}" if good else "there is no checkpoint yet"
    return RunError(f"{what}; {last}; lower --optimizer.lr and train again in another --run")


def _tokens_seen(trainer: Trainer) -> int:
    return trainer.datamodule.tokens_seen  # pyright: ignore[reportAttributeAccessIssue]


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
