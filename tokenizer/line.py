"""The tokens of a split as one line, whatever the number of files it stands in.

Files are mapped into memory when they are first read, so a line costs no memory of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenizer.errors import CorpusError

DTYPE = np.dtype("<u2")
MAPPED = 256  # files mapped at a time: each holds a file handle, of which there are often 1024


@dataclass(frozen=True)
class Shard:
    """One file of a split.

    Attributes:
        path: Where it is.
        tokens: How many it holds, padding included.
        index: Its number among the shards of its split; None when the split is one file.
    """

    path: Path
    tokens: int
    index: int | None = None

    def check(self) -> None:
        """Compare the file with what was written.

        Raises:
            CorpusError: It is missing, unreadable or of another size; the line names its index.
        """
        expected = DTYPE.itemsize * self.tokens
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
        except FileNotFoundError:
            size = 0
        except OSError as error:
            raise CorpusError(
                f"{self}: cannot be read ({error.strerror}); mend that, or pack the data again"
            ) from error
        if size != expected:
            raise CorpusError(
                f"{self}: {size} bytes, {expected} expected (incomplete copy?); "
                "copy it again, or pack the data again"
            )

    def __str__(self) -> str:
        return f"{self.path}" + ("" if self.index is None else f" (shard {self.index})")


class TokenLine:
    """Token ids, uint16, numbered from 0 over all shards of a split.

    A stretch that crosses the edge of a shard is put together from its parts, so that what is read
    does not depend on how the line was divided.

    Args:
        shards: The files, in their order.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = list(shards)
        self._ends = np.cumsum([shard.tokens for shard in self.shards], dtype=np.int64)
        self._mapped: OrderedDict[int, np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_mapped": OrderedDict()}  # a copy maps the files itself

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return tokens `start` to `stop`: `(stop - start,)`, a view where one file holds them.

        Raises:
            CorpusError: A file cannot be read, or is not what was written.
        """
        stop = min(stop, len(self))
        parts = []
        number = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            before = int(self._ends[number]) - self.shards[number].tokens
            part = self._map(number)[start - before : stop - before]
            parts.append(part)
            start += len(part)
            number += 1
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, DTYPE), *parts])

    def windows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Return the stretches of `width` tokens that begin at `starts`: `(len(starts), width)`."""
        found = np.empty((len(starts), width), DTYPE)
        for window, start in zip(found, starts.tolist(), strict=True):
            window[:] = self.read(start, start + width)
        return found

    def _map(self, number: int) -> np.ndarray:
        if number in self._mapped:
            self._mapped.move_to_end(number)
            return self._mapped[number]
        shard = self.shards[number]
        shard.check()
        # A plain view: slicing a memmap itself is several times slower.
        mapped = np.memmap(shard.path, dtype=DTYPE, mode="r", shape=(shard.tokens,))
        self._mapped[number] = tokens = mapped.view(np.ndarray)
        if len(self._mapped) > MAPPED:
            self._mapped.popitem(last=False)
        return tokens
