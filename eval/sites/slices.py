"""The slice of a site that is shown, as the indexing of `(B, T, D)` says it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval.messages import RequestError

if TYPE_CHECKING:
    from torch import Tensor

_RANGE = re.compile(r"(-?\d*)(:?)(-?\d*)")
_FORM = re.compile(r"\[:,([-:+\d]+),([-:\d]+)\]")


@dataclass(frozen=True)
class Slice:
    """`[:, i:j, a:b]` of a `(B, T, D)` site, with Python's meaning of each bound.

    `[:, i:j+k:l, a:b]` shows two ranges of positions; there may be more.

    Attributes:
        start, stop: of the first range of positions shown.
        low, high: of the channels shown.
        more: start and stop of each further range of positions.
    """

    start: int = 0
    stop: int | None = None
    low: int = 0
    high: int | None = None
    more: tuple[tuple[int, int | None], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Slice":
        """Reads the notation; a single index stands for a range of one.

        Raises:
            RequestError: not of this form.
        """
        match = _FORM.fullmatch(text.replace(" ", ""))
        if not match:
            raise _unreadable(text)
        first, *more = (_bounds(text, part) for part in match[1].split("+"))
        return cls(*first, *_bounds(text, match[2]), tuple(more))

    @classmethod
    def of(
        cls, positions: Sequence[int], length: int, low: int = 0, high: int | None = None
    ) -> "Slice":
        """The slice that shows these positions, in ascending order, of a prompt of that length."""
        shown = set(positions)
        starts = [t for t in positions if t - 1 not in shown]
        stops = [t + 1 if t + 1 < length else None for t in positions if t + 1 not in shown]
        first, *more = zip(starts, stops, strict=True)
        return cls(*first, low, high, tuple(more))

    @property
    def ranges(self) -> tuple[tuple[int, int | None], ...]:
        """Start and stop of each range of positions shown."""
        return ((self.start, self.stop), *self.more)

    @property
    def has_all_channels(self) -> bool:
        """Whether it leaves out no channel, however wide the site is."""
        return (self.low, self.high) == (0, None)

    def positions(self, length: int) -> list[int]:
        """The positions shown, in ascending order, of a prompt of that length.

        Raises:
            RequestError: it shows nothing.
        """
        shown = sorted({t for start, stop in self.ranges for t in range(length)[start:stop]})
        if not shown:
            raise RequestError(
                f"slice {self} shows nothing of a prompt of {length} tokens; give a longer text, "
                "or --slices that begin earlier"
            )
        return shown

    def shows(self, length: int) -> bool:
        """Whether it shows a position of a prompt of that length."""
        return any(range(length)[start:stop] for start, stop in self.ranges)

    def channels(self, width: int) -> int:
        """How many channels are shown, of a site that is so wide.

        Raises:
            RequestError: none, or a bound beyond the width.
        """
        shown = len(range(width)[self.low : self.high])
        if not shown or max(abs(self.low), abs(self.high or 0)) > width:
            raise RequestError(
                f"slice {self} shows {shown} of a site's {width} channels; "
                f"give bounds within {width} that show at least one"
            )
        return shown

    def select(self, outputs: "Tensor") -> "Tensor":
        """The part shown of `(B, T, D)` outputs."""
        if self.more:
            return self.narrow(outputs[:, self.positions(outputs.shape[1])])
        return self.narrow(outputs[:, self.start : self.stop])

    def narrow(self, outputs: "Tensor") -> "Tensor":
        """The channels shown of `(..., D)` outputs."""
        return outputs[..., self.low : self.high]

    def stop_of(self, length: int) -> int:
        """The position after the last one shown, of a prompt of that length."""
        return self.positions(length)[-1] + 1

    def hidden(self, length: int) -> int:
        """How many positions are hidden, of those before the last one shown."""
        return self.stop_of(length) - len(self.positions(length))

    def __str__(self) -> str:
        """The slice in its notation."""
        channels = ":" if self.has_all_channels else _range(self.low, self.high)
        return f"[:, {'+'.join(_range(*bounds) for bounds in self.ranges)}, {channels}]"


def _bounds(text: str, part: str) -> tuple[int, int | None]:
    match = _RANGE.fullmatch(part)
    if not match:
        raise _unreadable(text)
    first, colon, last = match.groups()
    if "-" in (first, last) or (not colon and not first):
        raise _unreadable(text)
    if not colon:
        index = int(first)
        return index, index + 1 if index != -1 else None
    return int(first or 0), int(last) if last else None


def _range(start: int, stop: int | None) -> str:
    if (start, stop) == (-1, None):
        return "-1"
    return f"{'' if start == 0 and stop is not None else start}:{'' if stop is None else stop}"


def _unreadable(text: str) -> RequestError:
    cut = text.startswith("[") and not text.endswith("]")  # the shell has cut it at its blanks
    return RequestError(
        f"slice {text!r} cannot be read; {'quote it; ' * cut}allowed: [:, k:, :], [:, :k, :], "
        "[:, i:j, :], [:, i, :], [:, :i+j:, :], and the same of channels: [:, :, :c], [:, k:, i:j]"
    )
