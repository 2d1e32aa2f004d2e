"""Settings that may change when a run goes on."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


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
