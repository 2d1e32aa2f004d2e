"""Which positions and channels of a site are shown, written as the indexing of `(B, T, D)`."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval.errors import RequestError

if TYPE_CHECKING:
    from torch import Tensor

_RANGE = r"(-?\d*)(:?)(-?\d*)"
_FORM = re.compile(rf"\[:,{_RANGE},{_RANGE}\]")


@dataclass(frozen=True)
class Slice:
    """`[:, i:j, a:b]` of a `(B, T, D)` site, with Python's meaning of each bound.

    Attributes:
        start, stop: of the positions shown.
        low, high: of the channels shown.
    """

    start: int = 0
    stop: int | None = None
    low: int = 0
    high: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Slice":
        """Reads the notation; a single index stands for a range of one.

        Raises:
            RequestError: not of this form.
        """
        match = _FORM.fullmatch(text.replace(" ", ""))
        if not match:
            raise _unreadable(text)
        return cls(*_bounds(text, *match.groups()[:3]), *_bounds(text, *match.groups()[3:]))

    def positions(self, length: int) -> list[int]:
        """The positions shown, of a prompt of that length.

        Raises:
            RequestError: it shows nothing.
        """
        shown = list(range(length))[self.start : self.stop]
        if not shown:
            raise RequestError(
                f"slice {self} shows nothing of a prompt of {length} tokens; "
                "show at least one position"
            )
        return shown

    def channels(self, width: int) -> int:
        """How many channels are shown, of a site that has so many.

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
        return self.narrow(outputs[:, self.start : self.stop])

    def narrow(self, outputs: "Tensor") -> "Tensor":
        """The channels shown of `(..., D)` outputs."""
        return outputs[..., self.low : self.high]

    def hidden_prefix(self, length: int) -> int | None:
        """How many leading positions are hidden, if nothing else is; else None."""
        shown = self.positions(length)
        return shown[0] if shown == list(range(shown[0], length)) else None

    def __str__(self) -> str:
        """The notation."""
        channels = _range(self.low, self.high) if (self.low, self.high) != (0, None) else ":"
        return f"[:, {_range(self.start, self.stop)}, {channels}]"


def _bounds(text: str, first: str, colon: str, last: str) -> tuple[int, int | None]:
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
    return RequestError(
        f"slice {text!r} cannot be read; allowed: [:, k:, :], [:, :k, :], [:, i:j, :], [:, i, :], "
        "and the same of channels: [:, :, :c], [:, k:, i:j]"
    )
