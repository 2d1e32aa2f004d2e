"""How sure recovered tokens are: certain, likely or unknown, by what else fits as well."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from eval.captured.captured import Captured, find_zeros
from eval.captured.certainty.agreement import Agreement, are_told, find_evidence
from eval.captured.certainty.likelihood import LIKELY_PROBABILITY, WHOLE, token_probabilities
from eval.captured.certainty.rivals import NAMED, Beside, find_alike
from eval.captured.certainty.verified import BESIDE, Found, Verified, verify
from eval.inversion.problem import Problem
from eval.messages import say_of_model
from eval.models.memory import candidates_at_once
from eval.sites.circuit import uncertified
from eval.sites.rounding import Tolerance, capture

SWAPS = 512  # pairs of hidden positions whose tokens change places, the nearest pairs first
LEAST_FLOOR = 2  # units of rounding of a position's root mean square: a floor of any of its numbers
UNSETTLED = 3  # tolerances that rivals must miss by in a prompt where several tokens fit somewhere
MOST_FALSE_MATCHES = 0.01  # other tokens expected to agree by chance with outputs that tell some
PAIRS = 64  # of tokens, drawn, whose second outputs show how far outputs of a site spread
CHOICES = 4  # times that tokens are chosen among those that agree, until they stay


@dataclass(frozen=True)
class Certified:
    """An answer, and how sure each of its tokens is.

    Attributes:
        verified: the answer, with likelier tokens in place of others that fit as well.
        certificates: of each prompt and position, why the token is certain; None where it is not.
        alike: of each prompt, the positions where other tokens fit as well, with those.
        probabilities: of tokens that are not certain, `(B, T)`; NaN where none was asked for.
        left_out: of each prompt, the positions at its end that no token fits.
    """

    verified: Verified
    certificates: list[list[str | None]]
    alike: list[dict[int, list[int]]]
    probabilities: Tensor
    left_out: list[list[int]]


def certify(captured: Captured, found: Found) -> Certified:
    """Says how sure each token is, and takes likelier ones where stored numbers fit several."""
    circuit, stored, T = captured.circuit, captured.stored, captured.length
    tokens, own = found.verified.tokens, found.verified.outputs
    rounding = found.verified.rounding
    if found.problem.circuit is not circuit:
        ((own, rounding),) = capture([circuit], tokens)
        rounding = torch.maximum(rounding, captured.arithmetic.change(circuit, tokens, own))
    # A small number may be the difference of large ones, which another order of sums moves more.
    ordinary = own.square().mean(dim=-1, keepdim=True).sqrt()
    rounding = torch.maximum(rounding, LEAST_FLOOR * torch.finfo(torch.float32).eps * ordinary)
    tolerance = Tolerance(rounding, stored.step, torch.zeros_like(rounding))
    empty = find_zeros(stored)
    shown = torch.zeros_like(empty)
    shown[:, captured.positions] = True
    # Zeros are no evidence of a token, though that of an embedding of zeros fits them.
    empty = shown & empty
    agreement = Agreement(circuit, stored, tolerance, captured.visible, shown & ~empty)
    settled = _settle(captured, found, agreement, tokens)
    evidence = find_evidence(settled.fits, captured.positions, T) & ~empty
    if not torch.equal(evidence, agreement.counted) and bool(evidence.any()):
        agreement = replace(agreement, counted=evidence)
        settled = _settle(captured, found, agreement, settled.verified.tokens)
        # where only now a token fits, no rival was run
        evidence = evidence & find_evidence(settled.fits, captured.positions, T)
    by_chance = _log_chances(agreement).to(shown.device).masked_fill(~evidence, 0)
    told = are_told(by_chance, len(circuit.vocabulary), MOST_FALSE_MATCHES)
    alike = settled.alike
    for row, t in _find_unsettled(found.problem, settled, agreement):
        told[row][t] = False
    if unproved := uncertified(captured.checkpoint.model):
        fix = "fix: give the model in float32, as open_model(model.float(), ...)"
        say_of_model(f"{unproved}; {fix}")
        told = [[False] * T for _ in told]
    certificates = [
        [proof if sure and t not in others else None for t, sure in enumerate(prompt)]
        for proof, prompt, others in zip(found.proofs, told, alike, strict=True)
    ]
    sure = torch.tensor([[proof is not None for proof in proofs] for proofs in certificates])
    named = torch.tensor([[t in others for t in range(T)] for others in alike])
    doubtful = ~sure.to(shown) & ~named.to(shown) & ~empty
    chances = _find_probabilities(
        captured, found.problem, settled.verified.tokens, shown & doubtful, doubtful
    )
    likely = (chances >= LIKELY_PROBABILITY).to(shown)
    left_out = [_find_tail(*of_row) for of_row in zip(shown, evidence | likely, empty, strict=True)]
    return Certified(settled.verified, certificates, alike, chances, left_out)


def _find_probabilities(captured: Captured, problem: Problem, *of_prompts: Tensor) -> Tensor:
    """See `token_probabilities`; of as many prompts at once as leave their outputs small."""
    circuit, of_prompts = captured.circuit, (captured.stored.values, *of_prompts)
    size = max(1, BESIDE // (min(len(circuit.vocabulary), WHOLE) * circuit.width))
    return torch.cat([
        token_probabilities(problem.of(rows), circuit, *(x[rows] for x in of_prompts))
        for rows in torch.arange(len(problem.target), device=problem.target.device).split(size)
    ])  # fmt: skip


@torch.no_grad()
def _log_chances(agreement: Agreement) -> Tensor:
    """How probably a token agrees by chance with each output, `(B, T)`, as logarithms.

    One channel in bfloat16 agrees with one token of a few hundred, whatever stood there.
    """
    circuit, limit = agreement.circuit, agreement.tolerance.limit
    V, length = len(circuit.vocabulary), min(2, circuit.model.config.context)
    drawn = torch.randint(V, (PAIRS, length), generator=torch.Generator().manual_seed(0))
    spread = circuit.of_tokens(drawn.to(limit.device))[:, -1].std(dim=0)
    chances = torch.special.erf(limit / (2 * spread.clamp(min=torch.finfo(spread.dtype).tiny)))
    return agreement.slice.narrow(chances.double().log()).sum(dim=-1)


def _find_unsettled(
    problem: Problem, settled: "_Settled", agreement: Agreement
) -> Iterator[tuple[int, int]]:
    """Yields the prompt and position of tokens whose rivals miss too narrowly.

    Where several tokens fit at any position of a prompt, the format tells tokens apart but badly: a
    rival that was not run may fit as well, and the outputs behind may be those of another token.
    There each rival must miss by `UNSETTLED` times what is allowed.
    """
    if not any(settled.alike):
        return
    wide = agreement.tolerance.map(lambda x: UNSETTLED * x)
    loose = find_alike(problem, settled.verified.tokens, replace(agreement, tolerance=wide))
    for row, (others, rivals) in enumerate(zip(settled.alike, loose, strict=True)):
        if others:
            yield from ((row, t) for t in rivals)


class _Settled(NamedTuple):
    """An answer whose tokens fit best among those that agree."""

    verified: Verified
    alike: list[dict[int, list[int]]]
    fits: Tensor  # whether each position shown agrees, (B, S)


def _settle(captured: Captured, found: Found, agreement: Agreement, tokens: Tensor) -> _Settled:
    circuit, verified = captured.circuit, found.verified
    beside = verified.beside if tokens.equal(verified.tokens) else None
    settled, alike = settle_alike(found.problem, tokens, agreement, beside)
    if not settled.equal(verified.tokens):
        verified = verify(captured, found.problem, settled)
    own = verified.outputs if found.problem.circuit is circuit else circuit.of_tokens(settled)
    fits = replace(verified.tolerance, spread=captured.half_steps).limit >= verified.residual
    return _Settled(verified, alike, fits & agreement.of_prompts(own))


def _find_tail(shown: Tensor, counts: Tensor, empty: Tensor) -> list[int]:
    """The positions shown `(T,)` after the last that counts; none where no position counts.

    They are all positions of a prompt of which nothing but zeros is shown.
    """
    if not bool(counts.any()) and not torch.equal(shown, empty):
        return []
    last = max(counts.nonzero()[:, 0].tolist(), default=-1)
    return [t for t in shown.nonzero()[:, 0].tolist() if t > last]


@torch.no_grad()
def settle_alike(
    problem: Problem, tokens: Tensor, agreement: Agreement, beside: Beside | None = None
) -> tuple[Tensor, list[dict[int, list[int]]]]:
    """Chooses among tokens that agree at their own position by the outputs of later ones.

    Of the tokens that agree at a position, the answer is the one with which all outputs shown fit
    best. Another token remains beside it only if it agrees wherever the answer does.

    Args:
        problem: that was solved, of B prompts.
        tokens: the answer, `(B, T)`.
        beside: rivals of the answer that were run already.

    Returns:
        The tokens, and each prompt's positions where other tokens agree as well, with those.
    """
    tokens, circuit = tokens.clone(), agreement.circuit
    alike: list[dict[int, list[int]]] = [{} for _ in tokens]
    for _ in range(CHOICES):
        before = tokens.clone()
        for row, rivals in enumerate(find_alike(problem, tokens, agreement, beside)):
            alike[row] = {}
            for t, others in rivals.items():
                choices = torch.tensor([int(tokens[row, t]), *others], device=tokens.device)
                versions = tokens[row].repeat(len(choices), 1)
                versions[:, t] = choices
                agrees, misfit = agreement.of_versions(circuit.of_tokens(versions), row)
                best = int(misfit[: 1 + NAMED].argmin())  # of the likeliest
                tokens[row, t] = choices[best]
                equal = (agrees >= agrees[best]).all(dim=1)
                equal[best] = False
                if equal.any():
                    alike[row][t] = choices[equal].tolist()[:NAMED]
        if tokens.equal(before):
            break
        beside = None
    for row, others in enumerate(alike):
        for t, found in _find_swaps(tokens[row], agreement, row, others).items():
            others[t] = list(dict.fromkeys([*others.get(t, []), *found]))[:NAMED]
    return tokens, alike


def _find_swaps(
    tokens: Tensor, agreement: Agreement, row: int, alike: dict[int, list[int]]
) -> dict[int, list[int]]:
    """Hidden positions of one prompt whose tokens `(T,)` may change places, with those tokens.

    A mixer that knows no order of its input gives the same outputs either way. Pairs of positions
    at which another token fits alone are left out.
    """
    counted = agreement.counted[row]
    last = int(counted.nonzero()[-1]) if bool(counted.any()) else 0
    hidden, ids = (~counted[:last]).nonzero()[:, 0].tolist(), tokens.tolist()
    pairs = [(t, u) for t, u in combinations(hidden, 2)
             if ids[t] != ids[u] and not (t in alike and u in alike)]  # fmt: skip
    pairs = sorted(pairs, key=lambda pair: pair[1] - pair[0])[:SWAPS]
    circuit, found = agreement.circuit, {}
    size = max(2, candidates_at_once(circuit.model) // len(ids))
    for start in range(0, len(pairs), size - 1):
        part = pairs[start : start + size - 1]
        versions = tokens.repeat(len(part) + 1, 1)
        for version, (t, u) in zip(versions[1:], part, strict=True):
            version[[t, u]] = tokens[[u, t]]
        agrees, _ = agreement.of_versions(circuit.of_tokens(versions), row)
        equal = (agrees[1:] >= agrees[0]).all(dim=1) & agrees[0].any()
        for (t, u), fits in zip(part, equal.tolist(), strict=True):
            if fits:
                found.setdefault(t, []).append(ids[u])
                found.setdefault(u, []).append(ids[t])
    return found
