"""Where a token mixer looks: matrices over positions, those of attention and those learnt as such.

Rows are the positions written, columns the positions read; nothing stands above the diagonal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from arch import LanguageModel, TokenMixer
from arch.mixers import (
    CausalAttention,
    Diagonals,
    Expanded,
    Headed,
    Kernel,
    Parallel,
    SideBySide,
    Softmax,
    Triangle,
)
from eval.lenses.trace import blocks_of

PARTS = {Headed: "head", Kernel: "tap", Parallel: "branch"}
"""What the triangles of a stack are called."""


@dataclass(frozen=True)
class Map:
    """A matrix over positions.

    Attributes:
        layer: the block's number, from 1.
        mixer: the token mixer's class, in small letters.
        part: which of its matrices; empty where there is one.
        weights: `(T, T)`, or `(B, T, T)` where they depend on what is read.
    """

    layer: int
    mixer: str
    part: str
    weights: Tensor

    @property
    def label(self) -> str:
        """Names it within its model."""
        return f"{self.layer} {self.mixer} {self.part}".rstrip()

    @property
    def place(self) -> dict[str, str | int]:
        """Names it in a figure."""
        return {"layer": self.layer, "mixer": self.mixer, "part": self.part}


def mixers_of(model: LanguageModel) -> Iterator[tuple[int, TokenMixer]]:
    """Every token mixer with its layer, those side by side one after the other."""
    for layer, block in enumerate(blocks_of(model), start=1):
        mixer = block.token_mixer
        several = isinstance(mixer, SideBySide)
        yield from ((layer, one) for one in (mixer.mixers if several else [mixer]))  # pyright: ignore


@torch.no_grad()
def attention_pattern(mixer: CausalAttention, x: Tensor) -> Tensor:
    """Weights of each head, `(B, heads, T, T)`, for normed inputs `(B, T, D)`."""
    q, k, _ = (part.transpose(1, 2) for part in mixer.project(x, 0))
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = mixer.scale * q @ k.transpose(2, 3)
    T = scores.shape[-1]
    future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(dim=-1)


@torch.no_grad()
def triangles(mixer: TokenMixer, length: int) -> dict[str, Tensor]:
    """The masked matrices of a mixer for the first `length` positions, `(T, T)` by part.

    An expanded mixer has them in two rows, into its hidden positions and out of them; a softmax
    mixer's are as they act, normalised. Attention has none.
    """
    if isinstance(mixer, Expanded):
        pairs = (("in", mixer.expand), ("out", mixer.contract))
        return {
            name: weights
            for side, triangle in pairs
            for name, weights in _stack(triangle, length, side).items()
        }
    found: dict[str, Tensor] = {}
    for module in mixer.children():
        if isinstance(module, Triangle | Diagonals):
            found |= _stack(module, length, PARTS.get(type(mixer), ""))
    if isinstance(mixer, Softmax):
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        rows = mixer.mix.rows(0, length)[0]
        rows = rows.masked_fill(future.to(rows.device), -torch.inf)
        return {"": rows.softmax(dim=-1)}
    return found


@torch.no_grad()
def maps_of(model: LanguageModel, tokens: Tensor) -> list[Map]:
    """The matrices of every layer for `(B, T)` tokens: patterns, and triangles for T positions."""
    x, found = model.with_positions(model.embed(tokens)), []
    mixers = list(mixers_of(model))
    for layer, block in enumerate(blocks_of(model), start=1):
        read = block.norm_token(x)
        for own in (mixer for depth, mixer in mixers if depth == layer):
            name = type(own).__name__.lower().removeprefix("wrapped")
            if isinstance(own, CausalAttention):
                heads = attention_pattern(own, read).unbind(1)
                found += [Map(layer, name, f"head {h}", p) for h, p in enumerate(heads)]
            else:
                parts = triangles(own, tokens.shape[1])
                found += [Map(layer, name, part, weights) for part, weights in parts.items()]
        x = block.combine(x, block.token_mixer(read))
    return found


def _stack(triangle: Triangle | Diagonals, length: int, name: str) -> dict[str, Tensor]:
    rows = triangle.rows(0, length)[0].tril()
    if rows.dim() == 2:
        return {name if name in ("in", "out") else "": rows}
    return {f"{name} {i}": matrix for i, matrix in enumerate(rows)}
