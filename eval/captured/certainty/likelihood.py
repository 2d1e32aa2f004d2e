"""How probable recovered tokens are whose outputs agree with nothing to rounding.

Noise, a coarse quantisation or slightly other weights leave a captured output nearer to its own
token's than to any other's, but at no rounding distance. The spread is estimated from the answer
itself: its squared distance in each independent direction. Under a normal law of that spread each
token that was run has a likelihood; and so has "none of them", of which the nearest token is no
nearer than the nearest of as many tokens drawn at random would be.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from arch import State
from eval.models.memory import candidates_at_once
from eval.sites.circuit import Circuit
from eval.sites.slices import Slice

LIKELY = 0.99
"""Probability from which a token is called likely."""
DOUBTFUL = 0.5
"""Probability of a token that something else speaks against, at most; above it one is probable."""
WHOLE = 8192  # tokens of a vocabulary that is run whole; of a larger one as many are drawn
CHANCE = 2.4, 0.45
"""Location and scale of a Gumbel law: how many deviations below the mean of all log distances the
least lies, of targets that are unrelated. Measured on rotated and permuted outputs and on normal
draws of their mean and covariance, of a vocabulary of `MEASURED`; of a larger one the least lies
further below, by the law's own rule for more draws."""
MEASURED = 4096
NEARER = 0.9  # of the squared distance from the target of all outputs' mean, or of zeros
CENTRAL = 1 / 3  # of the others' distance from that mean, at least: a likely token's own output
NARROW = 4  # numbers of an output: by fewer no token is likely, as some lies near to each
LEAST = 3  # positions of a prompt: of fewer no token is called likely by its distance


@torch.no_grad()
def token_probabilities(
    circuit: Circuit, values: Tensor, shown: Slice, tokens: Tensor, wanted: Tensor, doubtful: Tensor
) -> Tensor:
    """The probability of each answered token, `(B, T)`; NaN where it is not wanted.

    Args:
        circuit: the site that was captured.
        values: the outputs captured, `(B, T, width)`.
        shown: the channels shown.
        tokens: the answer, `(B, T)`.
        wanted: positions whose token is asked about, `(B, T)`; their own outputs are known.
        doubtful: these, and hidden positions whose token nothing proves, `(B, T)`.
    """
    found = torch.full(tokens.shape, math.nan)
    V, device = len(circuit.vocabulary), tokens.device
    drawn = torch.randperm(V, generator=torch.Generator().manual_seed(0))[:WHOLE].to(device)
    state, before = None, 0
    for t in range(tokens.shape[1]):
        if not wanted[:, t].any():
            continue
        if t > before:
            state, before = circuit.prefix(tokens[:, before:t], state), t
        outputs = _run(
            circuit, torch.cat([tokens[:, t, None], drawn.repeat(len(tokens), 1)], 1), state
        )
        for row in wanted[:, t].nonzero()[:, 0].tolist():
            others = shown.narrow(outputs[row, 1:][drawn != tokens[row, t]])
            own = shown.narrow(outputs[row, :1])
            target = shown.narrow(values[row, t])
            found[row, t] = probability(torch.cat([own, others]), target, V)
    for row, of_row in enumerate(zip(found.tolist(), doubtful.tolist(), strict=True)):
        found[row, _find_unexplained(*of_row) :].clamp_(max=DOUBTFUL)
    return found


def limit_chances(
    probabilities: Sequence[float | None], proved: Sequence[bool]
) -> list[float | None]:
    """A prompt's probabilities, none above one half where most positions are not explained.

    Those of proved tokens stay as they are.
    """
    in_doubt = [None if sure else value for value, sure in zip(probabilities, proved, strict=True)]
    known = [math.nan if value is None else value for value in in_doubt]
    start = _find_unexplained(known, [value is not None for value in in_doubt])
    return [
        value if doubt is None or t < start else min(doubt, DOUBTFUL)
        for t, (value, doubt) in enumerate(zip(probabilities, in_doubt, strict=True))
    ]


def _run(circuit: Circuit, tokens: Tensor, state: State | None) -> Tensor:
    """The outputs of `(B, N)` candidates for the next position, `(B, N, width)`."""
    size = max(1, candidates_at_once(circuit.model) // len(tokens))
    return torch.cat([
        circuit.step(circuit.embed(part.flatten())[:, None], state).view(*part.shape, -1)
        for part in tokens.split(size, dim=1)
    ], dim=1)  # fmt: skip


def probability(outputs: Tensor, target: Tensor, searched: int) -> float:
    """The probability that the first of `(N, C)` outputs, and none other, is behind a target.

    It is no more than one half where the first is hardly nearer to the target than the mean of all
    or an output of zeros is, or is itself far nearer to that mean than others are: such a token, as
    one that only pads, is the nearest to whatever was shrunk, as logits at a temperature or normed
    rows are. Nor where another output has more nearly the target's direction, as where numbers were
    clipped, nor where outputs have fewer than `NARROW` numbers.

    Args:
        outputs: of the answered token, and of others, `(N, C)`.
        target: captured, `(C,)`.
        searched: tokens of which the first is the nearest.
    """
    outputs, target = outputs.double(), target.double()
    squares = (outputs - target).square().sum(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    centred = outputs - outputs.mean(dim=0)
    gram = centred.T @ centred if len(centred) > centred.shape[1] else centred @ centred.T
    directions = float(gram.trace() ** 2 / gram.square().sum())
    ratio = squares / squares[0]
    among = 1 / float((-directions / 2 * (ratio - 1)).exp().sum())
    logs = squares[1:].log()
    deviations = float((logs.mean() - squares[0].log()) / logs.std())
    found = among * (1 - _by_chance(deviations, searched))
    mean = outputs[1:].mean(dim=0)
    apart = (outputs - mean).norm(dim=1)
    nearest = torch.minimum((mean - target).square().sum(), target.square().sum())
    far = bool(squares[0] > NEARER * nearest)
    central = bool(apart[0] < CENTRAL * apart[1:].median())
    aside = int(cosine_similarity(outputs, target[None]).argmax()) > 0
    return min(found, DOUBTFUL) if far or central or aside or len(target) < NARROW else found


def _by_chance(deviations: float, searched: int) -> float:
    """The probability that the nearest of many unrelated outputs lies as far below their mean."""
    location, scale = CHANCE
    location += scale * math.log(max(searched, MEASURED) / MEASURED)
    return -math.expm1(-math.exp(-(deviations - location) / scale))


def _find_unexplained(probabilities: list[float], doubtful: list[bool]) -> int:
    """The position from which on a prompt's tokens are not explained; its length if all are.

    Behind its last proved token a prompt may end, and another begin: those positions are asked on
    their own, where they are `LEAST` or more.
    """
    if not _is_explained(probabilities, sum(doubtful)):
        return 0
    end = len(doubtful) - [*doubtful[::-1], False].index(False)
    rest = probabilities[end:]
    return end if len(rest) >= LEAST and not _is_explained(rest, len(rest)) else len(probabilities)


def _is_explained(probabilities: list[float], doubts: int) -> bool:
    """Whether a prompt's tokens are probable at most of its positions, where most are in doubt.

    An unrelated tensor comes near some token at a position here and there, and so does an output
    behind hidden tokens that are wrong.

    Args:
        probabilities: of its tokens, NaN where no output tells.
        doubts: positions whose token nothing proves.
    """
    known = [value for value in probabilities if not math.isnan(value)]
    if 2 * doubts <= len(probabilities):
        return True
    return len(known) >= LEAST and 2 * sum(value > DOUBTFUL for value in known) > len(known)
