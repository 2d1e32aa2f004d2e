"""The data module: batches of windows, and the one number that resumes them."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer

from tokenizer import PackedData
from train.settings import BatchSettings, RunError
from train.windows import IGNORE, Batch, Pair, Windows


class PackedDataModule(LightningDataModule):
    """Feeds a model from memory-mapped tokens.

    The order of samples depends on the seed alone, not on the number of devices or of accumulated
    parts, so `samples_seen` is all there is to resume. It counts what was
    trained on, not what was cut ahead.

    Args:
        data: the packed data.
        context: the model's context.
        batch: how many windows make a step.
        seed: of the order.
        validate_tokens: how much of the validation split to use; all of it when not given.

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
    ) -> None:
        super().__init__()
        self.train_windows = Windows(data, "train", context, seed)
        self.valid_windows = Windows(data, "valid", context)
        self.batch, self.context = batch, context
        self.validate_windows = None if validate_tokens is None else -(-validate_tokens // context)
        self.samples_seen = 0
        self._tokens = 0.0
        if self.train_windows.count < batch.size:
            raise RunError(
                f"--data {data.path}: its training split makes {self.train_windows.count} windows "
                f"of {context} tokens, fewer than one batch of {batch.size}; pack more stories, or "
                "lower --batch.size or --model.context"
            )

    @property
    def tokens_seen(self) -> int:
        """Targets that were trained on."""
        return round(self._tokens)

    def train_dataloader(self) -> "TrainBatches":
        """An endless stream of this device's share of the batches."""
        assert self.trainer is not None
        _count_whole_steps(self.trainer)
        return TrainBatches(
            self.train_windows,
            self.samples_seen,
            self.batch,
            self.trainer.global_rank,
            self.trainer.world_size,
            pin=self.trainer.strategy.root_device.type == "cuda",
        )

    def val_dataloader(self) -> Iterator[Batch]:
        """This device's share of the validation split."""
        assert self.trainer is not None
        devices, rank = self.trainer.world_size, self.trainer.global_rank
        micro, _ = self.batch.split(devices)
        group: list[Pair] = []
        for pair in self.valid_windows.in_order(micro, self.validate_windows):
            group.append(pair)
            if len(group) == devices:
                yield *group[rank], 1.0
                group = []
        if group:  # as many batches for every device, or one would wait for the others for ever
            inputs, targets = group[min(rank, len(group) - 1)]
            yield inputs, targets if rank < len(group) else torch.full_like(targets, IGNORE), 1.0

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Counts what is about to be trained on, before it leaves the host."""
        assert self.trainer is not None
        if self.trainer.training:
            inputs, _, per_part = batch
            self.samples_seen += len(inputs) * self.trainer.world_size
            self._tokens += per_part * self.trainer.world_size
        return batch

    def state_dict(self) -> dict[str, int]:
        """Where the order stands, and for the record how many targets that was."""
        return {"samples_seen": self.samples_seen, "tokens_seen": self.tokens_seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where `state_dict` stood."""
        self.samples_seen = state_dict["samples_seen"]
        self._tokens = float(state_dict["tokens_seen"])


class TrainBatches:
    """Endless batches; those of all devices together are consecutive samples.

    Args:
        windows: of the training split.
        first: the sample to start from, the first of a step.
        batch: how many windows make a step, and how many come at once.
        rank: which device this is.
        devices: how many there are.
        pin: whether batches go into pinned memory, from which a GPU copies them by itself.

    Raises:
        RunError: the batch does not divide.
    """

    def __init__(
        self,
        windows: Windows,
        first: int,
        batch: BatchSettings,
        rank: int = 0,
        devices: int = 1,
        pin: bool = False,
    ) -> None:
        self._windows, self._first, self._size, self._pin = windows, first, batch.size, pin
        micro, parts = batch.split(devices)
        self._micro, self._shares = micro, parts * devices
        self._places = [part * micro for part in range(rank, self._shares, devices)]

    def __iter__(self) -> Iterator[Batch]:
        """From the first sample on.

        Raises:
            tokenizer.CorpusError: the data cannot be read any more.
        """
        for step in count(self._first, self._size):
            per_part = self._windows.targets(step, self._size) / self._shares
            for place in self._places:
                inputs, targets = self._windows.batch(step + place, self._micro)
                if self._pin:
                    inputs, targets = inputs.pin_memory(), targets.pin_memory()
                yield inputs, targets, per_part


def _count_whole_steps(trainer: Trainer) -> None:
    """Lets a run resume with its steps in another number of parts.

    Lightning takes a step when the number of parts so far divides by those of a step. A checkpoint
    stands between two steps: counted in parts of today's size, that is where it stands again.
    """
    progress = trainer.fit_loop.epoch_loop.batch_progress
    # The part after which the checkpoint was written is counted as completed a little later.
    pending = progress.total.processed - progress.total.completed  # pyright: ignore[reportAttributeAccessIssue]
    progress.current.completed = trainer.global_step * trainer.accumulate_grad_batches - pending
