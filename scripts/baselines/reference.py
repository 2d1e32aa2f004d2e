"""The reference's masked mixers (Badger, 2409.01482), restated: the same sums, start and flaws.

A mixer is a `Conv1d` over the positions, of which the features are the length. What it must not see
is zeroed in place in every forward pass, so gradients above the diagonal live on: they count in the
clipped norm, and in AdamW's moments, and move weights that the next forward pass zeroes again.
There is no final norm, the length is fixed, and every tensor starts as PyTorch makes it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORE = -100


class MaskedConv(nn.Conv1d):
    """tril(W) X + b, the weight masked in place first."""

    def forward(self, input: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T', D)`."""
        self.weight.data = torch.tril(self.weight.data.squeeze(-1)).unsqueeze(-1).contiguous()
        return super().forward(input)


class Parallel(nn.Module):
    """Masked convolutions side by side, summed."""

    def __init__(self, length: int, branches: int = 2) -> None:
        super().__init__()
        self.branches = nn.ModuleList(MaskedConv(length, length, 1) for _ in range(branches))

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        total = torch.zeros_like(x)
        for branch in self.branches:
            total = total + branch(x)
        return total


class Headed(nn.Module):
    """A projection and a masked convolution a head, joined by another projection."""

    def __init__(self, width: int, length: int, heads: int = 4) -> None:
        super().__init__()
        self.projections = nn.ModuleList(
            nn.Linear(width, width // heads, bias=False) for _ in range(heads)
        )
        self.convs = nn.ModuleList(MaskedConv(length, length, 1) for _ in range(heads))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        heads = [c(p(x)) for p, c in zip(self.projections, self.convs, strict=True)]
        return self.out(torch.cat(heads, dim=-1))


class Block(nn.Module):
    """Two LayerNorms, two residuals, and a feed-forward part of width 4 D."""

    def __init__(self, width: int, mixer: nn.Module) -> None:
        super().__init__()
        self.seq_layernorm, self.patch_layernorm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.conv = mixer
        self.patch_ff = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        x = x + self.conv(self.seq_layernorm(x))
        return x + self.patch_ff(self.patch_layernorm(x))


class ReferenceMixer(nn.Module):
    """The reference's language model; called as transformers calls its own.

    Args:
        kind: flat, expanded (by 1: in its code a larger factor is dead weight), parallel (2
            branches, summed as they are) or headed (4 heads).
        vocab_size: number of tokens V.
        length: T, which every input must have.
        width: D.
        layers: number of blocks.
    """

    def __init__(self, kind: str, vocab_size: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        build = {
            "flat": lambda: MaskedConv(length, length, 1),
            "expanded": lambda: nn.Sequential(
                MaskedConv(length, length, 1), nn.GELU(), MaskedConv(length, length, 1)
            ),
            "parallel": lambda: Parallel(length),
            "headed": lambda: Headed(width, length),
        }[kind]
        self.wte = nn.Embedding(vocab_size, width)
        self.mixerblocks = nn.ModuleList(Block(width, build()) for _ in range(layers))
        self.lm_head = nn.Linear(width, vocab_size, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        **_: Any,
    ) -> dict[str, Tensor]:
        """Logits `(B, T, V)`, and the loss in nats per token where there are labels `(B, T)`.

        Args:
            input_ids: `(B, T)`.
            labels: the same tokens, -100 where they do not count.
            shift_labels: the next tokens, instead.
        """
        x = self.wte(input_ids)
        for block in self.mixerblocks:
            x = block(x)
        logits = self.lm_head(x)
        if shift_labels is None and labels is not None:
            shift_labels = F.pad(labels[:, 1:], (0, 1), value=IGNORE)
        if shift_labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(
            logits.float().flatten(0, 1), shift_labels.flatten(), ignore_index=IGNORE
        )
        return {"loss": loss, "logits": logits}
