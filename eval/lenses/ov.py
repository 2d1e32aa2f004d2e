"""OV circuits: what a head of attention writes for what it reads, wherever it looks.

    python -m eval lens DIR --lens ov --out results

Of a head h, W_V W_O `(D, D)`, and as tokens see it, W_E W_V W_O W_U' `(V, V)`: does reading a token
raise that token? Its eigenvalues say so without the table being made (Elhage et al. 2021). A headed
masked mixer has such circuits too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arch import LanguageModel, TokenMixer
from arch.mixers import CausalAttention, Headed
from eval import plots
from eval.checkpoints import Checkpoint
from eval.errors import RequestError
from eval.lenses.documents import Document, records
from eval.lenses.lens import Finding, Request, lens
from eval.lenses.maps import mixers_of
from eval.lenses.named import Named
from eval.lenses.profile import effective_rank, participation
from eval.lenses.readout import readers
from eval.lenses.trace import blocks_of
from eval.ranks import token_ranks

VOCABULARY = 4096  # tokens that circuits are seen by; more are drawn from
SAMPLE = 256  # tokens whose own logit is looked up
TINY = 1e-30


class Circuits(NamedTuple):
    """The heads of one layer.

    Attributes:
        layer: the block's number, from 1.
        mixer: the token mixer's class, in small letters.
        values: W_V, `(H, D, width)`.
        outputs: W_O, `(H, width, D)`.
    """

    layer: int
    mixer: str
    values: Tensor
    outputs: Tensor


@torch.no_grad()
def value_maps(mixer: TokenMixer, like: Tensor) -> tuple[Tensor, Tensor]:
    """W_V `(H, D, width)` and W_O `(H, width, D)` of every query head, without biases.

    Read off what the projections do to every feature alone, so that any kind of them will do;
    heads that share keys and values have the same W_V.

    Args:
        mixer: attention or a headed mixer.
        like: any tensor `(..., D)` of the model's kind and device.

    Raises:
        RequestError: any other mixer.
    """
    D = like.shape[-1]
    each = torch.eye(D, dtype=like.dtype, device=like.device)[:, None]
    none = torch.zeros_like(each[:1])
    if isinstance(mixer, CausalAttention):
        values = mixer.project(each, 0)[2] - mixer.project(none, 0)[2]
        heads = mixer.project(none, 0)[0].shape[2]
        values = values.repeat_interleave(heads // values.shape[2], dim=2)
        merge = mixer.merge
    elif isinstance(mixer, Headed):
        heads, merge = len(mixer.mix.weight), mixer.o_proj
        values = (mixer.in_proj(each) - mixer.in_proj(none)).unflatten(-1, (heads, -1))
    else:
        raise RequestError(
            f"the {_name(mixer)} mixer has no OV circuit; only attention and headed mixers have: "
            "choose such a model, or lenses other than ov"
        )
    width = values.shape[-1]
    wide = torch.eye(heads * width, dtype=like.dtype, device=like.device)[:, None]
    outputs = merge(wide) - merge(torch.zeros_like(wide[:1]))
    return values[:, 0].transpose(0, 1), outputs[:, 0].unflatten(0, (heads, width))


def circuits(model: LanguageModel) -> list[Circuits]:
    """Of every layer that has them.

    Raises:
        RequestError: no layer has, with the mixer's name.
    """
    like = model.embedding.weight
    pairs = list(mixers_of(model))
    able = [(n, mixer) for n, mixer in pairs if isinstance(mixer, CausalAttention | Headed)]
    if not able:
        value_maps(pairs[0][1], like)
    return [
        Circuits(layer, _name(mixer), *value_maps(mixer, like.detach())) for layer, mixer in able
    ]


def copying(values: Tensor, outputs: Tensor, between: Tensor | None = None) -> Tensor:
    """Sum of eigenvalues over the sum of their sizes, `(H,)`: 1 copies, -1 takes away, 0 neither.

    The eigenvalues of W_V W_O M, apart from zeros, are those of W_O M W_V, which is small.

    Args:
        values: `(H, D, width)`.
        outputs: `(H, width, D)`.
        between: M `(D, D)`, from what is written to what is read; the identity when not given.
    """
    written = outputs if between is None else outputs @ between
    found = torch.linalg.eigvals((written @ values).cpu())
    return found.real.sum(dim=-1) / found.abs().sum(dim=-1).clamp(min=TINY)


def singular_values(values: Tensor, outputs: Tensor) -> Tensor:
    """Of W_V W_O, `(H, width)`, by way of its narrow factors."""
    _, left = torch.linalg.qr(values)
    _, right = torch.linalg.qr(outputs.transpose(1, 2))
    return torch.linalg.svdvals(left @ right.transpose(1, 2))


class Tokens(NamedTuple):
    """Tokens on the way into a layer and out of the model, both less their means.

    Attributes:
        read: the embedding through the layer's norm, `(V, D)`.
        written: direction that raises each token's logit, `(V, D)`.
    """

    read: Tensor
    written: Tensor


@torch.no_grad()
def token_space(model: LanguageModel, layer: int, rows: Tensor) -> Tokens:
    """Of the tokens `(N,)`; deeper layers read them as if nothing had been added before."""
    read = blocks_of(model)[layer - 1].norm_token(model.embed(rows)).float()
    written = readers(model)[rows].float()
    return Tokens(read - read.mean(dim=0), written - written.mean(dim=0))


def own_logits(found: Circuits, tokens: Tokens, rows: Tensor) -> Tensor:
    """Rank of a token's own logit for reading it, as a share of V, `(H, N)`; 0 is the largest."""
    ranks = []
    for values, outputs in zip(found.values.float(), found.outputs.float(), strict=True):
        logits = tokens.read[rows] @ values @ (outputs @ tokens.written.T)
        ranks.append(token_ranks(logits, rows) / max(1, logits.shape[1] - 1))
    return torch.stack(ranks)


