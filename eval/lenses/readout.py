"""How a stream is read as logits: the final norm with its scale held fixed, then the head.

A norm divides by a number that depends on the whole vector. With that number held at what it is,
LayerNorm (a subtraction of the mean, a division, weights, biases) and RMSNorm are linear, and a sum
of vectors is read as the sum of their readings.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from arch import LanguageModel
from eval.errors import RequestError


def fixed_norm(norm: Any, x: Tensor, writes: Tensor) -> Tensor:
    """What a norm makes of parts of x, its scale as x sets it and its bias left out.

    Args:
        norm: LayerNorm, RMSNorm of torch or transformers, or identity.
        x: `(..., D)`.
        writes: `(..., D)` that broadcast against x; parts that sum to x give parts that sum to
            `norm(x) - bias`.

    Raises:
        RequestError: a norm of another kind.
    """
    if isinstance(norm, nn.Identity):
        return writes
    if isinstance(norm, nn.LayerNorm):
        scale = torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + norm.eps)
        writes = writes - writes.mean(-1, keepdim=True)
    else:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + _eps(norm, x))
    writes = writes * scale
    return writes if norm.weight is None else writes * norm.weight


def constants(model: LanguageModel) -> dict[str, Tensor]:
    """What every logit has whatever the stream is, `(V,)` by name: biases of norm and head."""
    found = {}
    bias = getattr(model.norm, "bias", None)
    if bias is not None:
        found["norm bias"] = model.head.weight @ bias
    if model.head.bias is not None:
        found["head bias"] = model.head.bias
    return found


def readers(model: LanguageModel) -> Tensor:
    """The direction of the stream that each token's logit reads, `(V, D)`.

    The rows of the output embedding, times the final norm's weights; under a LayerNorm, which
    takes the mean away, their own mean taken away.

    Raises:
        RequestError: a final norm that is not known.
    """
    rows, norm = model.head.weight.detach(), cast(Any, model.norm)
    if isinstance(norm, nn.Identity):
        return rows
    centred = isinstance(norm, nn.LayerNorm)
    if not centred:
        _eps(norm, rows)
    if norm.weight is not None:
        rows = rows * norm.weight
    return rows - rows.mean(-1, keepdim=True) if centred else rows


def _eps(norm: nn.Module, x: Tensor) -> float:
    if "RMSNorm" not in type(norm).__name__:
        raise RequestError(
            f"the final norm is a {type(norm).__name__}; only LayerNorm, RMSNorm and none can be "
            "read part by part"
        )
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    return torch.finfo(x.dtype).eps if eps is None else eps
