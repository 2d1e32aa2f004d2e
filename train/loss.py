"""The head and the cross entropy as one function, which never keeps the logits.

The gradient of a cross entropy is known as soon as its logits are, so both of the head's gradients
are computed in the forward pass, one part of the tokens after the other: the logits `(B, T, V)`,
mostly the largest tensor of all, are in memory a part at a time, are computed once, and wait for no
backward pass.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from arch.masked_conv import product_dtype
from train.windows import IGNORE

CACHED = 256
"""Tokens in a part on a CPU: their logits stay in its cache."""


def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor, chunks: int | None = None) -> Tensor:
    """Summed cross entropy in nats, in fp32 at least.

    Args:
        hidden: what the head reads, `(B, T, D)`; multiplied in its own dtype, or in autocast's.
        weight: of the head, `(V, D)`.
        targets: `(B, T)`; IGNORE is out of the sum.
        chunks: parts that the tokens are taken in; when not given all at once on a GPU, and as many
            as stay in the cache on a CPU.
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    if chunks is None:
        chunks = 1 if hidden.is_cuda else -(-len(hidden) // CACHED)
    dtype = product_dtype(hidden)
    if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
        nats = _HeadLoss.apply(hidden, weight, targets, chunks, dtype)
        assert isinstance(nats, Tensor)
        return nats
    matrix, nats = weight.to(dtype), []
    for part, wanted in zip(hidden.chunk(chunks), targets.chunk(chunks), strict=True):
        nats.append(_softmax(part.to(dtype) @ matrix.T, wanted)[0])
    return torch.stack(nats).sum()


def sum_over_tokens(gradient: Tensor, part: Tensor) -> Tensor:
    """The head's gradient `(V, D)` of tokens whose logits have a `gradient` `(N, V)`.

    From float16 it is fp32: the loss is not divided by its tokens yet, and a sum over them may be
    above the 65,504 that float16 holds.

    Args:
        gradient: of the summed nats by the logits, `(N, V)`.
        part: what the head read, `(N, D)`, in the same dtype.
    """
    if part.dtype != torch.float16:
        return gradient.T @ part
    if part.is_cuda:
        return torch.mm(gradient.T, part, out_dtype=torch.float32)
    with torch.autocast(part.device.type, enabled=False):
        return gradient.T.float() @ part.float()


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        chunks: int,
        dtype: torch.dtype,
    ) -> Tensor:
        total, by_hidden, by_weight = [], [], None
        matrix = weight.to(dtype)
        for part, wanted in zip(hidden.chunk(chunks), targets.chunk(chunks), strict=True):
            part = part.to(dtype)
            nats, gradient = _softmax(part @ matrix.T, wanted)
            gradient = _minus_one_at(gradient, wanted).to(dtype)
            total.append(nats)
            by_hidden.append((gradient @ matrix).to(hidden.dtype))
            product = sum_over_tokens(gradient, part)
            by_weight = product.to(weight.dtype) if by_weight is None else by_weight.add_(product)
        assert by_weight is not None
        ctx.save_for_backward(torch.cat(by_hidden), by_weight)
        return torch.stack(total).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Any) -> Any:
        by_hidden, by_weight = ctx.saved_tensors
        return by_hidden * outputs[0], by_weight * outputs[0], None, None, None


def _softmax(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Summed nats, and probabilities `(N, V)` that are 0 where the target is out of the loss.

    The logits may be overwritten.
    """
    counts = (targets != IGNORE)[:, None]
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest = x.amax(-1, keepdim=True)
    wanted = x.gather(1, targets.clamp(min=0)[:, None])
    exponentials = x.sub_(largest).exp_()
    total = exponentials.sum(-1, keepdim=True)
    nats = torch.where(counts, largest + total.log() - wanted, 0.0).sum()
    return nats, exponentials.mul_(counts / total)


def _minus_one_at(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Subtracts 1 at every target that counts: the gradient of the summed nats by the logits."""
    if torch.compiler.is_compiling():  # a comparison fuses with its neighbours; an index does not
        columns = torch.arange(probabilities.shape[1], device=targets.device)
        return probabilities - (columns == targets[:, None]).to(probabilities.dtype)
    rows = torch.arange(len(targets), device=targets.device)
    probabilities[rows, targets.clamp(min=0)] -= (targets != IGNORE).to(probabilities.dtype)
    return probabilities
