"""What a module of this folder has: a function that recognises its kind, and another that reads it.

    def recognise(source: Source) -> bool: ...  # by content, never by the file's name alone
    def read(source: Source) -> Capture: ...    # or a `RequestError` of one line

`eval.captured.files.recognise` asks one module after another.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eval.captured.files.arrays import Entry
from eval.captured.files.stored import dtype_name
from eval.captured.files.tensors import Outputs
from eval.messages import RequestError

LAYER = re.compile(r"(?:^|[._])(?:layers|h|blocks)(?:\.|__)(\d+)(?=[._]|$)")
"""The number of a layer in the name of a module."""
INTEGERS = ("int32", "int64")


@dataclass(frozen=True)
class Source:
    """A file or folder that is not read yet.

    Attributes:
        path: of it.
        start: its first bytes; none of a folder.
        entries: its tensors by name, where it holds tensors by name.
        layers: the tensors of each file of a folder by the file's name.
        facts: what else it holds by name.
    """

    path: Path
    start: bytes = b""
    entries: Mapping[str, Entry] = field(default_factory=dict)
    layers: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def refuse(self, seen: str) -> RequestError:
        """The error of one line about the file."""
        return RequestError(f"{self.path}: {seen}")


@dataclass(frozen=True)
class Capture:
    """What a file holds.

    Attributes:
        kind: its name, and what stands in it; empty of tensors of no known kind.
        outputs: tensors that may be recovered, by the name of their site where the file says it.
        ids: the tokens of each prompt, where they stand in the file in clear.
        stacks: used in the place of `outputs` where the caller gives a layer, which the model finds
            in the stack, `(1, T, layers, width)`.
        named: whether `outputs` are named by their sites.
        refusal: why there are no outputs, of a file that has `ids` alone.
    """

    kind: str
    outputs: dict[str, Outputs]
    ids: list[list[int]] | None = None
    stacks: dict[str, Outputs] = field(default_factory=dict)
    named: bool = False
    refusal: str = ""


def read_layer(name: str) -> int | None:
    """The layer in a module's name, from 0, as in `model.layers.3.self_attn`."""
    found = LAYER.search(name)
    return int(found[1]) if found else None


def locate_numbers(path: Path, start: int, shape: tuple[int, ...], kind: torch.dtype) -> Entry:
    """Numbers that stand in a file from a byte on, one after another."""

    def read() -> Tensor:
        count = math.prod(shape) * kind.itemsize
        held = torch.from_numpy(np.fromfile(path, np.uint8, count, offset=start))
        return held.view(kind).view(shape)

    return Entry(shape, dtype_name(kind), read)
