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

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from arch import LanguageModel, TokenMixer
from arch.mixers import (
    CausalAttention,
    Expanded,
    Headed,
    Kernel,
    Parallel,
    SideBySide,
    Structured,
    Triangle,
)
from eval.lenses.charts import Bars, Heat, Lines
from eval.lenses.lens import Checkpoint, PromptBatch, Request, lens
from eval.lenses.table import Record, Table
from eval.lenses.trace import SUBLAYERS, blocks_of, require_parts
from eval.measures.ranks import effective_rank
from eval.messages import RequestError

PARTS = {Headed: "head", Kernel: "tap", Parallel: "branch"}
"""The name of each triangle of a stack, by mixer."""
CORNER = 64  # first positions on which it is measured what commutes
PICTURED = 48  # positions of a picture
TINY = 1e-30

Act = Callable[[Tensor], Tensor]


@torch.no_grad()
def attention_pattern(mixer: CausalAttention, x: Tensor) -> Tensor:
    """Weights of each head, `(B, heads, T, T)`, for normed inputs `(B, T, D)`."""
    q, k, _ = (part.transpose(1, 2) for part in mixer.project_at(x, 0))
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = mixer.scale * q @ k.transpose(2, 3)
    seen = mixer.visible(scores.shape[-2], scores.shape[-1], x.device)
    return scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)


@torch.no_grad()
def triangles(mixer: TokenMixer, length: int) -> dict[str, Tensor]:
    """The masked matrices of a mixer for the first `length` positions, `(T, T)` by part.

    An expanded mixer has them in two rows, into its hidden positions and out of them. Those of a
    class of somebody else's have the names that it gives them, if they are several. Attention has
    none.
    """
    if isinstance(mixer, Structured):
        maps = mixer.maps(length)
        taps = [f"tap {k} " * (len(maps) > 1) for k in range(len(maps))]
        heads = [f"head {h}" * (mixer.heads > 1) for h in range(mixer.heads)]
        return {
            (tap + head).strip(): matrix
            for tap, matrices in zip(taps, maps, strict=True)
            for head, matrix in zip(heads, matrices, strict=True)
        }
    stacks = {name: part for name, part in mixer.named_modules() if isinstance(part, Triangle)}
    if isinstance(mixer, Expanded):
        stacks = {"in": mixer.expand, "out": mixer.contract}
    parts: dict[str, Tensor] = {}
    for name, triangle in stacks.items():
        rows, whole = triangle.rows(0, length)[0].tril(), name * (len(stacks) > 1)
        one = PARTS.get(type(mixer), whole)
        named = {f"{one} {i}".strip(): matrix for i, matrix in enumerate(rows)}
        parts |= named if rows.dim() == 3 else {whole: rows}
    return parts


@torch.no_grad()
def maps_of(model: LanguageModel, streams: Tensor) -> dict[str, Tensor]:
    """The matrices of every layer for streams `(n + 1, B, T, D)`: patterns, triangles of T.

    By a label of layer, mixer and part: `(T, T)`, or `(B, T, T)` where they depend on what is read.
    """
    maps = {}
    for layer, (block, x) in enumerate(zip(blocks_of(model), streams, strict=False), start=1):
        read = block.norm_token(x)
        for name, mixer in mixers_in(block).items():
            if isinstance(mixer, CausalAttention):
                heads = attention_pattern(mixer, read).unbind(1)
                parts = {f"head {h}": pattern for h, pattern in enumerate(heads)}
            else:
                parts = triangles(mixer, x.shape[1])
            maps |= {f"{layer} {name} {part}".rstrip(): matrix for part, matrix in parts.items()}
    return maps


def mixers_in(block: Any) -> dict[str, TokenMixer]:
    """The token mixer of a block, or those side by side in it, by kind; alike ones are numbered."""
    mixer = block.token_mixer
    mixers: list[Any] = list(mixer.mixers) if isinstance(mixer, SideBySide) else [mixer]
    kinds = [type(mixer).__name__.lower().removeprefix("wrapped") for mixer in mixers]
    named = {}
    for i, (kind, mixer) in enumerate(zip(kinds, mixers, strict=True)):
        number = f" {1 + kinds[:i].count(kind)}" if kinds.count(kind) > 1 else ""
        named[kind + number] = mixer
    return named


def by_lag(weights: Tensor) -> Tensor:
    """Mean size of the weight at each distance: `(..., T, T)` to `(..., T)`."""
    diagonals = (weights.diagonal(-lag, -2, -1) for lag in range(weights.shape[-1]))
    return torch.stack([weight.abs().mean(dim=-1) for weight in diagonals], dim=-1)


