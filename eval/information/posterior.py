"""The exact posterior over candidates: information in bits under noise and under quantisation.

- Under Gaussian noise of standard deviation s in each channel, y = f(truth) + s z, the posterior is
  softmax(log prior(v) - |y - f(v)|^2 / (2 s^2)). The information is H(prior) minus the mean of
  H(posterior) over draws of z.
- Under quantisation the posterior is the prior restricted to the candidates whose codes equal the
  truth's.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

INTEGERS = {"int8": 8, "int6": 6, "int4": 4, "int2": 2}
FLOATS = {
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,  # Micikevicius et al. 2022, arXiv 2209.05433
}
QUANTISERS = (*FLOATS, *INTEGERS)
LN2 = math.log(2)
LOWEST = -1e4  # a finite logarithm for p = 0


class Bits(NamedTuple):
    """Information in bits at each of R reported distances, `(..., R)` each.

    Attributes:
        alone: of the one position.
        cumulative: of all positions from distance 1 to this one; of distance 0, of it alone.
    """

    alone: Tensor
    cumulative: Tensor


def entropy(log_p: Tensor) -> Tensor:
    """Shannon entropy in bits of log probabilities, over the last dimension; p = 0 adds nothing."""
    return -(log_p.exp() * log_p.clamp(min=LOWEST)).sum(dim=-1) / LN2


class Evidence(NamedTuple):
    """What draws of unit noise say for each candidate, whatever the noise's size.

    Attributes:
        squares: `(S, V)`, the squared distance of each candidate's output from the truth's.
        cross: `(draws, S, V)`, the product of that difference with each draw of the noise.
    """

    squares: Tensor
    cross: Tensor


def noise_evidence(difference: Tensor, noise: Tensor) -> Evidence:
    """Sums over channels that all sizes of the noise share.

    Args:
        difference: `(V, S, C)`, the truth's outputs minus each candidate's.
        noise: `(draws, S, C)`, standard normal.
    """
    by_position = difference.transpose(0, 1)  # (S, V, C)
    cross = by_position @ noise.permute(1, 2, 0)  # (S, V, draws)
    return Evidence(by_position.square().sum(dim=-1), cross.permute(2, 0, 1).contiguous())


def joint(alone: Tensor, over: Callable[[Tensor], Tensor]) -> Tensor:
    """Figures of single positions `(N, S, ...)` taken together from distance 1 on; 0 by itself."""
    return torch.cat([alone[:, :1], over(alone[:, 1:])], dim=1)


def bits_under_noise(
    known: Evidence, size: Tensor, priors: Tensor, reported: Sequence[int]
) -> Bits:
    """Information at one size of the noise, the mean over its draws.

    Args:
        known: of S positions and V candidates.
        size: `(S,)`, standard deviation of the noise in each channel at each position, above 0.
        priors: `(K, V)` probabilities.
        reported: positions whose figures are returned, R of them.

    Returns:
        `(K, R)` each.
    """
    fit = -(known.squares / (2 * size[:, None].square()) + known.cross / size[:, None])
    cumulative = joint(fit, lambda x: x.cumsum(dim=1))
    log_priors = priors.log()

    def gained(x: Tensor) -> Tensor:
        x = x[:, list(reported)]
        rows = [entropy((x + prior).log_softmax(dim=-1)).mean(dim=0) for prior in log_priors]
        return entropy(log_priors)[:, None] - torch.stack(rows)

    return Bits(gained(fit), gained(cumulative))


def bits_of_codes(same: Tensor, priors: Tensor, reported: Sequence[int]) -> Bits:
    """Information where the codes are known exactly.

    Args:
        same: `(V, S)`, whether a candidate's codes are all the truth's.
        priors: `(K, V)` probabilities.
        reported: positions whose figures are returned, R of them.

    Returns:
        `(K, R)` each.
    """
    cumulative = joint(same, lambda x: x.cumprod(dim=1).bool())
    log_priors = priors.log()

    def gained(same: Tensor) -> Tensor:
        shared = same[:, list(reported)].T  # (R, V)
        log_p = torch.where(shared, log_priors[:, None], -torch.inf).log_softmax(dim=-1)
        return entropy(log_priors)[:, None] - entropy(log_p)

    return Bits(gained(same), gained(cumulative))


def quantise(outputs: Tensor, quantiser: str, largest: Tensor) -> Tensor:
    """Outputs rounded to nearest, `(..., C)` as given: equal values have equal codes.

    Integers are symmetric, with one scale for each channel: b bits take 2^b - 1 values from minus
    to plus the channel's largest; what lies outside takes the outermost. `fp8` (e4m3) is scaled
    alike, its largest value to the channel's; `bf16` is not scaled.

    Args:
        outputs: in fp32 or above.
        quantiser: one of `QUANTISERS`.
        largest: `(C,)`, the largest magnitude of each channel in a calibration text.
    """
    if quantiser == "bf16":
        return outputs.bfloat16()
    top = 2 ** (INTEGERS[quantiser] - 1) - 1 if quantiser in INTEGERS else 448.0
    scale = largest.clamp(min=torch.finfo(outputs.dtype).tiny) / top
    scaled = (outputs / scale).clamp(-top, top)
    return scaled.round() if quantiser in INTEGERS else scaled.to(FLOATS[quantiser]).float()
