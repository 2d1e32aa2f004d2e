"""Channel mixers: the per-position feed-forward part of a block."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from arch.errors import ModelError
from arch.pattern import parse


class GELU(nn.Module):
    """W2 gelu(W1 x + b1) + b2."""

    def __init__(self, d_model: int, d_ff: int, *, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., D) -> (..., D)`."""
        return self.down(F.gelu(self.up(x)))


class SwiGLU(nn.Module):
    """W2 (silu(W1 x) * W3 x) (Shazeer, 2002.05202)."""

    def __init__(self, d_model: int, d_ff: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, d_ff, bias=bias)
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., D) -> (..., D)`."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


CHANNEL_MIXERS: dict[str, type[nn.Module]] = {"gelu": GELU, "swiglu": SwiGLU}


def parse_channel_mixer(entry: str) -> tuple[type[nn.Module], dict[str, Any]]:
    """Reads `gelu`, `swiglu(bias=true)`, ... as a class and its arguments.

    Raises:
        ModelError: unknown name or argument, or more than one.
    """
    terms = parse(entry, CHANNEL_MIXERS, "channel_mixer")
    if len(terms) > 1:
        raise ModelError(f"channel_mixer {entry!r} joins {len(terms)}; a block has one")
    return terms[0]


def build_channel_mixer(entry: str, d_model: int, d_ff: int) -> nn.Module:
    """Builds what `parse_channel_mixer` reads."""
    cls, arguments = parse_channel_mixer(entry)
    return cls(d_model, d_ff, **arguments)
