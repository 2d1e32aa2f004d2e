"""Causal self-attention with rotary positions and grouped keys, as in Llama."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from arch.cost import Cost, linear_cost
from arch.errors import ModelError
from arch.mixers.attend import CausalAttention


class Attention(CausalAttention):
    """Multi-head attention; rotary embedding (Su et al., 2104.09864), halves rotated as in Llama.

    Args:
        d_model: width D of the input and output.
        context: the largest T.
        heads: number of query heads; divides D, and D/heads is even.
        kv_heads: number of key and value heads; divides heads; as many as heads when not given.
        rope_base: wavelength base of the rotation.
        bias: whether the four projections have biases.

    Raises:
        ModelError: heads that do not divide.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        d_model: int,
        context: int,
        *,
        heads: int = 4,
        kv_heads: int | None = None,
        rope_base: float = 10000.0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if heads < 1 or d_model % heads or (d_model // heads) % 2:
            raise ModelError(
                f"attention: heads={heads} must divide d_model={d_model} into even parts"
            )
        self.heads, self.kv_heads = heads, heads if kv_heads is None else kv_heads
        if self.kv_heads < 1 or heads % self.kv_heads:
            raise ModelError(f"attention: kv_heads={self.kv_heads} must divide heads={heads}")
        if not rope_base > 0:
            raise ModelError(f"attention: rope_base={rope_base} must be above 0")
        self.rope_base = rope_base
        self.head_width = d_model // heads
        self.scale = self.head_width**-0.5
        self.q_proj = nn.Linear(d_model, d_model, bias=bias)
        self.k_proj = nn.Linear(d_model, self.kv_heads * self.head_width, bias=bias)
        self.v_proj = nn.Linear(d_model, self.kv_heads * self.head_width, bias=bias)
        self.o_proj = nn.Linear(d_model, d_model, bias=bias)
        cos, sin = _rotation(context, self.head_width, rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, each `(B, T, heads, width)`."""
        T = x.shape[1]
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_width))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = self.cos[start : start + T, None], self.sin[start : start + T, None]
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def merge(self, y: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self.o_proj(y)

    def cost(self, length: int) -> Cost:
        """Four projections; scores and weighted values of the (T + 1) / 2 keys in sight."""
        projections = linear_cost(self.q_proj, self.k_proj, self.v_proj, self.o_proj)
        return projections + Cost(flops=2 * self.heads * self.head_width * (length + 1))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Attention":
        """Keeps the angles in float32 when the rest is cast: bfloat16 blurs the far positions."""
        super()._apply(fn, recurse)
        if self.cos.dtype != torch.float32:
            device, context = self.cos.device, len(self.cos)
            cos, sin = _rotation(context, self.head_width, self.rope_base)
            self.cos, self.sin = cos.to(device), sin.to(device)
        return self


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (i, i + width/2) of x `(..., width)` by its angle, halves in `cos`, `sin`."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


def _rotation(context: int, width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angle of each feature at each position, `(context, width)`."""
    frequency = 1 / base ** (torch.arange(0, width, 2).float() / width)
    angle = torch.arange(context).float()[:, None] * frequency.repeat(2)
    return angle.cos(), angle.sin()
