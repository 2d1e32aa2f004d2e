"""The figures of a training, every so many steps: recorded, shown, and judged.

A loss or gradient that is not finite stops the run, and a jump of the loss where that is asked for.
Lightning's `ThroughputMonitor` waits for the device at every step; here nothing waits in between.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import Tensor

from train.log import Log
from train.module import LanguageModule, bits_per_byte, ends_step
from train.rundir import RunDirectory
from train.settings import ScheduleSettings

SHOWN = ("loss", "bits_per_byte", "tokens_per_second")
"""Figures beside the bar."""
LEAST = 10
"""Steps that a jump lasts, at least: single batches may be odd."""


class Progress(Callback):
    """Logs loss, bits/byte, learning rate and tokens/s every `every` steps.

    Losses are read from the device at those steps only. `utilisation` turns tokens/s into the share
    of the device's peak, where that is known. Where no bar shows the figures, a line does.
    """

    def __init__(
        self,
        log: Log,
        watch: "Watch",
        every: int,
        bytes_per_token: float,
        utilisation: Callable[[float], float | None],
    ) -> None:
        self.run_log, self.watch, self._every = log, watch, every
        self._bytes_per_token, self._utilisation = bytes_per_token, utilisation
        self._losses: list[Tensor] = []
        self._first_step = self._last_step = self._tokens = 0
        self._since = self._paused = 0.0
        self._steady: tuple[int, float] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts measuring time and tokens."""
        self._first_step = self._last_step = trainer.global_step
        self._tokens, self._since = _tokens_seen(trainer), time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Reports at every `every`-th optimiser step, the first and the last."""
        self._losses.append(outputs["loss"].detach())
        step, total = trainer.global_step, trainer.max_steps
        regular = step % self._every == 0 or step == total or step - self._first_step <= 1
        if ends_step(trainer, batch_idx) and regular:
            self._report(trainer, pl_module, step, total)

    def _report(self, trainer: Trainer, module: LanguageModule, step: int, total: int) -> None:
        steps, loss = self._waiting(trainer)
        self._losses.clear()
        self._last_step = step
        # In 16-mixed an overflow is nothing new: the step is left out and the scale lowered.
        overflow = trainer.precision == "16-mixed" and not module.gradient_norm.isfinite()
        gradient_norm = 0.0 if overflow else float(module.gradient_norm)
        self.watch.see(step, steps, loss, gradient_norm)
        now, tokens = time.perf_counter(), _tokens_seen(trainer)
        speed = (tokens - self._tokens) / (now - self._since)
        share = self._utilisation(speed)
        row = {
            "step": step,
            "tokens_seen": tokens,
            "loss": loss,
            "bits_per_byte": bits_per_byte(loss, self._bytes_per_token),
            "lr": module.learning_rate(step - 1),
            "gradient_norm": None if overflow else gradient_norm,
            "tokens_per_second": speed,
            **({} if share is None else {"mfu": share}),
        }
        remaining = self._remaining(step, total, now)
        self._since, self._tokens = now, tokens
        self.run_log.add(row)
        for name, value in row.items():
            if name != "step" and value is not None:  # the log has given it to the loggers
                module.log(name, value, logger=False, prog_bar=name in SHOWN)
        if not trainer.progress_bar_callback:
            self.run_log.say(
                f"step {step:>{len(str(total))}}/{total}  loss {loss:.3f}  "
                f"bits/byte {row['bits_per_byte']:.3f}  lr {row['lr']:.2e}  {speed:,.0f} tokens/s"
                + ("" if share is None else f"  MFU {share:.1%}")
                + f"  {remaining}"
            )

    def state_dict(self) -> dict[str, Any]:
        """The lowest loss so far."""
        return {"lowest": self.watch.lowest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the lowest loss so far."""
        self.watch.lowest = state_dict["lowest"]

    def rising(self, trainer: Trainer) -> bool:
        """Whether the loss seems to be jumping just now; waits for the device."""
        return self.watch.rising(*self._waiting(trainer))

    def pause(self) -> None:
        """Keeps saving and validation, until `resume`, out of tokens/s and the time left."""
        self._paused = time.perf_counter()

    def resume(self) -> None:
        """See `pause`."""
        spent = time.perf_counter() - self._paused
        self._since += spent
        if self._steady is not None:
            step, start = self._steady
            self._steady = step, start + spent

    @contextmanager
    def paused(self) -> Iterator[None]:
        """See `pause`."""
        self.pause()
        yield
        self.resume()

    def _remaining(self, step: int, total: int, now: float) -> str:
        """The time left, by the mean of the steps after the first, which compiles the model."""
        if self._steady is None:
            self._steady = step, now
            return "time left not known yet"
        first, start = self._steady
        return f"{clock((total - step) * (now - start) / (step - first))} left"

    def _waiting(self, trainer: Trainer) -> tuple[int, float]:
        """How many steps are not reported yet, and their mean loss over all parts and devices."""
        if not self._losses:
            return 0, 0.0
        mean = trainer.strategy.reduce(torch.stack(self._losses).mean(), reduce_op="mean")
        # Lightning hands out each part's loss already divided by the number of parts.
        loss = float(mean) * trainer.accumulate_grad_batches
        return trainer.global_step - self._last_step, loss


