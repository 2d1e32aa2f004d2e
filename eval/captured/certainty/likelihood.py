"""How probable recovered tokens are whose outputs agree with nothing to rounding.

Noise, a coarse quantisation or slightly other weights leave a captured output nearer to its own
token's than to any other's, but at no rounding distance. What is compared is the direction, as rows
may have been shrunk, normed or clipped. Under a normal law of a spread that is not known, the
likelihood of a token falls with its output's distance, to the power of the independent directions.
Where no token is right, the nearest is hardly nearer than the next ones, and shares with them. So
it is from zeros and from the mean of all outputs, towards which an average of many lies. Where two
outputs are mixed, as of averaged prompts, either may be the nearest: none of them is likely.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from arch import State
from eval.captured.certainty.rivals import nearest_rows
from eval.models.memory import candidates_at_once
from eval.sites.circuit import Circuit
from eval.sites.slices import Slice

LIKELY = 0.99
"""Probability from which a token is called likely."""
DOUBTFUL = 0.5
"""Probability of a token that something else speaks against, at most; above it one is probable."""
WHOLE = 8192  # tokens of a vocabulary that is run whole; of a larger one as many are drawn
DIRECTIONS = 32  # that count, at most: by more, what is no output is near to some token's
LEAST = 3  # positions of a prompt: of fewer no token is called likely by its distance


@torch.no_grad()
def token_probabilities(
    circuit: Circuit, shown: Slice, values: Tensor, tokens: Tensor, wanted: Tensor, doubtful: Tensor
) -> Tensor:
    """The probability of each answered token, `(B, T)`; NaN where it is not wanted.

    Args:
        circuit: the site that was captured.
        shown: the channels shown.
        values: the outputs captured, `(B, T, width)`.
        tokens: the answer, `(B, T)`.
        wanted: positions whose token is asked about, `(B, T)`; their own outputs are known.
        doubtful: these, and hidden positions whose token nothing proves, `(B, T)`.
    """
    found = torch.full(tokens.shape, math.nan)
    V, device = len(circuit.vocabulary), tokens.device
    drawn = torch.randperm(V, generator=torch.Generator().manual_seed(0))[:WHOLE].to(device)
    # Where not all are run, a token's twin, whose outputs are the same, is run in any case.
    near = nearest_rows(circuit, tokens) if V > WHOLE else tokens.new_empty(*tokens.shape, 0)
    state, before = None, 0
    for t in range(tokens.shape[1]):
        if not wanted[:, t].any():
            continue
        if t > before:
            state, before = circuit.prefix(tokens[:, before:t], state), t
        others = torch.cat([near[:, t], drawn.repeat(len(tokens), 1)], dim=1)
        outputs = _run(circuit, torch.cat([tokens[:, t, None], others], dim=1), state)
        for row in wanted[:, t].nonzero()[:, 0].tolist():
            rivals = outputs[row, 1:][others[row] != tokens[row, t]]
            candidates = shown.narrow(torch.cat([outputs[row, :1], rivals]))
            target = shown.narrow(values[row, t])
            found[row, t] = probability(candidates, target, V, chosen=near.shape[2])
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


def probability(outputs: Tensor, target: Tensor, searched: int, chosen: int = 0) -> float:
    """The probability that the first of `(N, C)` outputs, and none other, is behind a target.

    Args:
        outputs: of the answered token, and of others, `(N, C)`.
        target: captured, `(C,)`.
        searched: tokens of which the first is the nearest; those that were not run count as others.
        chosen: others, the first ones, that were not drawn: they stand for no other token.
    """
    outputs, target = outputs.double(), target.double()
    mean = outputs.mean(dim=0)
    centred = outputs - mean, target - mean, searched
    found = min(
        _likelihood_fraction(outputs, target, searched, chosen),
        _likelihood_fraction(*centred, chosen),
    )
    return DOUBTFUL if found > DOUBTFUL and _is_mixed(*centred) else found


def _likelihood_fraction(outputs: Tensor, target: Tensor, searched: int, chosen: int = 0) -> float:
    """The fraction of the first of `(N, C)` outputs in the likelihood of a target's direction."""
    tiny = torch.finfo(outputs.dtype).tiny
    outputs, target = normalize(outputs, dim=1), normalize(target, dim=0)
    squares = (outputs - target).square().sum(dim=1).clamp(min=tiny)
    centred = outputs - outputs.mean(dim=0)
    gram = centred.T @ centred if len(centred) > centred.shape[1] else centred @ centred.T
    directions = float(gram.trace() ** 2 / gram.square().sum().clamp(min=tiny))
    power = min(max(directions - 1, 0), DIRECTIONS) / 2  # on a sphere there is one less
    others = (squares[0] / squares[1:]).pow(power)
    drawn = (searched - 1 - chosen) * float(others[chosen:].mean())
    return 1 / (1 + float(others[:chosen].sum()) + drawn)


def _is_mixed(outputs: Tensor, target: Tensor, searched: int) -> bool:
    """Whether a target is the first of `(N, C)` outputs and another, of half its weight or more.

    What the first leaves of the target has then the direction of what it leaves of the other.
    """
    first = outputs[0] / outputs[0].norm()
    left, rest = (x - (x @ first)[..., None] * first for x in (outputs[1:], target))
    second = int(cosine_similarity(left, rest[None]).argmax())
    left[[0, second]] = left[[second, 0]]
    weight = rest @ left[0] / left[0].square().sum()
    own = (target - weight * outputs[1 + second]) @ first / outputs[0].norm()
    return bool(weight > own / 2) and _likelihood_fraction(left, rest, searched) > DOUBTFUL


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
