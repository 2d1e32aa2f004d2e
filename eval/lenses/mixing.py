"""Where every layer looks: patterns and masked matrices, and how far.

A matrix over positions has the positions written as rows and those read as columns; nothing stands
above the diagonal.

Where and what act on different dimensions, so it is measured whether each commutes with the other:
a map over positions does the same to every feature, so turning all features first or last makes no
difference; a map over features does the same at every position, so reordering positions first or
last makes none (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from arch import LanguageModel, TokenMixer
from arch.mixers import (
    CausalAttention,
    Expanded,
    Headed,
    Kernel,
    Parallel,
    Triangle,
)
from eval import RequestError, plots
from eval.lenses.lens import Documents, Finding, Record, Request, lens
from eval.lenses.ov import value_maps
from eval.lenses.trace import SUBLAYERS, blocks_of, gather, mixer_name, mixers_in
from eval.models import Checkpoint

PARTS = {Headed: "head", Kernel: "tap", Parallel: "branch"}
"""The name of each triangle of a stack, by mixer."""
CORNER = 64  # first positions on which it is measured what commutes
PICTURED = 48  # positions of a picture
TINY = 1e-30

Act = Callable[[Tensor], Tensor]


class Map(NamedTuple):
    """A matrix over positions."""

    layer: int  # the block's number, from 1
    mixer: str  # the token mixer's class, in small letters
    part: str  # which of its matrices; empty where there is one
    weights: Tensor  # (T, T), or (B, T, T) where they depend on what is read

    @property
    def label(self) -> str:
        """Its name within its model."""
        return f"{self.layer} {self.mixer} {self.part}".rstrip()

    @property
    def first(self) -> Tensor:
        """That of the first prompt, `(T, T)`."""
        return (self.weights if self.weights.dim() == 2 else self.weights[0]).float()


@torch.no_grad()
def attention_pattern(mixer: CausalAttention, x: Tensor) -> Tensor:
    """Weights of each head, `(B, heads, T, T)`, for normed inputs `(B, T, D)`."""
    q, k, _ = (part.transpose(1, 2) for part in mixer.project(x, 0))
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return _softmax(mixer.scale * q @ k.transpose(2, 3))


@torch.no_grad()
def triangles(mixer: TokenMixer, length: int) -> dict[str, Tensor]:
    """The masked matrices of a mixer for the first `length` positions, `(T, T)` by part.

    An expanded mixer has them in two rows, into its hidden positions and out of them.
    Attention has none.
    """
    if isinstance(mixer, Expanded):
        return _stack(mixer.expand, length, "in") | _stack(mixer.contract, length, "out")
    parts: dict[str, Tensor] = {}
    for module in mixer.children():
        if isinstance(module, Triangle):
            parts |= _stack(module, length, PARTS.get(type(mixer), ""))
    return parts


@torch.no_grad()
def maps_of(model: LanguageModel, tokens: Tensor) -> list[Map]:
    """The matrices of every layer for `(B, T)` tokens: patterns, and triangles for T positions."""
    x, maps = model.with_positions(model.embed(tokens)), []
    for layer, block in enumerate(blocks_of(model), start=1):
        read = block.norm_token(x)
        for mixer in mixers_in(block):
            if isinstance(mixer, CausalAttention):
                heads = attention_pattern(mixer, read).unbind(1)
                parts = {f"head {h}": pattern for h, pattern in enumerate(heads)}
            else:
                parts = triangles(mixer, tokens.shape[1])
            maps += [Map(layer, mixer_name(mixer), *part) for part in parts.items()]
        x = block.combine(x, block.token_mixer(read))
    return maps


def by_lag(weights: Tensor) -> Tensor:
    """Mean size of the weight at each distance: `(..., T, T)` to `(..., T)`."""
    T = weights.shape[-1]
    # One number more in every row of T shears the matrix: lag k comes to stand in column k - 1.
    sheared = F.pad(weights.tril().abs().flip(-1), (0, 1)).flatten(-2).unflatten(-1, (T + 1, T))
    return sheared.sum(dim=-2).roll(1, dims=-1) / (T - torch.arange(T, device=weights.device))


@torch.no_grad()
def separated(model: LanguageModel, tokens: Tensor, seed: int) -> list[Record]:
    """How far parts of layers commute with acts: records with `layer`, `part`, `act`, `value`.

    The acts are a random rotation of all features, and the reversal of positions. The value is
    |part(act(x)) - act(part(x))| / |part(x)|, 0 where the two commute; what the part makes of
    zeros, its bias, is left out. Attention's pattern is held as it is for A, the weights alone, and
    OV, the values alone.
    """
    x, rows = model.with_positions(model.embed(tokens)), []
    D, generator = x.shape[-1], torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(D, D, generator=generator))[0].to(x)
    acts: dict[str, Act] = {
        "features turned": lambda x: x @ turn,
        "positions reversed": lambda x: x.flip(-2),
    }
    for layer, block in enumerate(blocks_of(model), start=1):
        read = block.norm_token(x)
        both = (block.token_mixer, block.channel_mixer)
        parts: dict[str, Act] = dict(zip(SUBLAYERS, both, strict=True))
        for mixer in mixers_in(block):
            if isinstance(mixer, CausalAttention):
                pattern = attention_pattern(mixer, read)
                ov = torch.einsum("hdw,hwe->hde", *value_maps(mixer, read))
                parts["A"] = lambda y, pattern=pattern: pattern @ y[:, None]
                parts["OV"] = lambda y, ov=ov: y[:, None] @ ov
        for name, part in parts.items():
            nothing = part(torch.zeros_like(read))
            plain = part(read) - nothing
            size = plain.norm().clamp(min=TINY)
            for act, acting in acts.items():
                value = float((part(acting(read)) - nothing - acting(plain)).norm() / size)
                rows.append({"layer": layer, "part": name, "act": act, "value": value})
        x = block.combine(x, block.token_mixer(read))
    return rows


def _draw(documents: Documents) -> list[plots.Figure]:
    maps = [r for r in documents.records("maps") if r["reads"] <= r["position"]]
    pictures = plots.heat(
        maps, "reads", "position", "weight", plots.DIVERGING,
        sort_x="ascending", sort_y="ascending", size=(420, 420),
    )  # fmt: skip
    reach = documents.records("by lag")
    return [
        plots.Figure(
            "mixing-maps",
            "Where does each position look?",
            "Attention patterns on the first prompt, and the triangles of masked mixers: how much "
            "a position takes of each before it.",
            plots.chosen(pictures, maps, "model", "map"),
        ),
        plots.Figure(
            "mixing-lags",
            "How far back?",
            "Mean size of the weight by distance, a line for each map.",
            plots.by_model(plots.lines(reach, "lag", "mean weight", "map", ordered=True), reach),
        ),
    ]


@lens("mixing", "Where the mixers look", figures=_draw, order=9)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Where every layer looks, and how far."""
    model, batch = checkpoint.model, gather(checkpoint, request.prompts)
    shortest = int(batch.last.min()) + 1
    if shortest < 2:
        raise RequestError("--text: a prompt has one token; where it looks takes two at least")
    tokens, finding = batch.tokens[:, :shortest], Finding()
    maps = maps_of(model, tokens)
    if maps:
        positions = range(min(int(batch.last[0]) + 1, PICTURED))
        pictures = [one.first for one in maps_of(model, batch.tokens[:1, : len(positions)])]
        lags = [by_lag(one.weights.float()).view(-1, shortest).mean(0) for one in maps]
        labels = {"map": [one.label for one in maps]}
        axes = {**labels, "position": positions, "reads": positions}
        finding.array("maps", torch.stack(pictures), axes)
        finding.array("by lag", torch.stack(lags), {**labels, "lag": range(shortest)})
    for record in separated(model, tokens[:1, :CORNER], request.seed):
        finding.number("minds", **record)
    return finding


def _softmax(scores: Tensor) -> Tensor:
    """Causal softmax of `(..., T, T)` scores."""
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(dim=-1)


def _stack(triangle: Triangle, length: int, name: str) -> dict[str, Tensor]:
    rows = triangle.rows(0, length)[0].tril()
    if rows.dim() == 2:
        return {name if name in ("in", "out") else "": rows}
    return {f"{name} {i}": matrix for i, matrix in enumerate(rows)}
