"""OV circuits: what a head of attention writes for what it reads, wherever it looks.

Of a head h, W_V W_O `(D, D)`: does it write what it reads? Its eigenvalues say so (Elhage et al.
2021). A headed masked mixer has such circuits too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from arch import LanguageModel, TokenMixer
from arch.mixers import CausalAttention, Headed
from eval import RequestError, plots
from eval.lenses.lens import Documents, Finding, Request, lens
from eval.lenses.trace import mixer_name, mixers_of
from eval.models import Checkpoint
from eval.ranks import effective_rank

MEASURES = ("copying", "effective rank")
TINY = 1e-30


class Circuits(NamedTuple):
    """The heads of one layer."""

    layer: int  # the block's number, from 1
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
    return [Circuits(layer, *value_maps(mixer, like)) for layer, mixer in able or mixers[:1]]


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


def _draw(documents: Documents) -> list[plots.Figure]:
    rows = documents.records("ov")
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
    finding, labels, table = Finding(), [], []
    for heads in circuits(checkpoint.model):
        values, outputs = heads.values.float(), heads.outputs.float()
        ranks = effective_rank(singular_values(values, outputs)).cpu()
        for head, numbers in enumerate(zip(copying(values, outputs), ranks, strict=True)):
            named = {f"OV {name}": n for name, n in zip(MEASURES, numbers, strict=True)}
            finding.numbers(named, layer=heads.layer, part=f"head {head}")
            labels.append(f"{heads.layer} head {head}")
            table.append(torch.stack(numbers))
    finding.array("ov", torch.stack(table), {"head": labels, "measure": MEASURES})
    return finding
