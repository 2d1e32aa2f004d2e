"""What every sublayer, and every head or branch of a token mixer, adds directly to any logit.

The stream is a sum of writes, and the final norm with its scale held fixed is linear
(`readout.fixed_norm`), so that a logit is a sum of one number for each write and of constants
(Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021; nostalgebraist's direct
logit attribution).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arch import LanguageModel
from arch.mixers import CausalAttention, Headed, Parallel, SideBySide
from eval.lenses.readout import constants, fixed_norm
from eval.lenses.trace import Trace, blocks_of


@torch.no_grad()
def contributions(
    model: LanguageModel,
    traced: Trace,
    targets: Tensor,
    parts: tuple[list[str], Tensor] | None = None,
    centred: bool = False,
) -> tuple[list[str], Tensor]:
    """Every part's direct contribution to chosen logits.

    Args:
        model: the model that was traced.
        traced: its way.
        targets: `(B, T, K)` token ids: K logits of every position.
        parts: labels and vectors `(P, B, T, D)` that sum to the last stream; the trace's sublayers
            when not given.
        centred: whether each logit counts from the mean logit of the vocabulary: the constant that
            all logits share changes no probability.

    Returns:
        Labels, and `(P + constants, B, T, K)` whose sum over the first axis is the logits.

    Raises:
        RequestError: a final norm that is not known.
    """
    labels, vectors = (traced.labels, traced.parts) if parts is None else parts
    scaled = fixed_norm(model.norm, traced.streams[-1], vectors)
    rows = model.head.weight[targets]
    fixed = constants(model)
    biases = [bias[targets] for bias in fixed.values()]
    if centred:
        rows = rows - model.head.weight.mean(dim=0)
        biases = [b - bias.mean() for b, bias in zip(biases, fixed.values(), strict=True)]
    found = torch.einsum("pbtd,btkd->pbtk", scaled, rows)
    return [*labels, *fixed], torch.cat([found, *(bias[None] for bias in biases)])


@torch.no_grad()
def split_parts(model: LanguageModel, traced: Trace) -> tuple[list[str], Tensor]:
    """The trace's parts with every token mixer in its heads or branches, for `contributions`."""
    labels, vectors = list(traced.start), list(traced.start.values())
    for layer, block in enumerate(blocks_of(model), start=1):
        branches = split_mixer(block.token_mixer, block.norm_token(traced.streams[layer - 1]))
        mixed, changed = traced.writes[layer - 1]
        if branches:
            vectors += branches.values()
            labels += [f"{layer} {name}" for name in branches]
        else:
            vectors.append(mixed)
            labels.append(f"{layer} token mixer")
        vectors.append(changed)
        labels.append(f"{layer} channel mixer")
    return labels, torch.stack(vectors)


def split_mixer(mixer: Any, x: Tensor) -> dict[str, Tensor]:
    """A token mixer's output in parts that sum to it, by name; empty where it has none.

    Args:
        mixer: attention and headed mixers have heads, parallel ones branches, mixers that stand
            side by side are parts themselves. A bias of the output projection is a part too.
        x: what it reads, `(B, T, D)`.
    """
    if isinstance(mixer, SideBySide):
        return {
            f"mixer {i} {name}".rstrip(): part
            for i, one in enumerate(mixer.mixers)
            for name, part in (split_mixer(one, x) or {"": one(x)}).items()
        }
    if isinstance(mixer, CausalAttention):
        q, k, v = (part.transpose(1, 2) for part in mixer.project(x, 0))
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=mixer.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return _heads(y.transpose(1, 2), mixer.merge)
    if isinstance(mixer, Headed):
        y = mixer.mix(mixer.in_proj(x))
        return _heads(y.unflatten(-1, (len(mixer.mix.weight), -1)), mixer.o_proj)
    if isinstance(mixer, Parallel):
        return {f"branch {i}": part for i, part in enumerate(_branches(mixer, x))}
    return {}


def _heads(y: Tensor, merge: Any) -> dict[str, Tensor]:
    """Each head's part of a linear projection of all, `(B, T, H, width)` to H of `(B, T, D)`."""
    H = y.shape[2]
    alone = torch.eye(H, dtype=y.dtype, device=y.device)
    apart = torch.einsum("bthw,hg->hbtgw", y, alone).flatten(-2).contiguous()
    bias = merge(torch.zeros_like(apart[0, :1, :1]))
    found = {f"head {h}": part for h, part in enumerate(merge(apart) - bias)}
    return found | ({"projection bias": bias.expand_as(found["head 0"])} if bias.any() else {})


def _branches(mixer: Parallel, x: Tensor) -> list[Tensor]:
    weight, bias = mixer.mix.rows(0, x.shape[1])
    found = []
    for i, w in enumerate(weight):
        y = w.tril() @ x
        y = y if bias is None else y + bias[i][:, None]
        found.append(F.gelu(y) if mixer.activation == "gelu" else y)
    return found
