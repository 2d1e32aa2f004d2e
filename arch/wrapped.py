"""What a transformers model's own layers need around them to be blocks of ours.

Attention is ours, around the model's own projections: the causal mask is always on, one prefix
serves many candidates without a copy, and layers in 8 bit work as they are.
"""

import torch
from torch import Tensor, nn

from arch.mixers import CausalAttention, rotate
from arch.model import Block


class ParallelBlock(Block):
    """x + token_mixer(norm_token(x)) + channel_mixer(norm_channel(x)): GPT-J's, with one norm.

    Both mixers read the block's input, so there is no stream between the two.
    """

    def combine(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The block's output from its input and its token mixer's output, all `(B, T, D)`."""
        return x + mixed + self.channel_mixer(self.norm_channel(x))


class HalvesRotation(nn.Module):
    """Rotary positions of the Llama family, by the model's own table of angles."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: Tensor, start: int) -> Tensor:
        """Rotates queries or keys `(B, T, heads, width)` of positions start ... start + T."""
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        cos, sin = self.table(x, positions[None])
        return rotate(x, cos[0, :, None], sin[0, :, None])


class PairsRotation(nn.Module):
    """Rotary positions of GPT-J: neighbouring features turn together, a head's last ones stay."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, start: int) -> Tensor:
        """As `HalvesRotation.forward`; the table holds sines, then cosines, by position."""
        turned, rest = x.tensor_split([self.table.shape[1]], dim=-1)
        angles = self.table[start : start + x.shape[1], None].to(x.dtype)
        sin, cos = angles.chunk(2, dim=-1)
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        return torch.cat([turned, rest], dim=-1)


class WrappedAttention(CausalAttention):
    """Our attention between a model's own projections.

    Args:
        inputs: the projections to queries, keys and values, or one to all three.
        output: the projection back to the stream.
        heads: number of query heads.
        width: features of a head.
        scale: of the scores.
        rotation: puts positions into queries and keys, where the family does.
    """

    def __init__(
        self,
        inputs: list[nn.Module],
        output: nn.Module,
        heads: int,
        width: int,
        scale: float,
        rotation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.inputs, self.output, self.rotation = nn.ModuleList(inputs), output, rotation
        self.heads, self.width, self.scale = heads, width, scale

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `(B, T, heads, width)`."""
        projected = [layer(x) for layer in self.inputs]
        parts = projected if len(projected) == 3 else projected[0].chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.width)) for part in parts)
        if self.rotation is not None:
            q, k = self.rotation(q, start), self.rotation(k, start)
        return q, k, v

    def merge(self, y: Tensor) -> Tensor:
        """`(B, T, heads * width) -> (B, T, D)`."""
        return self.output(y)
