"""Which tokens make a batch: a pure function of (seed, epoch, index).

Both layouts of packed data are one long line of tokens, cut into windows of `width` at
`start = number * stride + offset`. In the packed layout windows overlap by the one token that is a
target in one and an input in the next, and every epoch shifts them by another offset; in the rows
layout a window is the part of a row that the model can see. In how many shards the line stands
makes no difference: a window that crosses the edge of one is read from both.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tokenizer import PAD, PackedData
from train.settings import RunError

IGNORE = -100
"""Target of a position that is out of the loss."""

Pair = tuple[Tensor, Tensor]
"""Inputs and targets, both `(B, T)` int64 and contiguous."""
Batch = tuple[Tensor, Tensor, float]
"""Inputs, targets, and what the summed loss is divided by: the targets of the whole step, shared
out evenly over its parts on all devices, however many of them are pads."""


class Windows:
    """The windows of one split.

    Args:
        data: the packed data.
        split: train or valid.
        context: the most positions that the model can see.
        seed: with the epoch, decides the order and the offset.

    Raises:
        RunError: the context is above the length of the rows.
    """

    def __init__(self, data: PackedData, split: str, context: int, seed: int = 0) -> None:
        self._seed = seed
        self._line = data.line(split)
        self._pad = None
        if data.meta["layout"] == "rows":
            length = data.meta["context"]
            rows = len(self._line) // length
            if context > length:
                raise RunError(
                    f"--model.context {context} is above the {length} tokens of the rows in "
                    f"{data.path}; lower it, or pack longer rows"
                )
            self._pad = _pad_id(data)
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

    def targets(self, first: int, size: int) -> int:
        """How many targets of these training samples count."""
        if self._pad is None:
            return size * (self.width - 1)
        return int((self.batch(first, size)[1] != IGNORE).sum())

    def in_order(self, size: int, limit: int | None = None) -> Iterator[Pair]:
        """Batches that hold every token as a target once, in the order of the file.

        Args:
            size: windows per batch.
            limit: stop after this many windows.
        """
        length = len(self._line)
        last = length - (self.width if self._offset is not None else 2)
        starts = range(self._offset or 0, last + 1, self.stride)[:limit]
        whole = len(range(starts.start, length - self.width + 1, self.stride)[: len(starts)])
        for i in range(0, whole, size):
            some = np.array(starts[i : min(i + size, whole)])
            yield self._pair(self._line.windows(some, self.width))
        for start in starts[whole:]:
            yield self._pair(self._line.read(start, length)[None])

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


def _pad_id(data: PackedData) -> int:
    from tokenizer import load_tokenizer

    pad = load_tokenizer(data.path).token_to_id(PAD)
    if pad is None:
        raise RunError(f"{data.path / 'tokenizer.json'} has no {PAD}; pack the data again")
    return pad
