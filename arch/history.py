"""What a token mixer remembers: tensors that grow along the sequence and never change behind."""

import torch
from torch import Tensor


class History:
    """A `(P, T, ...)` tensor to append to; older histories stay valid when newer ones grow.

    Appending costs what is new, not what is there: the storage doubles when full, and histories
    share it. Only the longest history of a storage may write behind its end; any other one (a
    search that tries a second continuation) takes a copy first.
    """

    def __init__(self, values: Tensor) -> None:
        self._storage = values
        self.length = values.shape[1]
        self._written = [self.length]  # shared by all histories of one storage

    @property
    def values(self) -> Tensor:
        """What was appended so far, `(P, T, ...)`."""
        return self._storage[:, : self.length]

    def append(self, new: Tensor) -> "History":
        """A history that goes on with `new`, `(P, S, ...)`; this one is left as it is."""
        if new.requires_grad or self._storage.requires_grad:
            return History(torch.cat([self.values, new], dim=1))  # autograd forbids shared writes
        length = self.length + new.shape[1]
        grown = History.__new__(History)
        grown._storage, grown._written, grown.length = self._storage, self._written, length
        if self._written[0] != self.length or length > self._storage.shape[1]:
            shape = (new.shape[0], 2 * length, *new.shape[2:])
            grown._storage = new.new_empty(shape)
            grown._storage[:, : self.length] = self.values
            grown._written = [self.length]
        grown._storage[:, self.length : length] = new
        grown._written[0] = length
        return grown
