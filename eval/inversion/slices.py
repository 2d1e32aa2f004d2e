"""Which positions and channels of a site are shown, written as the indexing of `(B, T, D)`."""

import re
from dataclasses import dataclass

from torch import Tensor

from eval.errors import RequestError

_FORM = re.compile(r"\[:,(-?\d*)(:?)(-?\d*),:\]")


@dataclass(frozen=True)
class Slice:
    """`[:, k:, :]`, `[:, :k, :]`, `[:, i:j, :]` or `[:, -1, :]` of a `(B, T, D)` site."""

    start: int = 0
    stop: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Slice":
        """Reads the notation.

        Raises:
            RequestError: not of this form.
        """
        match = _FORM.fullmatch(text.replace(" ", ""))
        if not match or match.group(1, 2) in (("", ""), ("-", ":")):
            raise RequestError(
                f"slice {text!r} cannot be read; allowed: [:, k:, :], [:, :k, :], [:, i:j, :], "
                "[:, i, :]"
            )
        first, colon, last = match.groups()
        if not colon:
            index = int(first)
            return cls(index, index + 1 if index != -1 else None)
        return cls(int(first or 0), int(last) if last else None)

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

    def select(self, outputs: Tensor) -> Tensor:
        """The part shown of `(B, T, D)` outputs."""
        return outputs[:, self.start : self.stop]

    def hidden_prefix(self, length: int) -> int | None:
        """How many leading positions are hidden, if nothing else is; else None."""
        shown = self.positions(length)
        return shown[0] if shown == list(range(shown[0], length)) else None

    def __str__(self) -> str:
        """The notation."""
        if (self.start, self.stop) == (-1, None):
            return "[:, -1, :]"
        start = "" if self.start == 0 and self.stop is not None else self.start
        return f"[:, {start}:{'' if self.stop is None else self.stop}, :]"
