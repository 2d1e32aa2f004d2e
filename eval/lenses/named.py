"""An array whose axes have names and labels: what every lens returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

Label = str | int | float


@dataclass(frozen=True)
class Named:
    """Numbers, with what each axis counts.

    Attributes:
        values: on the CPU, one axis for each name.
        axes: name of each axis in order, with the label of each of its places.

    Raises:
        ValueError: axes that do not fit the values.
    """

    values: Tensor
    axes: Mapping[str, Sequence[Label]]

    def __post_init__(self) -> None:
        """Brings the values to the CPU and checks their shape."""
        object.__setattr__(self, "values", self.values.detach().cpu())
        shape = tuple(len(labels) for labels in self.axes.values())
        if shape != tuple(self.values.shape):
            raise ValueError(f"axes {shape} do not fit values {tuple(self.values.shape)}")

    def at(self, **labels: Label) -> Named:
        """The part at one label of each named axis; those axes are gone.

        Raises:
            KeyError: an axis that does not exist.
            ValueError: a label that does not exist.
        """
        values, axes = self.values, dict(self.axes)
        for axis, label in labels.items():
            place = list(axes[axis]).index(label)
            values = values.select(list(axes).index(axis), place)
            del axes[axis]
        return Named(values, axes)

    def item(self) -> float:
        """The one number that is left."""
        return float(self.values)

    def records(self, value: str = "value") -> Iterator[dict[str, Any]]:
        """A flat record for every number: its labels by axis, and itself as `value`."""
        numbers = self.values.flatten().tolist()
        for labels, number in zip(product(*self.axes.values()), numbers, strict=True):
            yield dict(zip(self.axes, labels, strict=True)) | {value: number}

    def plain(self) -> dict[str, Any]:
        """As JSON holds it, to six significant digits; what is no number is null."""
        flat = [_short(number) for number in self.values.flatten().tolist()]
        return {"axes": {name: list(labels) for name, labels in self.axes.items()}, "values": flat}

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Named:
        """Reads what `plain` made."""
        flat = [float("nan") if number is None else number for number in plain["values"]]
        shape = [len(labels) for labels in plain["axes"].values()]
        return cls(torch.tensor(flat, dtype=torch.float64).view(shape), plain["axes"])


def _short(number: float) -> float | int | None:
    if isinstance(number, int):
        return number
    return float(f"{number:.6g}") if abs(number) < float("inf") else None
