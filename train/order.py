"""The order of an epoch: a permutation of which any part can be had without the rest.

Up to `TABLE` windows it is numpy's, kept as a table. Beyond that it is computed, index by index, by
a Feistel network, whose rounds permute any range of 2^(2k) numbers; what leaves the range of the
epoch is sent through again until it is back in it (Black and Rogaway 2002, "cycle walking"). So the
order of ten billion tokens costs no memory, in any number of workers.
"""

import numpy as np

TABLE = 2**22
"""Windows up to which the order is a table: 32 MiB."""
ROUNDS = 8


class Order:
    """The order in which the windows of one epoch are drawn.

    Args:
        count: of the windows.
        random: decides the order.
    """

    def __init__(self, count: int, random: np.random.Generator) -> None:
        self._count, self._table = count, None
        if count <= TABLE:
            self._table = random.permutation(count)
        else:
            self._half = np.uint64(((count - 1).bit_length() + 1) // 2)
            self._keys = random.integers(2**64, size=ROUNDS, dtype=np.uint64)

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        """Which windows are drawn at these places, int64."""
        if self._table is not None:
            return self._table[numbers]
        found = self._permute(numbers.astype(np.uint64))
        while (outside := found >= self._count).any():
            found[outside] = self._permute(found[outside])
        return found.astype(np.int64)

    def _permute(self, numbers: np.ndarray) -> np.ndarray:
        low = (np.uint64(1) << self._half) - np.uint64(1)
        left, right = numbers >> self._half, numbers & low
        for key in self._keys:
            left, right = right, left ^ (_mixed(right ^ key) & low)
        return (left << self._half) | right


def _mixed(x: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of x (the finaliser of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
