"""How probable recovered tokens are whose outputs agree with nothing to rounding.

Noise, a coarse quantisation or slightly other weights leave a captured output nearer to its own
token's than to any other's, but at no rounding distance. What is compared is the direction, as rows
may have been shrunk, normed or clipped. Under a normal law of a spread that is not known, the
likelihood of a token falls with its output's distance, to the power of the independent directions.
If no token is right, the nearest token is hardly nearer than the next ones, so they share the
probability. The same holds for rows of zeros and for the mean of all outputs. Where two outputs are
mixed, as of averaged prompts, either may be the nearest: none of them is likely.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from arch import State
from eval.captured.certainty.rivals import MIXED, RIVALS, find_likeliest, nearest_rows
from eval.inversion.problem import Problem
from eval.models.memory import candidates_at_once
from eval.sites.circuit import Circuit

LIKELY_PROBABILITY = 0.99
"""Probability from which a token is called likely."""
DOUBTFUL = 0.5
"""Probability of a token that something else speaks against, at most; above it one is probable."""
WHOLE = 8192  # tokens of a vocabulary that is run whole; of a larger one as many are drawn
MOST_DIRECTIONS = 32  # that count: by more, what is no output is near to some token's
FEWEST_POSITIONS = 3  # of a prompt: of fewer no token is called likely by its distance


@torch.no_grad()
def token_probabilities(
    problem: Problem, circuit: Circuit, values: Tensor, tokens: Tensor, wanted: Tensor,
    doubtful: Tensor,
) -> Tensor:  # fmt: skip
    """The probability of each answered token, `(B, T)`; NaN where it is not wanted.

    Where not all tokens are run, those whose outputs may be as near, or may be mixed in, are run in
    any case: those of the nearest rows, and those that the read-back thinks likeliest.

    Args:
        problem: that was solved; its slice has the channels shown.
        circuit: the site that was captured.
        values: the outputs captured, `(B, T, width)`.
        tokens: the answer, `(B, T)`.
        wanted: positions whose token is asked about, `(B, T)`; their own outputs are known.
        doubtful: these, and hidden positions whose token nothing proves, `(B, T)`.
    """
    found, shown = torch.full(tokens.shape, math.nan), problem.slice
    V, device = len(circuit.vocabulary), tokens.device
    drawn = torch.randperm(V, generator=torch.Generator().manual_seed(0))[:WHOLE].to(device)
    near, known = tokens.new_empty(*tokens.shape, 0), dict[int, Tensor]()
    if V > WHOLE and bool(wanted.any()):
        near = nearest_rows(circuit, tokens)
        known = find_likeliest(problem, tokens, RIVALS, MIXED)
    state, before = None, 0
    for t in range(tokens.shape[1]):
        if not wanted[:, t].any():
            continue
        if t > before:
            state, before = circuit.prefix(tokens[:, before:t], state), t
        beside = torch.cat([near[:, t], known.get(t, near[:, t, :0])], dim=1).sort(dim=1).values
        others = torch.cat([drawn.repeat(len(tokens), 1), beside], dim=1)
        ran = torch.cat([tokens[:, t, None], others], dim=1)
        outputs = run_candidates(circuit, ran, state)
        for row in wanted[:, t].nonzero()[:, 0].tolist():
            new = others[row] != tokens[row, t]  # each token counts once
            new[: len(drawn)] &= ~torch.isin(drawn, beside[row])
            new[len(drawn) + 1 :] &= beside[row, 1:] != beside[row, :-1]
            candidates = shown.narrow(torch.cat([outputs[row, :1], outputs[row, 1:][new]]))
            target, chosen = shown.narrow(values[row, t]), int(new[len(drawn) :].sum())
            found[row, t] = probability(candidates, target, V, chosen)
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


def run_candidates(circuit: Circuit, tokens: Tensor, state: State | None) -> Tensor:
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
        chosen: others, the last ones, that were not drawn: they stand for no other token.
    """
    outputs, target = outputs.double(), target.double()
    mean = outputs[: len(outputs) - chosen].mean(dim=0)
    centred = outputs - mean, target - mean, searched, chosen
    found = min(
        _likelihood_fraction(outputs, target, searched, chosen), _likelihood_fraction(*centred)
    )
    return DOUBTFUL if found > DOUBTFUL and _is_mixed(*centred) else found


def _likelihood_fraction(outputs: Tensor, target: Tensor, searched: int, chosen: int) -> float:
    """The fraction of the first of `(N, C)` outputs in the likelihood of a target's direction."""
    tiny = torch.finfo(outputs.dtype).tiny
    outputs, target = normalize(outputs, dim=1), normalize(target, dim=0)
    squares = (outputs - target).square().sum(dim=1).clamp(min=tiny)
    count = len(outputs) - chosen
    centred = outputs[:count] - outputs[:count].mean(dim=0)
    gram = centred.T @ centred if len(centred) > centred.shape[1] else centred @ centred.T
    directions = float(gram.trace() ** 2 / gram.square().sum().clamp(min=tiny))
    power = min(max(directions - 1, 0), MOST_DIRECTIONS) / 2  # on a sphere there is one less
    others = (squares[0] / squares).pow(power)
    drawn = (searched - 1 - chosen) * float(others[1:count].mean())
    return 1 / (1 + float(others[count:].sum()) + drawn)


def _is_mixed(outputs: Tensor, target: Tensor, searched: int, chosen: int) -> bool:
    """Whether a target is the first of `(N, C)` outputs and another, of half its weight or more.

    What the first leaves of the target has then the direction of what it leaves of the other.
    """
    first = outputs[0] / outputs[0].norm()
    left, rest = (x - (x @ first)[..., None] * first for x in (outputs[1:], target))
    second = int(cosine_similarity(left, rest[None]).argmax())
    chosen -= int(second >= len(left) - chosen)
    left = torch.cat([left[second, None], left[:second], left[second + 1 :]])
    weight = rest @ left[0] / left[0].square().sum()
    own = (target - weight * outputs[1 + second]) @ first / outputs[0].norm()
    return bool(weight > own / 2) and _likelihood_fraction(left, rest, searched, chosen) > DOUBTFUL


def _find_unexplained(probabilities: list[float], doubtful: list[bool]) -> int:
    """The position from which on a prompt's tokens are not explained; its length if all are.

    Behind its last proved token a prompt may end, and another begin: those positions are asked on
    their own, where they are `FEWEST_POSITIONS` or more.
    """
    if not _is_explained(probabilities, sum(doubtful)):
        return 0
    end = len(doubtful) - [*doubtful[::-1], False].index(False)
    rest = probabilities[end:]
    unexplained = len(rest) >= FEWEST_POSITIONS and not _is_explained(rest, len(rest))
    return end if unexplained else len(probabilities)


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
    probable = sum(value > DOUBTFUL for value in known)
    return len(known) >= FEWEST_POSITIONS and 2 * probable > len(known)
