"""Many variants of one prompt in a single pass: what occlusion and patching are made of.

A causal model computes the same as for the prompt itself at every position before the first one
that a variant changes, so nothing is computed there twice but the token mixers' sums.
"""

import torch
from torch import Tensor

from arch import LanguageModel
from eval.errors import RequestError
from eval.lenses.trace import blocks_of


def run_variants(
    model: LanguageModel, streams: Tensor, first: Tensor, layer: int, position: int
) -> Tensor:
    """Logits at one position, of variants of one prompt.

    Args:
        model: any language model.
        streams: `(R, T, D)` after block `layer`, 0 for the embeddings; row 0 is the prompt itself.
        first: `(R,)` each row is like row 0 before this position; 0 for row 0.
        layer: the blocks that have run.
        position: where logits are read; what comes after it is left out.

    Returns:
        `(R, V)`.

    Raises:
        RequestError: more positions than the model's context.
    """
    x = streams[:, : position + 1]
    changed = torch.arange(position + 1, device=x.device) >= first[:, None]
    changed[0] = True
    x = enter(model, x) if layer == 0 else x
    left = blocks_of(model)[layer:]
    for block in left[:-1]:
        mixed = block.token_mixer(block.norm_token(x))
        after = block.combine(x[changed], mixed[changed])
        x = after[: position + 1].repeat(len(x), 1, 1)
        x[changed] = after
    for block in left[-1:]:
        mixed = block.token_mixer(block.norm_token(x))
        x = block.combine(x[:, -1:], mixed[:, -1:])
    return model.logits(x[:, -1:])[:, 0]


def enter(model: LanguageModel, embeddings: Tensor) -> Tensor:
    """What the first block reads, for whole prompts `(B, T, D)`.

    Raises:
        RequestError: more positions than the model's context.
    """
    length, context = embeddings.shape[1], model.config.context
    if length > context:
        raise RequestError(
            f"a prompt of {length} tokens is longer than the model's context of {context}; "
            "shorten it"
        )
    return model.with_positions(embeddings)
