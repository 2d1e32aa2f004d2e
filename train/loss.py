"""The head and the cross entropy as one function."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 512
"""Tokens whose logits are in memory at once."""


def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor, chunked: bool = True) -> Tensor:
    """Summed cross entropy in nats, in fp32 at least.

    In chunks the logits `(B, T, V)`, mostly the largest tensor of all, are never whole in memory,
    and are computed once. Torch has this from 2.13 on, and sums a loss in the dtype of its inputs:
    compiled, in autocast and in lower precision the logits are whole.

    Args:
        hidden: what the head reads, `(B, T, D)`.
        weight: of the head, `(V, D)`.
        targets: `(B, T)`; -100 is out of the sum.
        chunked: whether tokens are taken in chunks, where torch can; not when it compiles.
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    lower = torch.is_autocast_enabled(hidden.device.type) or hidden.dtype.itemsize < 4
    if chunked and not lower and hasattr(F, "linear_cross_entropy"):
        return F.linear_cross_entropy(
            hidden,
            weight,
            targets,
            reduction="sum",
            options=nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK),
        )
    logits = F.linear(hidden, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, reduction="sum")
