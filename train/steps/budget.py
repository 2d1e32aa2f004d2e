"""A run whose length is given in minutes: how many steps it takes, by the measured speed."""

import math
import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from train.settings import ScheduleSettings
from train.steps.module import ends_step

EPOCHS = 4
"""From more epochs on a small model learns its data by heart (Muennighoff et al., 2305.16264)."""
EPOCHS_ADVICE = (
    "; after four epochs the validation loss often rises: take more text, or --save_best true and "
    "--early_stopping 3"
)


class TimeBudget(Callback):
    """Ends the schedule after so many minutes of training: steps follow from the measured speed.

    The number of steps is worked out anew at every line of progress, and at each of the last steps,
    so that the decay reaches its floor when the time is over. The warm-up is at most a tenth of it.
    Validations in between count; the last one and evaluations (`train.record.evaluate`) do not.

    Args:
        minutes: of training, over all starts of the run.
        every: steps between the lines of progress.
        windows: of a step, and of an epoch.
        spent: `seconds` and `pace`, seconds a step, of earlier starts, as a checkpoint keeps them.
    """

    def __init__(
        self,
        minutes: float,
        every: int,
        schedule: ScheduleSettings,
        windows: tuple[int, int],
        spent: dict[str, Any] | None,
        say: Callable[[str], None],
    ) -> None:
        self._minutes, self._limit, self._every = minutes, 60 * minutes, every
        self._schedule, self._windows, self._say = schedule, windows, say
        self._spent, self._pace = (spent["seconds"], spent["pace"]) if spent else (0.0, None)
        self._before = self._spent
        self._first, self._steady, self._said = 0, 0.0, False
        self._began: float | None = None

    def total(self, step: int, otherwise: int) -> int:
        """All steps that the time is enough for, after `step` of them, if the speed is known."""
        left = self._limit - self._seconds()
        if left <= 0:
            return step
        if self._pace is None:  # more than a guess would shorten the warm-up
            return step + max(otherwise, 10 * self._schedule.warmup_steps)
        return step + math.floor(left / self._pace)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._first, self._began = trainer.global_step, time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Corrects the number of steps; the first of a start, which compiles, is no measure.

        The first step of a later start counts as long as those before. After the last step nothing
        is left, also where another step would fit: the run is complete.
        """
        step = trainer.global_step
        steps = step - self._first
        if not ends_step(trainer, batch_idx):
            return
        if step >= trainer.max_steps:
            self._spent += max(0.0, self._limit - self._seconds())
            return
        ending = trainer.world_size == 1 and trainer.max_steps - step < self._every
        if steps == 1:
            self._steady = time.perf_counter()
            if self._pace is not None:  # an earlier start has paid for compiling: this took a step
                self._spent += self._before + self._pace - self._seconds()
        elif steps == 2 or (steps > 2 and (ending or step % self._every == 0)):
            self._pace = (time.perf_counter() - self._steady) / (steps - 1)
            # One step more, at least: what is saved and validated is that of the last step.
            total = trainer.strategy.broadcast(max(self.total(step, 0), step + 1))
            pl_module.total_steps = trainer.fit_loop.epoch_loop.max_steps = total
            pl_module.schedule = self._schedule.within(total)
            self._describe(total)

    def _describe(self, total: int) -> None:
        """Says once how many steps there will be."""
        if self._said:
            return
        self._said, (batch, epoch) = True, self._windows
        warmup, given = self._schedule.within(total).warmup_steps, self._schedule.warmup_steps
        self._say(
            f"{self._minutes:g} minutes are about {total:,} steps, "
            f"{total * batch / epoch:.2f} epochs"
            + (f"; warm-up {warmup} steps, not {given}" if warmup < given else "")
            + epochs_advice(total * batch / epoch)
        )

    def spend(self, seconds: float) -> None:
        """Counts so many seconds of work before the first step."""
        self._spent += seconds

    def leave_out(self, seconds: float) -> None:
        """Does not count so many seconds that have passed: training stood still."""
        self._spent -= seconds
        self._steady += seconds

    def state_dict(self) -> dict[str, Any]:
        """The time that is spent, and the speed."""
        return {"seconds": self._seconds(), "pace": self._pace}

    def _seconds(self) -> float:
        passed = 0.0 if self._began is None else time.perf_counter() - self._began
        return self._spent + passed


def epochs_advice(epochs: float) -> str:
    """What to say of so many epochs: the end of a line, empty for a few."""
    return EPOCHS_ADVICE if epochs > EPOCHS else ""
