"""The data module: batches of windows, and the one number that resumes them."""

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer

from tokenizer import PackedData
from train.errors import RunError
from train.loader import TrainBatches
from train.settings import BatchSettings
from train.windows import IGNORE, Batch, Windows


class PackedDataModule(LightningDataModule):
    """Feeds a model from memory-mapped tokens.

    The order of samples depends on the seed alone, not on the number of devices, of accumulated
    parts or of loader workers, so `samples_seen` is all there is to resume. It counts what was
    trained on, not what was cut ahead.

    Args:
        data: the packed data.
        context: the model's context.
        batch: how many windows make a step.
        seed: of the order.
        validate_tokens: how much of the validation split to use; all of it when not given.
        workers: processes that cut batches ahead; when not given, 2 beside a GPU, 0 beside a CPU.

    Raises:
        RunError: the training split is smaller than one batch, or the context above its rows.
    """

    def __init__(
        self,
        data: PackedData,
        context: int,
        batch: BatchSettings,
        seed: int,
        validate_tokens: int | None,
        workers: int | None = None,
    ) -> None:
        super().__init__()
        self.train_windows = Windows(data, "train", context, seed)
        self.valid_windows = Windows(data, "valid", context)
        self.batch, self.context, self.workers = batch, context, workers
        self.validate_windows = None if validate_tokens is None else -(-validate_tokens // context)
        self.samples_seen = 0
        self.tokens_seen = 0
        self._step_end: int | None = None
        if self.train_windows.count < batch.size:
            raise RunError(
                f"--data {data.path}: its training split makes {self.train_windows.count} windows "
                f"of {context} tokens, fewer than one batch of {batch.size}; pack more stories, or "
                "lower --batch.size or --model.context"
            )

    def train_dataloader(self) -> "TrainBatches":
        """An endless stream of this device's share of the batches."""
        assert self.trainer is not None
        devices, rank = self.trainer.world_size, self.trainer.global_rank
        micro, _ = self.batch.split(devices)
        _count_whole_steps(self.trainer)
        gpu = self.trainer.strategy.root_device.type == "cuda"
        workers = (2 if gpu else 0) if self.workers is None else self.workers
        return TrainBatches(
            self.train_windows, self.samples_seen, micro, rank, devices, workers, pin=gpu
        )

    def val_dataloader(self) -> Iterator[Batch]:
        """This device's share of the validation split."""
        assert self.trainer is not None
        devices, rank = self.trainer.world_size, self.trainer.global_rank
        micro, _ = self.batch.split(devices)
        group: list[Batch] = []
        for batch in self.valid_windows.in_order(micro, self.validate_windows):
            group.append(batch)
            if len(group) == devices:
                yield group[rank]
                group = []
        if group:  # as many batches for every device, or one would wait for the others for ever
            inputs, targets = group[min(rank, len(group) - 1)]
            yield inputs, targets if rank < len(group) else torch.full_like(targets, IGNORE)

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Counts what is about to be trained on, before it leaves the host."""
        assert self.trainer is not None
        size = len(batch[0]) * self.trainer.world_size
        if self._step_end is None or self.samples_seen >= self._step_end:
            self._step_end = self.samples_seen + self.batch.size
            targets = self.train_windows.targets(self.samples_seen, self.batch.size)
            self.tokens_seen += targets
            if len(batch[0]) < self.batch.size:
                module: Any = self.trainer.lightning_module
                module.targets_per_part = targets * len(batch[0]) / self.batch.size
        self.samples_seen += size
        return batch

    def state_dict(self) -> dict[str, int]:
        """Where the order stands, and for the record how many targets that was."""
        return {"samples_seen": self.samples_seen, "tokens_seen": self.tokens_seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where `state_dict` stood."""
        self.samples_seen = state_dict["samples_seen"]
        self.tokens_seen = state_dict["tokens_seen"]


def _count_whole_steps(trainer: Trainer) -> None:
    """Lets a run resume with its steps in another number of parts.

    Lightning takes a step when the number of parts so far divides by those of a step. A checkpoint
    stands between two steps: counted in parts of today's size, that is where it stands again.
    """
    progress = trainer.fit_loop.epoch_loop.batch_progress
    # The part after which the checkpoint was written is counted as completed a little later.
    pending = progress.total.processed - progress.total.completed  # pyright: ignore[reportAttributeAccessIssue]
    progress.current.completed = trainer.global_step * trainer.accumulate_grad_batches - pending