def _name(mixer: TokenMixer) -> str:
    return type(mixer).__name__.lower().removeprefix("wrapped")


def draw(documents: Sequence[Document]) -> list[plots.Figure]:
    """Whether heads copy."""
    import altair as alt

    found = [r for r in records(documents, "ov") if r["measure"] in ("copying", "effective rank")]
    chart = (
        alt.Chart(plots.data(found))
        .mark_bar()
        .encode(
            x=alt.X("head:N", sort=plots.options(found, "head"), axis=alt.Axis(labelAngle=-60)),
            y=alt.Y("value:Q", title=None),
            row=alt.Row("measure:N", title=None, sort=plots.options(found, "measure")),
            tooltip=["head:N", "measure:N", alt.Tooltip("value:Q", format=".3f")],
        )
        .resolve_scale(y="independent")
        .properties(width=620, height=140)
    )
    return [
        plots.Figure(
            "ov-heads",
            "What do heads write for what they read?",
            "Copying score of W_V W_O (1: all eigenvalues positive, it writes what it reads), and "
            "its effective rank.",
            plots.by_model(chart, found),
        )
    ]


@lens(
    name="ov",
    title="What heads write",
    about="what each head writes for what it reads: does it copy?",
    figures=draw,
    order=10,
)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Eigenvalues and singular values of every head's W_V W_O.

    Raises:
        RequestError: a mixer without such a product.
    """
    model = checkpoint.model
    layers = circuits(model)
    device = model.embedding.weight.device
    generator = torch.Generator().manual_seed(request.seed)
    V = checkpoint.config.vocab_size
    kept = torch.randperm(V, generator=generator)[:VOCABULARY].sort().values.to(device)
    drawn = torch.randperm(len(kept), generator=generator)[:SAMPLE].to(device)
    figures: list[dict[str, Any]] = []
    labels, table = [], []
    for found in layers:
        values, outputs = found.values.float(), found.outputs.float()
        tokens = token_space(model, found.layer, kept)
        between = tokens.written.T @ tokens.read
        singular = singular_values(values, outputs)
        ranks = own_logits(found, tokens, drawn)
        columns = {
            "copying": copying(values, outputs),
            "copying of tokens": copying(values, outputs, between),
            "effective rank": effective_rank(singular),
            "participation": participation(singular),
            "own rank": ranks.mean(dim=1),
            "own first": (ranks == 0).float().mean(dim=1),
        }
        stacked = torch.stack([column.cpu().float() for column in columns.values()], dim=1)
        for head, row in enumerate(stacked.tolist()):
            part = f"head {head}"
            labels.append(f"{found.layer} {part}")
            table.append(row)
            figures += [
                {"figure": f"OV {name}", "layer": found.layer, "part": part, "value": value}
                for name, value in zip(columns, row, strict=True)
            ]
    measures = ("copying", "tokens", "effective rank", "participation", "own rank", "own first")
    return Finding(
        arrays={"ov": Named(torch.tensor(table), {"head": labels, "measure": measures})},
        figures=figures,
        notes={"width": layers[0].values.shape[-1], "mixer": layers[0].mixer},
    )
