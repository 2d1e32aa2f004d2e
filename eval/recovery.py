"""Recoveries: the slice that is shown, and what a row says.

A `Slice` says which positions and channels of a site are shown, as the indexing of `(B, T, D)`.
"""

import os
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from eval import RequestError
from eval.schema import Row

if TYPE_CHECKING:
    from torch import Tensor

SHUFFLED = "shuffled"
"""The control whose target belongs to another prompt, so that its truth explains nothing."""

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

    def positions(self, length: int) -> list[int]:
        """The positions shown, in ascending order, of a prompt of that length.

        Raises:
            RequestError: it shows nothing.
        """
        ranges = ((self.start, self.stop), *self.more)
        shown = sorted({t for start, stop in ranges for t in range(length)[start:stop]})
        if not shown:
            raise RequestError(
                f"slice {self} shows nothing of a prompt of {length} tokens; "
                "show at least one position"
            )
        return shown

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

    def hidden(self, length: int) -> int:
        """How many positions are hidden, of those before the last one shown."""
        shown = self.positions(length)
        return shown[-1] + 1 - len(shown)

    def __str__(self) -> str:
        """The notation."""
        channels = _range(self.low, self.high) if (self.low, self.high) != (0, None) else ":"
        ranges = ((self.start, self.stop), *self.more)
        return f"[:, {'+'.join(_range(*each) for each in ranges)}, {channels}]"


def weights(row: Row) -> str:
    """One model at one training step."""
    return row["checkpoint"]["weights_sha256"]


def prompt_of(row: Row) -> tuple[Hashable, ...]:
    """The prompt of a row: equal for all models that share a tokenizer."""
    return (row.get("prompts"), tuple(row.get("truth", ())))


def folder(row: Row) -> str:
    """The directory that holds a row's model directory."""
    return os.path.dirname(os.path.normpath(row["checkpoint"]["path"]))


def layers(row: Row) -> tuple[int, ...]:
    """The layers shown together; most often one."""
    layer = row["site"]["layer"]
    return tuple(layer) if isinstance(layer, list) else (layer,)


def part(row: Row) -> str:
    """The part of the layer, with the layers below it that are shown too: `block`, `block 1+3`."""
    name = row["site"].get("part", "block")
    return name if len(layers(row)) == 1 else f"{name} {'+'.join(map(str, layers(row)))}"


def variation(row: Row) -> dict[str, Any]:
    """In what a recovery departs from the plain question: channels, ablations, noise, control.

    Empty when in nothing. `channels` is the range of those that are shown.
    """
    fields = {
        "channels": _channels(_slice(row["slice"])),
        "without": ", ".join(row["site"].get("without") or ()),
        "noise": row["noise"],
        "control": row["control"],
        "padded": row["padded"],
    }
    return {name: value for name, value in fields.items() if value}


def positions(row: Row) -> str:
    """The row's slice, with all channels."""
    shown = _slice(row["slice"])
    return (
        row["slice"]
        if shown is None or not _channels(shown)
        else str(replace(shown, low=0, high=None))
    )


def channel_count(row: Row) -> int | None:
    """How many channels are shown, where they are the first ones; None for others."""
    shown = _slice(row["slice"])
    return None if shown is None or shown.low else shown.channels(row["checkpoint"]["d_model"])


def hidden_positions(row: Row) -> set[int]:
    """The positions of the prompt that the row's slice does not show."""
    length, count = row["length"], row["hidden"]
    shown = _slice(row["slice"])
    whole = length + row["notes"].get("cut", 0)
    try:
        hidden = set(range(length)) - set(shown.positions(whole)) if shown else set()
    except RequestError:  # it shows nothing of a prompt so short
        hidden = set()
    # where the padding moved the slice, it hides leading positions only
    return hidden if len(hidden) == count else set(range(count))


def accepted(row: Row) -> bool:
    """Whether the answer explains the evidence, of a model whose answers can be proved at all."""
    return bool(row["at_floor"]) and not row["uncertified"]


def is_false_accept(row: Row) -> bool:
    """Whether a wrong answer is at the floor and the true prompt is not, or is called ruled out.

    Where the true prompt is at the floor too, the outputs do not tell the two apart. So it is in
    rows without `truth_at_floor`: the target is its output, and the limit allows for noise. A
    shuffled target is another prompt's.
    """
    if not accepted(row) or row["exact"] or row["control"] == SHUFFLED:
        return False
    named = {collision["position"] for collision in row["collisions"]}
    wrong = any(row["found"][t] != row["truth"][t] and t not in named for t in range(row["length"]))
    return wrong and (row["certificate"] == "enumerated" or not row.get("truth_at_floor", True))


def margin_bits(row: Row) -> float | None:
    """The row's `margin_bits`; None where a token was not recovered."""
    return row["margin_bits"] if row["verdict"] and "not found" not in row["verdict"] else None


def recovery_coordinates(row: Row) -> dict[str, Hashable]:
    """Where and how a prompt was recovered: equal for rows that differ in prompt or seed."""
    departs = variation(row)
    return {
        "layer": max(layers(row)),
        "part": part(row),
        "slice": row["slice"],
        "hidden": row["hidden"],
        "observed": row["observed"],
        "prompt_kind": row["prompts"],
        "without": departs.get("without", ""),
        "noise": departs.get("noise", 0.0),
        "control": departs.get("control", ""),
        "padded": departs.get("padded", False),
        "method": row["method"],
        "family": row["family"],
        "settings": " ".join(f"{name}={value}" for name, value in row["settings"].items()),
    }


@lru_cache(maxsize=256)
def _slice(text: str) -> Slice | None:
    """The slice of a row; None for one of another form."""
    try:
        return Slice.parse(text)
    except RequestError:
        return None


def _channels(shown: Slice | None) -> str:
    """The range of the channels shown; "" for all of them."""
    if shown is None or (shown.low, shown.high) == (0, None):
        return ""
    return f"{shown.low or ''}:{'' if shown.high is None else shown.high}"


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