class StepBar(TQDMProgressBar):
    """Lightning's bar of a run whose steps are one endless epoch: it counts to the last of them."""

    @property
    def total_train_batches(self) -> int:
        """Parts of all steps."""
        return self.trainer.max_steps * self.trainer.accumulate_grad_batches

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """The figures beside the bar; the number of steps may have changed."""
        self.train_progress_bar.total = self.total_train_batches
        return super().get_metrics(trainer, pl_module)


def has_terminal() -> bool:
    """Whether a bar can be shown: on a terminal, and not in a file or a pipe."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class TimeBudget(Callback):
    """Ends the schedule after so many minutes of training: steps follow from the measured speed.

    The number of steps is worked out anew at every line of progress, so that the decay reaches its
    floor when the time is over. Validations in between count, the last one does not.

    Args:
        minutes: of training, over all starts of the run.
        every: steps between the lines of progress.
        schedule: whose warm-up and decay need some steps.
        spent: `seconds` and `pace`, seconds a step, of earlier starts, as a checkpoint keeps them.
    """

    def __init__(
        self, minutes: float, every: int, schedule: ScheduleSettings, spent: dict[str, Any] | None
    ) -> None:
        self._limit, self._every = 60 * minutes, every
        self._least = schedule.warmup_steps + (schedule.decay_steps or 1)
        self._spent, self._pace = (spent["seconds"], spent["pace"]) if spent else (0.0, None)
        self._first, self._steady = 0, 0.0
        self._began: float | None = None

    def total(self, step: int, otherwise: int) -> int:
        """All steps that the time is enough for, after `step` of them, if the speed is known."""
        if self._pace is None:
            return otherwise
        left = math.floor((self._limit - self._seconds()) / self._pace)
        return max(self._least, step + left)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._first, self._began = trainer.global_step, time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Corrects the number of steps; the first of a start, which compiles, is no measure."""
        step = trainer.global_step
        steps = step - self._first
        if not ends_step(trainer, batch_idx) or step >= trainer.max_steps:
            return
        if steps == 1:
            self._steady = time.perf_counter()
        elif steps == 2 or (steps > 2 and step % self._every == 0):
            self._pace = (time.perf_counter() - self._steady) / (steps - 1)
            # Never at once: the decay ends within some steps.
            total = max(self.total(step, 0), step + max(1, self._every // 10))
            total = trainer.strategy.broadcast(total)
            pl_module.total_steps = trainer.fit_loop.epoch_loop.max_steps = total

    def state_dict(self) -> dict[str, Any]:
        """The time that is spent, and the speed."""
        return {"seconds": self._seconds(), "pace": self._pace}

    def _seconds(self) -> float:
        passed = 0.0 if self._began is None else time.perf_counter() - self._began
        return self._spent + passed


class Watch:
    """Compares the loss of every stretch of at least `LEAST` steps with the lowest so far.

    A rise above the limit, in nats, stops the run; without a limit none does. Steps before `after`,
    the warm-up, are not judged. Steps whose loss rises by more than half the limit do not count as
    good ones. `lowest` is the state that checkpoints keep.
    """

    def __init__(
        self, directory: RunDirectory, limit: float | None, after: int, start: int = 0
    ) -> None:
        self._directory, self._after = directory, after
        self._limit = math.inf if limit is None else limit
        self.lowest = math.inf
        self._begin, self._steps, self._calm = 0, 0, start
        self._sum = self._last = 0.0

    def see(self, step: int, steps: int, loss: float, gradient_norm: float) -> None:
        """Takes in the mean loss of the last `steps` steps, up to `step`.

        Raises:
            RunError: the training has gone wrong.
        """
        for what, value in (("loss", loss), ("gradient's norm", gradient_norm)):
            if not math.isfinite(value):
                raise self._directory.broken(f"the {what} is {value} at step {step}", step - steps)
        self._last = loss
        if step - steps < self._after:
            return
        if self._is_calm(loss):
            self._calm = step
        if not self._steps:
            self._begin = step - steps
        self._sum, self._steps = self._sum + loss * steps, self._steps + steps
        if self._steps < LEAST:
            return
        mean = self._sum / self._steps
        self._sum, self._steps = 0.0, 0
        if mean > self.lowest + self._limit:
            raise self._directory.broken(
                f"the loss jumped: {mean:.3f} over steps {self._begin + 1} to {step}, "
                f"{mean - self.lowest:.3f} above its lowest (--stop_on_spike {self._limit:g})",
                self._calm,
            )
        self.lowest = min(self.lowest, mean)

    def rising(self, steps: int, loss: float) -> bool:
        """Whether the loss may be jumping just now, in a run that is to stop at a jump.

        `loss` is the mean of the `steps` that `see` has not taken in yet.
        """
        return self._limit < math.inf and not self._is_calm(loss if steps else self._last)

    def _is_calm(self, loss: float) -> bool:
        return loss <= self.lowest + self._limit / 2


def clock(seconds: float) -> str:
    """Seconds as `1:02:03` or `2:03`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _tokens_seen(trainer: Trainer) -> int:
    return trainer.datamodule.tokens_seen  # pyright: ignore[reportAttributeAccessIssue]