@torch.no_grad()
def value_maps(mixer: TokenMixer, like: Tensor) -> tuple[Tensor, Tensor] | None:
    """W_V `(H, D, width)` and W_O `(H, width, D)` of every query head, without biases.

    None of a mixer that is neither attention nor has heads with projections.

    Read off what the projections do to every feature alone, so that any kind of them will do;
    heads that share keys and values have the same W_V. `like` is any tensor `(N, D)` of the
    model's dtype and device.
    """

    def slope(affine: Act, size: int) -> Tensor:
        units = torch.eye(size, dtype=like.dtype, device=like.device)[:, None]
        return (affine(units) - affine(torch.zeros_like(units[:1])))[:, 0]

    if isinstance(mixer, CausalAttention):
        values = slope(lambda x: mixer.project(x)[2], like.shape[-1])
        heads = mixer.project(torch.zeros_like(like[:1, None]))[0].shape[2]
        values, merge = values.repeat_interleave(heads // values.shape[1], dim=1), mixer.merge
    elif isinstance(mixer, Headed | Structured) and isinstance(mixer.o_proj, torch.nn.Linear):
        heads = len(mixer.mix.weight) if isinstance(mixer, Headed) else mixer.heads
        merge = mixer.o_proj
        values = slope(mixer.in_proj, like.shape[-1]).unflatten(-1, (heads, -1))
    else:
        return None
    outputs = slope(merge, heads * values.shape[-1]).unflatten(0, (heads, -1))
    return values.transpose(0, 1), outputs


def copying(values: Tensor, outputs: Tensor) -> Tensor:
    """Sum of eigenvalues over the sum of their sizes, `(H,)`: 1 copies, -1 takes away, 0 neither.

    The eigenvalues of W_V W_O, apart from zeros, are those of W_O W_V, which is small.
    """
    eigenvalues = torch.linalg.eigvals((outputs @ values).cpu())
    return eigenvalues.real.sum(dim=-1) / eigenvalues.abs().sum(dim=-1).clamp(min=TINY)


def singular_values(values: Tensor, outputs: Tensor) -> Tensor:
    """Singular values of W_V W_O, `(H, width)`, by way of its narrow factors."""
    inner, outer = (torch.linalg.qr(factor)[1] for factor in (values, outputs.mT))
    return torch.linalg.svdvals(inner @ outer.mT)


@torch.no_grad()
def separated(model: LanguageModel, streams: Tensor, seed: int) -> list[Record]:
    """How far parts of layers commute with acts: records with `layer`, `part`, `act`, `value`.

    The streams are `(n + 1, 1, T, D)`. The acts are a random rotation of all features, and the
    reversal of positions. The value is |part(act(x)) - act(part(x))| / |part(x)|, 0 where the two
    commute; what the part makes of zeros, its bias, is left out. For attention two more parts are
    measured with the pattern fixed: A (the pattern alone) and OV (values and output projection
    alone). If a block has several attentions, their names stand behind A and OV.
    """
    rows, D, generator = [], streams.shape[-1], torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(D, D, generator=generator))[0].to(streams)
    acts = {"features turned": lambda x: x @ turn, "positions reversed": lambda x: x.flip(-2)}
    for layer, (block, x) in enumerate(zip(blocks_of(model), streams, strict=False), start=1):
        read = block.norm_token(x)
        both = (block.token_mixer, block.channel_mixer)
        parts: dict[str, Act] = dict(zip(SUBLAYERS, both, strict=True))
        found = {n: m for n, m in mixers_in(block).items() if isinstance(m, CausalAttention)}
        for name, mixer in found.items():
            pattern, circuit = attention_pattern(mixer, read), value_maps(mixer, x[0])
            assert circuit
            of = f" of {name}" if len(found) > 1 else ""
            parts[f"A{of}"] = lambda y, pattern=pattern: pattern @ y[:, None]
            parts[f"OV{of}"] = lambda y, ov=circuit[0] @ circuit[1]: y[:, None] @ ov
        for name, part in parts.items():
            nothing = part(torch.zeros_like(read))
            plain = part(read) - nothing
            for act, acting in acts.items():
                error = part(acting(read)) - nothing - acting(plain)
                value = float(error.norm() / plain.norm().clamp(min=TINY))
                rows.append({"layer": layer, "part": name, "act": act, "value": value})
    return rows


@lens(
    "circuits",
    "Where the mixers look, and what they write",
    order=6,
    main=(("commutation error", {"part": "token mixer"}), ("OV copying", {})),
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
    require_parts(model := checkpoint.model)
    streams, shortest = batch.streams, int(batch.last.min()) + 1
    if shortest < 2:
        raise RequestError("--text: a prompt has one token; where it looks takes two at least")
    if maps := maps_of(model, streams[:, :, :shortest]):
        T = min(int(batch.last[0]) + 1, PICTURED)
        pictures = [
            weights.view(-1, T, T)[0] for weights in maps_of(model, streams[:, :1, :T]).values()
        ]
        above = torch.ones(T, T, dtype=torch.bool, device=streams.device).triu(1)
        shown = torch.stack(pictures).float().masked_fill(above, torch.nan)
        table.add("maps", shown, rows=False, map=[*maps], position=range(T), reads=range(T))
        lags = [by_lag(weights.float()).view(-1, shortest).mean(0) for weights in maps.values()]
        axes: dict[str, Any] = {"map": [*maps], "lag": range(shortest)}
        table.add("weight by distance", torch.stack(lags), rows=False, **axes)
    for record in separated(model, streams[:, :1, : min(shortest, CORNER)], request.seed):
        table.add("commutation error", record.pop("value"), **record)
    for layer, block in enumerate(blocks_of(model), start=1):
        like = model.embedding.weight.detach()
        found = {name: value_maps(mixer, like) for name, mixer in mixers_in(block).items()}
        written = {name: circuit for name, circuit in found.items() if circuit}
        for name, circuit in written.items():
            values, outputs = (weights.float() for weights in circuit)
            of = f"{name} " if len(written) > 1 else ""
            labels: dict[str, Any] = {"part": [f"{of}head {h}" for h in range(len(values))]}
            ranks = effective_rank(singular_values(values, outputs))
            table.add("OV copying", copying(values, outputs), layer=layer, **labels)
            table.add("OV effective rank", ranks, layer=layer, **labels)
