"""Where and what act on different dimensions: each is asked whether it commutes with the other.

A map over positions does the same to every feature, so turning all features first or last makes no
difference; a map over features does the same at every position, so reordering positions first or
last makes none (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from arch import LanguageModel
from arch.mixers import CausalAttention
from eval.lenses.maps import attention_pattern, mixers_of
from eval.lenses.ov import value_maps
from eval.lenses.trace import blocks_of

Act = Callable[[Tensor], Tensor]
ACTS = ("features turned", "positions reversed")


def disturbances(part: Act, x: Tensor, turns: dict[str, Act]) -> dict[str, float]:
    """|part(act(x)) - act(part(x))| / |part(x)| for each act: 0 when the two do not meet.

    What the part says of nothing, its bias, is left out.

    Args:
        part: `(B, T, D) -> (..., T, D)`.
        x: `(B, T, D)`.
        turns: acts on the last two dimensions.
    """
    nothing = part(torch.zeros_like(x))
    plain = part(x) - nothing
    size = plain.norm().clamp(min=1e-30)
    return {
        name: float((part(act(x)) - nothing - act(plain)).norm() / size)
        for name, act in turns.items()
    }


def acts(width: int, seed: int, like: Tensor) -> dict[str, Act]:
    """A random rotation of all features, and the reversal of positions."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(width, width, generator=generator))[0].to(like)
    return {ACTS[0]: lambda x: x @ turn, ACTS[1]: lambda x: x.flip(-2)}


@torch.no_grad()
def separated(model: LanguageModel, tokens: Tensor, seed: int) -> list[dict[str, Any]]:
    """Which part of each layer minds which act: records with `layer`, `part`, `act`, `value`.

    Attention's pattern is held as it is for A, the weights alone, and OV, the values alone.
    """
    x, found = model.with_positions(model.embed(tokens)), []
    turns = acts(x.shape[-1], seed, x)
    mixers = list(mixers_of(model))
    for layer, block in enumerate(blocks_of(model), start=1):
        read = block.norm_token(x)
        mixed = block.token_mixer(read)
        parts: dict[str, Act] = {
            "token mixer": block.token_mixer,
            "channel mixer": block.channel_mixer,
        }
        for mixer in (one for depth, one in mixers if depth == layer):
            if isinstance(mixer, CausalAttention):
                pattern = attention_pattern(mixer, read)
                ov = torch.einsum("hdw,hwe->hde", *value_maps(mixer, read))
                parts["A"] = _applied(pattern)
                parts["OV"] = lambda y, ov=ov: y[:, None] @ ov
        for name, part in parts.items():
            for act, value in disturbances(part, read, turns).items():
                found.append({"layer": layer, "part": name, "act": act, "value": value})
        x = block.combine(x, mixed)
    return found


def _applied(pattern: Tensor) -> Act:
    return lambda x: pattern @ x[:, None]
