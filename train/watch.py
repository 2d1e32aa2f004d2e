"""Whether a training has gone wrong: a loss or gradient that is no number, or a loss that jumps."""

import math
from typing import Any

from train.rundir import RunDirectory
from train.settings import RunError

LEAST = 10
"""Steps that a jump lasts, at least: single batches may be odd."""
JUMP = 2.0
"""Nats of a jump that is warned of where no other limit is given."""


class Watch:
    """Compares the loss of every stretch of at least `LEAST` steps with the lowest so far.

    A loss half as high as a jump is not calm: its steps are not called good afterwards.

    Args:
        directory: of the run, to name its last good checkpoint.
        limit: nats by which the loss may rise before the run is stopped, 0 for any; when None, a
            rise by `JUMP` is warned of, and is where the next one is counted from.
        after: the first step that is looked at: the loss may do anything in the warm-up.
        start: how many steps are done; their checkpoint is taken to be good.
    """

    def __init__(
        self, directory: RunDirectory, limit: float | None, after: int, start: int = 0
    ) -> None:
        self._directory, self._stops, self._after = directory, limit is not None, after
        self._limit = JUMP if limit is None else limit or math.inf
        self._lowest = math.inf
        self._begin, self._steps, self._calm = 0, 0, start
        self._sum = self._last = 0.0

    def see(self, step: int, steps: int, loss: float, gradient_norm: float) -> str | None:
        """Takes in the mean loss of the last `steps` steps, up to `step`.

        Returns:
            A warning of a jump, where the run is not to stop at one.

        Raises:
            RunError: the training has gone wrong.
        """
        for what, value in (("loss", loss), ("gradient's norm", gradient_norm)):
            if not math.isfinite(value):
                raise broken(self._directory, f"the {what} is {value} at step {step}", step - steps)
        self._last = loss
        if step - steps < self._after:
            return None
        if self._is_calm(loss):
            self._calm = step
        if not self._steps:
            self._begin = step - steps
        self._sum, self._steps = self._sum + loss * steps, self._steps + steps
        if self._steps < LEAST:
            return None
        mean = self._sum / self._steps
        self._sum, self._steps = 0.0, 0
        if mean <= self._lowest + self._limit:
            self._lowest = min(self._lowest, mean)
            return None
        what = (
            f"the loss jumped: {mean:.3f} over steps {self._begin + 1} to {step}, "
            f"{mean - self._lowest:.3f} above its lowest"
        )
        if self._stops:
            what += f" (--stop_on_spike {self._limit:g})"
            raise broken(self._directory, what, self._calm)
        self._lowest = mean
        return f"{what}; {_last_good(self._directory, self._calm)}; going on"

    def rising(self, steps: int, loss: float) -> bool:
        """Whether the loss may be jumping just now, in a run that is to stop at a jump.

        Args:
            steps: since those that `see` was told of.
            loss: their mean, if there are any.
        """
        return self._stops and not self._is_calm(loss if steps else self._last)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"lowest": self._lowest}

    def restore(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._lowest = state["lowest"]

    def _is_calm(self, loss: float) -> bool:
        return loss <= self._lowest + self._limit / 2


def broken(directory: RunDirectory, what: str, good_until: int) -> RunError:
    """The one line for a training that went wrong.

    Args:
        directory: of the run.
        what: happened.
        good_until: the last step before it.
    """
    good = directory.checkpoints_until(good_until)
    advice = f"go on from it with --resume {good[-1]}" if good else "train again"
    return RunError(
        f"{what}; {_last_good(directory, good_until)}; {advice}, a lower --optimizer.lr and "
        "another --run"
    )


def _last_good(directory: RunDirectory, good_until: int) -> str:
    good = directory.checkpoints_until(good_until)
    return f"the last good checkpoint is {good[-1]}" if good else "there is no good checkpoint yet"
