"""How a run is stopped from outside."""

import signal
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from train.module import ends_step


class StopOnSignal(Callback):
    """SIGTERM, SIGUSR1 and Ctrl-C end the run after the current step, saved; a second one at once,
    whichever of them it is.

    Schedulers announce the end of a job's time by SIGUSR1, or whatever they are told to.

    Comes before `Saving` among the callbacks.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the signals over, also from Lightning, which puts them back at the end."""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
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
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
