"""The exact posterior over candidates: information in bits under noise and under quantisation.

- Under Gaussian noise of standard deviation s in each channel, y = f(truth) + s z, the posterior is
  softmax(log prior(v) - |y - f(v)|^2 / (2 s^2)). The information is H(prior) minus the mean of
  H(posterior) over draws of z.
- Under quantisation the posterior is the prior restricted to the candidates whose codes equal the
  truth's.

Either is known by the candidates' log-likelihoods, up to a constant, at each position.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

INTEGERS = {"int8": 8, "int6": 6, "int4": 4, "int2": 2}
FLOATS = {
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,  # Micikevicius et al. 2022, arXiv 2209.05433
}
QUANTISERS = (*FLOATS, *INTEGERS)
LOWEST = -1e4  # a finite logarithm for p = 0


def entropy(log_p: Tensor) -> Tensor:
    """Shannon entropy in bits of log probabilities, over the last dimension; p = 0 adds nothing."""
    return -(log_p.exp() * log_p.clamp(min=LOWEST)).sum(dim=-1) / math.log(2)


def joint(alone: Tensor, over: Callable[[Tensor], Tensor]) -> Tensor:
    """Figures of single positions `(N, S, ...)` taken together from distance 1 on; 0 by itself."""
    return torch.cat([alone[:, :1], over(alone[:, 1:])], dim=1)


def noise_evidence(difference: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over channels that all sizes of the noise share.

    Args:
        difference: `(V, S, C)`, the truth's outputs minus each candidate's.
        noise: `(draws, S, C)`, standard normal.

    Returns:
        `(S, V)`, the squared distance of each candidate's output from the truth's; and
        `(draws, S, V)`, the product of that difference with each draw of the noise.
    """
    by_position = difference.transpose(0, 1)  # (S, V, C)
    cross = by_position @ noise.permute(1, 2, 0)  # (S, V, draws)
    return by_position.square().sum(dim=-1), cross.permute(2, 0, 1).contiguous()


def fit_under_noise(squares: Tensor, cross: Tensor, size: Tensor) -> Tensor:
    """Log-likelihoods `(draws, S, V)` at one size of the noise at each position, `(S,)`, above 0.

    From what `noise_evidence` gives.
    """
    return -(squares / (2 * size[:, None].square()) + cross / size[:, None])


def fit_of_codes(same: Tensor) -> Tensor:
    """Log-likelihoods `(1, S, V)` of codes: `(V, S)`, whether a candidate's are the truth's."""
    return torch.zeros(1, *same.T.shape).to(same.device).masked_fill(~same.T, -torch.inf)


def information(fit: Tensor, priors: Tensor, reported: Sequence[int]) -> Tensor:
    """Information in bits, the mean over draws.

    Args:
        fit: `(draws, S, V)`, the candidates' log-likelihoods at S positions.
        priors: `(K, V)` probabilities.
        reported: positions whose figures are returned, R of them.

    Returns:
        `(2, K, R)`: of the one position; and of all positions from distance 1 to this one, of
        distance 0 of it alone.
    """
    log_priors, bits = priors.log(), []
    for known in (fit, joint(fit, lambda x: x.cumsum(dim=1))):
        shown = known[:, list(reported)]
        left = [entropy((shown + prior).log_softmax(dim=-1)).mean(dim=0) for prior in log_priors]
        bits.append(entropy(log_priors)[:, None] - torch.stack(left))
    return torch.stack(bits)


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
