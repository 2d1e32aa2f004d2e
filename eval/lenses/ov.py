"""OV circuits: what a head of attention writes for what it reads, wherever it looks.

Of a head h, W_V W_O `(D, D)`, and as tokens see it, W_E W_V W_O W_U' `(V, V)`: does reading a token
raise that token? Its eigenvalues say so without the table being made (Elhage et al. 2021). A headed
masked mixer has such circuits too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from arch import LanguageModel, TokenMixer
from arch.mixers import CausalAttention, Headed
from eval import RequestError, plots
from eval.lenses.lens import Documents, Finding, Request, lens
from eval.lenses.trace import blocks_of, mixer_name, mixers_of, readers
from eval.models import Checkpoint
from eval.ranks import effective_rank, participation, token_ranks

VOCABULARY = 4096  # tokens, at most, that are read and written; they are drawn
SAMPLE = 256  # tokens whose logit for themselves is ranked
TINY = 1e-30


class Circuits(NamedTuple):
    """The heads of one layer."""

    layer: int  # the block's number, from 1
    mixer: str  # the token mixer's class, in small letters
    values: Tensor  # W_V, (H, D, width)
    outputs: Tensor  # W_O, (H, width, D)


@torch.no_grad()
def value_maps(mixer: TokenMixer, like: Tensor) -> tuple[Tensor, Tensor]:
    """W_V `(H, D, width)` and W_O `(H, width, D)` of every query head, without biases.

    Read off what the projections do to every feature alone, so that any kind of them will do;
    heads that share keys and values have the same W_V. `like` is any tensor `(..., D)` of the
    model's dtype and device.

    Raises:
        RequestError: neither attention nor a headed mixer.
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
            f"the {mixer_name(mixer)} mixer has no OV circuit; only attention and headed mixers "
            "have: choose such a model, or lenses other than ov"
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
    like, mixers = model.embedding.weight.detach(), list(mixers_of(model))
    able = [(n, mixer) for n, mixer in mixers if isinstance(mixer, CausalAttention | Headed)]
    return [
        Circuits(layer, mixer_name(mixer), *value_maps(mixer, like))
        for layer, mixer in able or mixers[:1]
    ]


def copying(values: Tensor, outputs: Tensor, between: Tensor | None = None) -> Tensor:
    """Sum of eigenvalues over the sum of their sizes, `(H,)`: 1 copies, -1 takes away, 0 neither.

    The eigenvalues of W_V W_O M, apart from zeros, are those of W_O M W_V, which is small. M
    `(D, D)`, between, leads from what is written to what is read: by default it is the identity.
    """
    written = outputs if between is None else outputs @ between
    eigenvalues = torch.linalg.eigvals((written @ values).cpu())
    return eigenvalues.real.sum(dim=-1) / eigenvalues.abs().sum(dim=-1).clamp(min=TINY)


def singular_values(values: Tensor, outputs: Tensor) -> Tensor:
    """Of W_V W_O, `(H, width)`, by way of its narrow factors."""
    _, inner = torch.linalg.qr(values)
    _, outer = torch.linalg.qr(outputs.transpose(1, 2))
    return torch.linalg.svdvals(inner @ outer.transpose(1, 2))


@torch.no_grad()
def token_space(model: LanguageModel, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens `(N,)` on the way into a layer and out of the model, less their means, `(N, D)` each.

    Read: the embedding through the layer's norm; deeper layers read it as if nothing had been added
    before. Written: the direction that raises each token's logit.
    """
    read = blocks_of(model)[layer - 1].norm_token(model.embed(rows)).float()
    written = readers(model)[rows].float()
    return read - read.mean(dim=0), written - written.mean(dim=0)


def own_logits(heads: Circuits, read: Tensor, written: Tensor, rows: Tensor) -> Tensor:
    """Rank of the logit of each of N tokens for reading it, as a share of V, `(H, N)`; 0 is first.

    All tokens on the way in are `(V, D)`, and so on the way out.
    """
    ranks = []
    for values, outputs in zip(heads.values.float(), heads.outputs.float(), strict=True):
        logits = read[rows] @ values @ (outputs @ written.T)
        ranks.append(token_ranks(logits, rows) / max(1, logits.shape[1] - 1))
    return torch.stack(ranks)


def _draw(documents: Documents) -> list[plots.Figure]:
    shown = ("copying", "effective rank")
    rows = [r for r in documents.records("ov") if r["measure"] in shown]
    drawn = plots.bars(rows, "head", None, row="measure", size=(620, 140), angle=-60)
    chart = drawn | {"resolve": {"scale": {"y": "independent"}}}
    return [
        plots.Figure(
            "ov-heads",
            "What do heads write for what they read?",
            "Copying score of W_V W_O (1: all eigenvalues positive, it writes what it reads), and "
            "its effective rank.",
            plots.by_model(chart, rows),
        )
    ]


@lens("ov", "What heads write", figures=_draw, order=10)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """What each head writes for what it reads: does it copy?"""
    model, V = checkpoint.model, checkpoint.config.vocab_size
    layers, device = circuits(model), model.embedding.weight.device
    generator = torch.Generator().manual_seed(request.seed)
    kept = torch.randperm(V, generator=generator)[:VOCABULARY].sort().values.to(device)
    drawn = torch.randperm(len(kept), generator=generator)[:SAMPLE].to(device)
    finding, labels, table = Finding(), [], []
    for heads in layers:
        values, outputs = heads.values.float(), heads.outputs.float()
        read, written = token_space(model, heads.layer, kept)
        singular = singular_values(values, outputs)
        ranks = own_logits(heads, read, written, drawn)
        columns = {
            "copying": copying(values, outputs),
            "copying of tokens": copying(values, outputs, written.T @ read),
            "effective rank": effective_rank(singular),
            "participation": participation(singular),
            "own rank": ranks.mean(dim=1),
            "own first": (ranks == 0).float().mean(dim=1),
        }
        for head in range(len(ranks)):
            numbers = {f"OV {name}": column[head] for name, column in columns.items()}
            finding.numbers(numbers, layer=heads.layer, part=f"head {head}")
            labels.append(f"{heads.layer} head {head}")
        table.append(torch.stack([column.cpu().float() for column in columns.values()], dim=1))
    measures = ("copying", "tokens", "effective rank", "participation", "own rank", "own first")
    finding.array("ov", torch.cat(table), {"head": labels, "measure": measures})
    finding.notes |= {"width": layers[0].values.shape[-1], "mixer": layers[0].mixer}
    return finding
