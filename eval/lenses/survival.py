"""How long what is written to the stream stays there.

A sublayer writes a vector. Two answers to whether a later stream still has it: the share of the
vector that the stream's projection on its direction shows (others may have written there too), and
how much of it goes when the write is left out and everything after is run again. A share of 1 is
untouched, 0 erased, above 1 written again by later layers, below 0 reversed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from arch import LanguageModel
from eval.lenses.trace import SUBLAYERS, Trace, blocks_of


@dataclass(frozen=True)
class Survival:
    """Of every write, by the layer of a later stream; no number before it is written.

    Attributes:
        labels: of the writes.
        born: the layer whose stream is the first to have each.
        projection: share along the write that the stream has, `(W, n + 1, B, T)`.
        removed: share along the write that the stream loses without it, `(W, n + 1, B, T)`.
        effect: length of the whole change of the stream without it, in lengths of the write.
        size: squared length of the writes, `(W, B, T)`. Means are weighted by it: the shares of a
            write of next to nothing are anything.
    """

    labels: list[str]
    born: list[int]
    projection: Tensor
    removed: Tensor
    effect: Tensor
    size: Tensor


@torch.no_grad()
def survival(model: LanguageModel, traced: Trace) -> Survival:
    """Follows the embedding and every sublayer's write; all are left out in one walk together.

    A write is left out at all positions at once.
    """
    blocks, (n, _, B, T, _) = blocks_of(model), traced.writes.shape
    writes = torch.cat([traced.start["embedding"][None], traced.writes.flatten(0, 1)])
    born = [0, *(layer for layer in range(1, n + 1) for _ in SUBLAYERS)]
    shape = (len(writes), n + 1, B, T)
    found = [traced.streams.new_full(shape, torch.nan) for _ in range(3)]
    squares = writes.square().sum(-1).clamp(min=torch.finfo(writes.dtype).tiny)
    without = traced.streams[0][None] - writes[:1]
    for layer in range(n + 1):
        stream = traced.streams[layer]
        if layer:
            x, (mixed, _) = traced.streams[layer - 1], traced.writes[layer - 1]
            block = blocks[layer - 1]
            older = block(without.flatten(0, 1)).view_as(without)
            new = torch.stack([block.combine(x, torch.zeros_like(mixed)), x + mixed])
            without = torch.cat([older, new])
        alive = len(without)
        own, change = writes[:alive], stream - without
        shares = (
            (stream * own).sum(-1) / squares[:alive],
            (change * own).sum(-1) / squares[:alive],
            change.norm(dim=-1) / squares[:alive].sqrt(),
        )
        for kept, share in zip(found, shares, strict=True):
            kept[:alive, layer] = share
    depth = range(1, n + 1)
    labels = ["embedding", *(f"{layer} {name}" for layer in depth for name in SUBLAYERS)]
    return Survival(labels, born, *found, size=squares)
