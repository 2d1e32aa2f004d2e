"""Channel mixers: the per-position feed-forward part of a block."""

import torch.nn.functional as F
from torch import Tensor, nn

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


def build_channel_mixer(entry: str, d_model: int, d_ff: int) -> nn.Module:
    """Builds `gelu`, `swiglu(bias=true)`, ...; several joined by `+` are not a thing here.

    Raises:
        ModelError: unknown name or argument.
    """
    ((cls, arguments),) = parse(entry, CHANNEL_MIXERS, "channel_mixer")
    return cls(d_model, d_ff, **arguments)
