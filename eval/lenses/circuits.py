"""Where the token mixers look, and what they write for what they read.

A matrix over positions has the positions written as rows and those read as columns; nothing stands
above the diagonal: attention's pattern A, or a masked mixer's tril(W). Of a head, W_V W_O `(D, D)`
is what it writes wherever it looks; its eigenvalues say whether it copies (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits").

Where and what act on different dimensions, so it is measured whether each commutes with the other:
a map over positions does the same to every feature, so turning all features first or last makes no
difference; a map over features does the same at every position, so reordering positions first or
last makes none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
from eval import RequestError
from eval.lenses.charts import Bars, Heat, Lines
from eval.lenses.lens import Request, lens
from eval.lenses.table import Record, Table
from eval.lenses.trace import SUBLAYERS, PromptBatch, blocks_of, mixer_name, mixers_in, mixers_of
from eval.models import Checkpoint
from eval.ranks import effective_rank

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


@torch.no_grad()
def attention_pattern(mixer: CausalAttention, x: Tensor) -> Tensor:
    """Weights of each head, `(B, heads, T, T)`, for normed inputs `(B, T, D)`."""
    q, k, _ = (part.transpose(1, 2) for part in mixer.place(x, 0))
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
def maps_of(model: LanguageModel, streams: Tensor) -> list[Map]:
    """The matrices of every layer for streams `(n + 1, B, T, D)`: patterns, triangles of T."""
    maps = []
    for layer, (block, x) in enumerate(zip(blocks_of(model), streams, strict=False), start=1):
        read = block.norm_token(x)
        for mixer in mixers_in(block):
            if isinstance(mixer, CausalAttention):
                heads = attention_pattern(mixer, read).unbind(1)
                parts = {f"head {h}": pattern for h, pattern in enumerate(heads)}
            else:
                parts = triangles(mixer, x.shape[1])
            maps += [Map(layer, mixer_name(mixer), *part) for part in parts.items()]
    return maps


def by_lag(weights: Tensor) -> Tensor:
    """Mean size of the weight at each distance: `(..., T, T)` to `(..., T)`."""
    T = weights.shape[-1]
    # One number more in every row of T shears the matrix: lag k comes to stand in column k - 1.
    sheared = F.pad(weights.tril().abs().flip(-1), (0, 1)).flatten(-2).unflatten(-1, (T + 1, T))
    return sheared.sum(dim=-2).roll(1, dims=-1) / (T - torch.arange(T, device=weights.device))


@torch.no_grad()
def value_maps(mixer: TokenMixer, like: Tensor) -> tuple[Tensor, Tensor] | None:
    """W_V `(H, D, width)` and W_O `(H, width, D)` of every query head, without biases.

    None of a mixer that is neither attention nor headed: it has no such maps.

    Read off what the projections do to every feature alone, so that any kind of them will do;
    heads that share keys and values have the same W_V. `like` is any tensor `(..., D)` of the
    model's dtype and device.
    """
    D = like.shape[-1]
    each = torch.eye(D, dtype=like.dtype, device=like.device)[:, None]
    none = torch.zeros_like(each[:1])
    if isinstance(mixer, CausalAttention):
        values = mixer.place(each, 0)[2] - mixer.place(none, 0)[2]
        heads = mixer.place(none, 0)[0].shape[2]
        values = values.repeat_interleave(heads // values.shape[2], dim=2)
        merge = mixer.merge
    elif isinstance(mixer, Headed):
        heads, merge = len(mixer.mix.weight), mixer.o_proj
        values = (mixer.in_proj(each) - mixer.in_proj(none)).unflatten(-1, (heads, -1))
    else:
        return None
    width = values.shape[-1]
    wide = torch.eye(heads * width, dtype=like.dtype, device=like.device)[:, None]
    outputs = merge(wide) - merge(torch.zeros_like(wide[:1]))
    return values[:, 0].transpose(0, 1), outputs[:, 0].unflatten(0, (heads, width))


def copying(values: Tensor, outputs: Tensor) -> Tensor:
    """Sum of eigenvalues over the sum of their sizes, `(H,)`: 1 copies, -1 takes away, 0 neither.

    The eigenvalues of W_V W_O, apart from zeros, are those of W_O W_V, which is small.
    """
    eigenvalues = torch.linalg.eigvals((outputs @ values).cpu())
    return eigenvalues.real.sum(dim=-1) / eigenvalues.abs().sum(dim=-1).clamp(min=TINY)


def singular_values(values: Tensor, outputs: Tensor) -> Tensor:
    """Of W_V W_O, `(H, width)`, by way of its narrow factors."""
    _, inner = torch.linalg.qr(values)
    _, outer = torch.linalg.qr(outputs.transpose(1, 2))
    return torch.linalg.svdvals(inner @ outer.transpose(1, 2))


@torch.no_grad()
def separated(model: LanguageModel, streams: Tensor, seed: int) -> list[Record]:
    """How far parts of layers commute with acts: records with `layer`, `part`, `act`, `value`.

    The streams are `(n + 1, 1, T, D)`. The acts are a random rotation of all features, and the
    reversal of positions. The value is |part(act(x)) - act(part(x))| / |part(x)|, 0 where the two
    commute; what the part makes of zeros, its bias, is left out. Attention's pattern is held as it
    is for A, the weights alone, and OV, the values alone.
    """
    rows, D, generator = [], streams.shape[-1], torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(D, D, generator=generator))[0].to(streams)
    acts: dict[str, Act] = {
        "features turned": lambda x: x @ turn,
        "positions reversed": lambda x: x.flip(-2),
    }
    for layer, (block, x) in enumerate(zip(blocks_of(model), streams, strict=False), start=1):
        read = block.norm_token(x)
        both = (block.token_mixer, block.channel_mixer)
        parts: dict[str, Act] = dict(zip(SUBLAYERS, both, strict=True))
        for mixer in mixers_in(block):
            if isinstance(mixer, CausalAttention):
                pattern = attention_pattern(mixer, read)
                both_maps = value_maps(mixer, read)
                assert both_maps
                ov = torch.einsum("hdw,hwe->hde", *both_maps)
                parts["A"] = lambda y, pattern=pattern: pattern @ y[:, None]
                parts["OV"] = lambda y, ov=ov: y[:, None] @ ov
        for name, part in parts.items():
            nothing = part(torch.zeros_like(read))
            plain = part(read) - nothing
            size = plain.norm().clamp(min=TINY)
            for act, acting in acts.items():
                error = part(acting(read)) - nothing - acting(plain)
                value = float(error.norm() / size)
                rows.append({"layer": layer, "part": name, "act": act, "value": value})
    return rows


@lens(
    "circuits",
    "Where the mixers look, and what they write",
    order=6,
    charts=[
        Heat(
            of="maps",
            x="reads",
            y="position",
            value="weight",
            diverging=True,
            facet="map",
            title="Where does each position look?",
            about="Attention patterns on the first prompt, and the triangles of masked mixers: how "
            "much a position takes of each before it.",
        ),
        Lines(
            of="weight by distance",
            x="lag",
            y="mean weight",
            colour="map",
            ordered=True,
            name="lags",
            title="How far back?",
            about="Mean size of the weight by distance, a line for each map.",
        ),
        *(
            Bars(
                of=f"OV {of}",
                x="part",
                y=of,
                column="layer",
                title=title,
                about=about,
            )
            for of, title, about in (
                ("copying", "Do heads write what they read?", "Copying score of W_V W_O, by layer "
                 "and head: 1 where all eigenvalues are positive, and it writes what it reads."),
                ("effective rank", "Of how many dimensions is what heads write?", "Effective rank "
                 "of W_V W_O, by layer and head."),
            )
        ),
    ],
)  # fmt: skip
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """Where every layer looks and how far, and what each head writes for what it reads."""
    model, shortest = checkpoint.model, int(batch.last.min()) + 1
    if shortest < 2:
        raise RequestError("--text: a prompt has one token; where it looks takes two at least")
    streams = batch.streams
    maps = maps_of(model, streams[:, :, :shortest])
    if maps:
        T = min(int(batch.last[0]) + 1, PICTURED)
        pictures = [one.weights.view(-1, T, T)[0] for one in maps_of(model, streams[:, :1, :T])]
        above = torch.ones(T, T, dtype=torch.bool, device=streams.device).triu(1)
        shown = torch.stack(pictures).float().masked_fill(above, torch.nan)
        labels = [one.label for one in maps]
        table.add("maps", shown, rows=False, map=labels, position=range(T), reads=range(T))
        lags = [by_lag(one.weights.float()).view(-1, shortest).mean(0) for one in maps]
        name, axes = "weight by distance", {"map": labels, "lag": range(shortest)}
        table.add(name, torch.stack(lags), rows=False, **axes)
    for record in separated(model, streams[:, :1, : min(shortest, CORNER)], request.seed):
        table.add("commutation error", record.pop("value"), **record)
    for layer, mixer in mixers_of(model):
        if found := value_maps(mixer, model.embedding.weight.detach()):
            values, outputs = (one.float() for one in found)
            place: dict[str, Any] = {"part": [f"head {h}" for h in range(len(values))]}
            ranks = effective_rank(singular_values(values, outputs))
            table.add("OV copying", copying(values, outputs), layer=layer, **place)
            table.add("OV effective rank", ranks, layer=layer, **place)


def _softmax(scores: Tensor) -> Tensor:
    """Causal softmax of `(..., T, T)` scores."""
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(dim=-1)


def _stack(triangle: Triangle, length: int, name: str) -> dict[str, Tensor]:
    rows = triangle.rows(0, length)[0].tril()
    if rows.dim() == 2:
        return {name if name in ("in", "out") else "": rows}
    return {f"{name} {i}": matrix for i, matrix in enumerate(rows)}
