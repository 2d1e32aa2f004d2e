"""The figures of a training, every so many steps: recorded, shown, and judged.

A loss or gradient that is not finite stops the run, and a jump of the loss where that is asked for.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from train.log import Log
from train.module import LanguageModule, bits_per_byte, ends_step
from train.rundir import RunDirectory

LEAST = 10
"""Steps that a jump lasts, at least: single batches may be odd."""


class Progress(Callback):
    """Reports loss, bits/byte, learning rate, tokens/s and the time left every `every` steps.

    Losses are read from the device at those steps only. `utilisation` turns tokens/s into the share
    of the device's peak, where that is known.
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
        self._since = 0.0
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
        bits, lr = bits_per_byte(loss, self._bytes_per_token), module.learning_rate(step - 1)
        row = {
            "step": step,
            "tokens_seen": tokens,
            "loss": loss,
            "bits_per_byte": bits,
            "lr": lr,
            "gradient_norm": None if overflow else gradient_norm,
            "tokens_per_second": speed,
            **({} if share is None else {"mfu": share}),
        }
        remaining = self._remaining(step, total, now)
        self._since, self._tokens = now, tokens
        self.run_log.add(row)
        figures = f"loss {loss:.3f}  bits/byte {bits:.3f}  lr {lr:.2e}  {speed:,.0f} tokens/s"
        figures += "" if share is None else f"  MFU {share:.1%}"
        self.run_log.passing(step, total, figures, remaining)

    def state_dict(self) -> dict[str, Any]:
        """The lowest loss so far."""
        return {"lowest": self.watch.lowest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the lowest loss so far."""
        self.watch.lowest = state_dict["lowest"]

    def rising(self, trainer: Trainer) -> bool:
        """Whether the loss seems to be jumping just now; waits for the device."""
        return self.watch.rising(*self._waiting(trainer))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keeps saving and validation, inside, out of tokens/s and the time left."""
        before = time.perf_counter()
        yield
        spent = time.perf_counter() - before
        self._since += spent
        if self._steady is not None:
            step, start = self._steady
            self._steady = step, start + spent

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
