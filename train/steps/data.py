"""Which tokens make a batch: a pure function of (seed, epoch, index).

Both layouts of packed data are one long line of tokens, cut into windows of `width` at
`start = number * stride + offset`. In the packed layout windows overlap by the one token that is a
target in one and an input in the next, and every epoch shifts them by another offset; in the rows
layout a window is the part of a row that the model can see. In how many shards the line stands
makes no difference: a window that crosses the edge of one is read from both.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch import Tensor

from tokenizer import PAD, PackedData, load_tokenizer, token_bytes
from train.settings import BatchSettings, RunError

IGNORE = -100
"""Target of a position that is out of the loss."""

Pair = tuple[Tensor, Tensor]
"""Inputs and targets, both `(B, T)` int64 and contiguous."""
Batch = tuple[Tensor, Tensor, float]
"""Inputs, targets, and what the summed loss is divided by: the targets of the whole step, shared
out evenly over its parts on all devices, however many of them are pads."""


class Windows:
    """The windows of one split, each with the most positions that the model can see.

    The order and the offset are a function of the seed and the epoch.

    Attributes:
        tokens: of the split, in all.

    Raises:
        RunError: the context is above the length of the rows.
    """

    def __init__(self, data: PackedData, split: str, context: int, seed: int = 0) -> None:
        self._seed = seed
        self._line = data.line(split)
        self.tokens, self._pad = len(self._line), None
        if data.meta["layout"] == "rows":
            length = data.meta["context"]
            rows = len(self._line) // length
            if context > length:
                raise RunError(
                    f"--model.context {context} is above the {length} tokens of the rows in "
                    f"{data.path}; lower it, or pack longer rows"
                )
            if context == length and split == "train":
                logging.getLogger(__name__).warning(
                    f"--model.context {context}: rows of {length} tokens have no target for the "
                    f"last position, which stays untrained; pack --context {length + 1} to train it"
                )
            self._pad = load_tokenizer(data.path).token_to_id(PAD)
            self.count, self.stride, self.width = rows, length, min(context + 1, length)
            self._offset = length - self.width if data.meta["pad_side"] == "left" else 0
        else:
            # One window less than fits, so that every epoch has as many at any offset.
            self.count = max(0, len(self._line) - context) // context
            self.stride, self.width, self._offset = context, context + 1, None
        self._epoch: tuple[int, np.ndarray, int] | None = None

    def batch(self, first: int, size: int) -> Pair:
        """Training samples `first` to `first + size`, counted from the start of training."""
        epochs, numbers = np.divmod(np.arange(first, first + size), self.count)
        starts = np.concatenate(
            [self._starts(int(epoch), numbers[epochs == epoch]) for epoch in np.unique(epochs)]
        )
        return self._pair(self._line.windows(starts, self.width))

    @property
    def padded(self) -> bool:
        """Whether some targets do not count."""
        return self._pad is not None

    def in_order(self, size: int, limit: int | None = None) -> Iterator[Pair]:
        """Batches of `size` that hold every token as a target once, in the order of the file."""
        length = len(self._line)
        last = length - (self.width if self._offset is not None else 2)
        starts = range(self._offset or 0, last + 1, self.stride)[:limit]
        whole = len(range(starts.start, length - self.width + 1, self.stride)[: len(starts)])
        for i in range(0, whole, size):
            batch = np.array(starts[i : min(i + size, whole)])
            yield self._pair(self._line.windows(batch, self.width))
        for start in starts[whole:]:
            yield self._pair(self._line.read(start, length)[None])

    def verify(self) -> None:
        """Refuses data that were overwritten since they were opened, by a `CorpusError`."""
        self._line.verify()

    def are_all(self, limit: int | None) -> bool:
        """Whether the first `limit` windows have every token but the first as a target."""
        return not self.padded and (limit is None or limit * self.stride >= len(self._line) - 1)

    def bytes_per_target(self, sizes: np.ndarray, limit: int | None = None) -> float:
        """UTF-8 bytes of the targets that count, per target; `sizes` are those of each id."""
        size, count = 0, 0
        for _, targets in self.in_order(4096, limit):
            counted = targets[targets != IGNORE].numpy()
            size, count = size + int(sizes[counted].sum()), count + len(counted)
        return size / max(1, count)

    def _starts(self, epoch: int, numbers: np.ndarray) -> np.ndarray:
        if self._epoch is None or self._epoch[0] != epoch:
            random = np.random.default_rng((self._seed, epoch))
            offset = int(random.integers(self.stride)) if self._offset is None else self._offset
            self._epoch = epoch, random.permutation(self.count), offset
        _, order, offset = self._epoch
        return order[numbers] * self.stride + offset

    def _pair(self, windows: np.ndarray) -> Pair:
        tokens = torch.from_numpy(windows.astype(np.int64))
        # Contiguous: of views, a GPU would be sent a pageable copy, pinned memory or not.
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if self._pad is not None:
            targets = targets.masked_fill(targets == self._pad, IGNORE)
        return inputs, targets


class PackedDataModule(LightningDataModule):
    """Feeds a model from packed tokens.

    The order of samples depends on the seed alone, not on the number of devices or of accumulated
    parts, so `samples_seen` is all the state that resuming needs. It counts samples that were
    trained on, not those that were only prepared. Without `validate_tokens` all of the validation
    split is used.

    Raises:
        RunError: the training split is smaller than one batch, the context above its rows, or a
            split in which nothing is predicted.
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
        self.batch = batch
        self.validate_windows = None if validate_tokens is None else -(-validate_tokens // context)
        self.train_bytes_per_token = bytes_per_token(data, "train", self.train_windows)
        self.valid_bytes_per_token = bytes_per_token(
            data, "valid", self.valid_windows, self.validate_windows
        )
        self.samples_seen, self._tokens = 0, 0.0
        if self.train_windows.count < batch.size:
            raise RunError(
                f"--data {data.path}: its training split makes {self.train_windows.count} windows "
                f"of {context} tokens, fewer than one batch of {batch.size}; pack more stories, or "
                "lower --batch.size or --model.context"
            )
        if not self.train_bytes_per_token or not self.valid_bytes_per_token:
            split = "valid" if self.train_bytes_per_token else "train"
            raise RunError(
                f"--data {data.path}: in its split {split} nothing is predicted, as no story has a "
                "second token; pack longer stories"
                + (", or raise --validate_tokens" if validate_tokens and split == "valid" else "")
            )

    @property
    def tokens_seen(self) -> int:
        """How many targets were trained on."""
        return round(self._tokens)

    def train_dataloader(self) -> "Batches":
        """An endless stream of this device's share of the batches."""
        assert self.trainer is not None
        _count_whole_steps(self.trainer)
        devices, rank = self.trainer.world_size, self.trainer.global_rank
        pin = self.trainer.strategy.root_device.type == "cuda"
        first, batch = self.samples_seen, self.batch
        return Batches(lambda: train_batches(self.train_windows, first, batch, rank, devices, pin))

    def val_dataloader(self) -> "Batches":
        """This device's share of the validation split."""
        assert self.trainer is not None
        devices, rank = self.trainer.world_size, self.trainer.global_rank
        windows, limit = self.valid_windows, self.validate_windows
        micro, _ = self.batch.split(devices)
        return Batches(lambda: validation_batches(windows, limit, micro, rank, devices))

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Counts what is about to be trained on, before it leaves the host."""
        assert self.trainer is not None
        if self.trainer.training:
            inputs, _, loss_denominator = batch
            self.samples_seen += len(inputs) * self.trainer.world_size
            self._tokens += loss_denominator * self.trainer.world_size
        return batch

    def state_dict(self) -> dict[str, int]:
        """The position in the order of samples, and how many targets were trained on.

        Raises:
            tokenizer.CorpusError: the data were overwritten meanwhile: no checkpoint goes on.
        """
        for windows in (self.train_windows, self.valid_windows):
            windows.verify()
        return {"samples_seen": self.samples_seen, "tokens_seen": self.tokens_seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from the position in `state_dict`."""
        self.samples_seen = state_dict["samples_seen"]
        self._tokens = float(state_dict["tokens_seen"])


@dataclass(frozen=True)
class Batches:
    """What Lightning takes for a loader: batches that are made anew each time they are read."""

    make: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches from the first on."""
        return self.make()


def train_batches(
    windows: Windows,
    first: int,
    batch: BatchSettings,
    rank: int = 0,
    devices: int = 1,
    pin: bool = False,
) -> Iterator[Batch]:
    """Endless batches from the sample `first` on; those of all devices are consecutive samples.

    Pinned batches are copied by a GPU itself.

    Raises:
        RunError: the batch does not divide.
        tokenizer.CorpusError: the data cannot be read any more.
    """
    micro, parts = batch.split(devices)
    for step in count(first, batch.size):
        counted, whole = batch.size * (windows.width - 1), None
        if windows.padded:  # how many targets count is known of the whole step alone
            whole = windows.batch(step, batch.size)
            counted = int((whole[1] != IGNORE).sum())
        loss_denominator = counted / (parts * devices)
        for start in range(rank * micro, batch.size, devices * micro):
            if whole is None:
                inputs, targets = windows.batch(step + start, micro)
            else:
                inputs, targets = (part[start : start + micro] for part in whole)
            if pin:
                inputs, targets = inputs.pin_memory(), targets.pin_memory()
            yield inputs, targets, loss_denominator


def validation_batches(
    windows: Windows, limit: int | None, micro: int, rank: int = 0, devices: int = 1
) -> Iterator[Batch]:
    """The first `limit` windows of a split, or all, in order: one device's share of the batches.

    There are as many for every device, or one would wait for the others for ever.
    """
    pairs = windows.in_order(micro, limit)
    while group := list(islice(pairs, devices)):
        inputs, targets = group[min(rank, len(group) - 1)]
        spare = rank >= len(group)
        yield inputs, torch.full_like(targets, IGNORE) if spare else targets, 1.0


def bytes_per_token(
    data: PackedData, split: str, windows: Windows, limit: int | None = None
) -> float:
    """UTF-8 bytes per target of the first `limit` windows, or all.

    Rows have first tokens that are no target, and may be longer than the model's context.
    """
    if windows.are_all(limit):
        return data.bytes_per_token(split)
    pieces = token_bytes(load_tokenizer(data.path))
    return windows.bytes_per_target(np.array([len(piece) for piece in pieces]), limit)


def _count_whole_steps(trainer: Trainer) -> None:
    """Lets a run resume with its steps in another number of parts.

    Lightning takes a step when the number of parts so far divides by those of a step. A checkpoint
    stands between two steps: counted in parts of today's size, that is where it stands again.
    """
    progress = trainer.fit_loop.epoch_loop.batch_progress
    # The part after which the checkpoint was written is counted as completed a little later.
    pending = progress.total.processed - progress.total.completed  # pyright: ignore[reportAttributeAccessIssue]
    progress.current.completed = trainer.global_step * trainer.accumulate_grad_batches - pending
