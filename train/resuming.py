"""How a run is stopped from outside, and what may change when it goes on."""

import signal
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from train.module import ends_step


class StopOnSignal(Callback):
    """SIGTERM, SIGUSR1 and Ctrl-C end the run after the current step, saved; a second one at once,
    whichever of them it is.

    Schedulers announce the end of a job's time by SIGUSR1, or whatever they are told to.

    Several devices stop after the same step: the first at which they agree, every `every` steps.
    Asking at every step would have each of them wait for the others, and for its own work.

    Comes before `Saving` among the callbacks.

    Args:
        every: steps between the lines of progress, at which a run waits for its devices anyway.
    """

    def __init__(self, every: int) -> None:
        self.received: int | None = None
        self._every = every

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the signals over, also from Lightning, which puts them back at the end."""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._note)
        # Lightning's own question, before every batch, about a signal that is not its any more.
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None

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
            if trainer.global_step % self._every:
                return
            stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
        trainer.should_stop = trainer.should_stop or stop

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


class OwnSettings(Callback):
    """The optimiser's settings are those that the run is given, not those in the checkpoint.

    Torch restores them with the optimiser's state: a lower learning rate would not count.
    """

    def __init__(self) -> None:
        self._groups: list[dict[str, Any]] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remembers them before the checkpoint's are read."""
        self._groups = [
            {name: value for name, value in group.items() if name != "params"}
            for optimizer in trainer.optimizers
            for group in optimizer.param_groups
        ]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Puts them back; the rate is that of the step."""
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        for group, own in zip(groups, self._groups, strict=True):
            group.update(own)
        for config in trainer.lr_scheduler_configs:
            schedule: Any = config.scheduler
            schedule.base_lrs = [group["initial_lr"] for group in schedule.optimizer.param_groups]
            rates = [f(schedule.last_epoch) for f in schedule.lr_lambdas]
            for group, share in zip(schedule.optimizer.param_groups, rates, strict=True):
                group["lr"] = group["initial_lr"] * share
