"""How much shown outputs say of one token: every candidate is run in its place.

All tokens but one are given. The token asked about takes each value of a candidate set; the model's
outputs at its own position (distance 0) and at later ones (distance 1, 2, ...) are computed for all
of them, so that the posterior is exact and nothing is searched for (see `posterior.py`).

Noise is given in two units: the root mean square (RMS) of the position's output, and the
position's *effect*, the RMS over channels of the standard deviation over candidates. The margin is
the distance of the nearest wrong candidate over the rounding floor, as a base-2 logarithm.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eval.measures.bits.posterior import (
    QUANTISERS,
    entropy,
    fit_of_codes,
    fit_under_noise,
    information,
    joint,
    noise_evidence,
    quantise,
)
from eval.models.memory import tokens_at_once
from eval.sites.circuit import Circuit

SAMPLED = 10  # the sampled effect is of one candidate in so many


@dataclass(frozen=True)
class Passage:
    """One token in its place."""

    index: int  # the passage's number among those drawn
    tokens: tuple[int, ...]  # the T tokens before, asked about and after
    place: int  # the position of the token asked about

    @property
    def truth(self) -> int:
        """The token asked about."""
        return self.tokens[self.place]


@dataclass(frozen=True)
class Question:
    """What is asked of a passage."""

    distances: tuple[int, ...] = (0, 1, 2, 4, 8, 15)  # positions after it that are reported
    noise: tuple[float, ...] = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0)  # deviations, in both units
    quantisers: tuple[str, ...] = QUANTISERS
    draws: int = 16  # of the noise
    seed: int = 0  # of the draws, and of the candidates of the sampled effect


class Candidates(NamedTuple):
    """The values that the token may take."""

    tokens: Tensor  # (V,) ids, each once
    unigram: Tensor  # (V,) probabilities, by counts in a text of their own


def candidate_outputs(circuit: Circuit, passage: Passage, candidates: Tensor) -> Tensor:
    """Outputs from the token's position on, for every one of `(V,)` candidates in its place.

    Of S = T - place positions, `(V, S, width)`, in fp32 at least.
    """
    device = circuit.vocabulary.device
    tokens = torch.tensor(passage.tokens, device=device)
    before, after = tokens[None, : passage.place], tokens[passage.place + 1 :]
    state = circuit.prefix(before) if passage.place else None
    outputs = []
    count = max(1, tokens_at_once(circuit.model) // (len(after) + 1))
    for batch in candidates.to(device).split(count):
        rows = torch.cat([batch[:, None], after.expand(len(batch), -1)], dim=1)
        outputs.append(circuit.step(circuit.embed(rows), state))
    return torch.cat(outputs)


@torch.no_grad()
def measure_bits(
    circuit: Circuit,
    passage: Passage,
    candidates: Candidates,
    largest: Tensor,
    rounding: Tensor,
    question: Question,
) -> dict[str, Any]:
    """All figures of one passage at one site.

    Args:
        passage: whose token is asked about, which is one of the candidates; it reaches as far as
            the distances.
        largest: `(C,)` magnitudes of a calibration text, for the quantisers.
        rounding: how far rounding moves the passage's outputs, `(T, C)`
            (`eval.sites.rounding.capture`).

    Returns:
        The row's fields about the passage, the question and the answer: `rms`, `effect`,
        `effect_sampled`, and for `margin_bits` and each prior's `bits` the values at each reported
        distance, alone and cumulative; see `eval.analysis.frame.figure_lines`.
    """
    tokens, reported = candidates.tokens, list(question.distances)
    number = tokens.tolist().index(passage.truth)
    stop = passage.place + 1 + max(reported)  # later outputs are not asked about
    outputs = candidate_outputs(circuit, replace(passage, tokens=passage.tokens[:stop]), tokens)
    truth, effect = outputs[number], spread(outputs)
    least = torch.finfo(outputs.dtype).tiny ** 0.5  # that is divided by: outputs may be 0
    rms = truth.square().mean(dim=-1).sqrt().clamp(min=least)
    generator = torch.Generator().manual_seed(question.seed * 1_000_003 + passage.index)
    sample = torch.randperm(len(tokens), generator=generator)[: max(2, len(tokens) // SAMPLED)]
    size = len(passage.tokens) - passage.place, circuit.width  # whatever the distances are
    noise = torch.randn(question.draws, *size, generator=generator)[:, : len(truth)].to(outputs)
    priors = _priors(circuit, passage, candidates)
    probabilities = torch.stack([*priors.values()])
    bits: dict[str, Tensor] = {}
    evidence = noise_evidence(truth - outputs, noise)
    for unit, of in {"rms": rms, "effect": effect}.items():
        for level in question.noise:
            fit = fit_under_noise(*evidence, (level * of).clamp(min=least))
            bits[f"noise {level:g} {unit}"] = information(fit, probabilities, reported)
    for quantiser in question.quantisers:
        codes = quantise(outputs, quantiser, largest)
        same = (codes == codes[number]).all(dim=-1)
        bits[quantiser] = information(fit_of_codes(same), probabilities, reported)
    floor = rounding[passage.place : stop].norm(dim=-1).to(outputs)
    margins = (truth - outputs).norm(dim=-1) / floor.clamp(min=least)
    margins[number] = torch.inf
    together = joint(margins, lambda x: x.cummax(dim=1).values)
    return {
        "prompt": passage.index,
        "tokens": list(passage.tokens),
        "place": passage.place,
        "truth": [passage.truth],
        "candidates": len(tokens),
        "draws": question.draws,
        "seed": question.seed,
        "distances": reported,
        "rms": _rounded(rms[reported]),
        "effect": _rounded((effect / rms)[reported]),
        "effect_sampled": _rounded((spread(outputs[sample]) / rms)[reported]),
        "prior_bits": dict(zip(priors, _rounded(entropy(probabilities.log())), strict=True)),
        "margin_bits": _by_shown(x.amin(dim=0)[reported].log2() for x in (margins, together)),
        "bits": {
            name: {precision: _by_shown(both[:, k]) for precision, both in bits.items()}
            for k, name in enumerate(priors)
        },
    }


def spread(outputs: Tensor) -> Tensor:
    """The effect: `(V, S, C)` to `(S,)`, RMS over channels of the deviation over candidates."""
    return outputs.var(dim=0, unbiased=False).mean(dim=-1).sqrt()


def _priors(circuit: Circuit, passage: Passage, candidates: Candidates) -> dict[str, Tensor]:
    """What is known of the candidates before anything is shown, `(V,)` probabilities by name."""
    tokens, device = candidates.tokens, circuit.vocabulary.device
    uniform = torch.full((len(tokens),), 1 / len(tokens), device=device)
    priors = {"uniform": uniform, "unigram": candidates.unigram.to(device)}
    if passage.place:  # before the first token a model predicts nothing
        before = torch.tensor([passage.tokens[: passage.place]], device=device)
        logits = circuit.model(before)[0, -1].float()
        priors["model"] = logits[tokens.to(device)].softmax(dim=-1)
    return priors


def _by_shown(both: Iterable[Tensor]) -> dict[str, list[float | None]]:
    """A figure at each reported distance `(R,)`, of one position and of several, for a row."""
    return dict(zip(("alone", "cumulative"), map(_rounded, both), strict=True))


def _rounded(values: Tensor) -> list[float | None]:
    return [round(value, 4) if math.isfinite(value) else None for value in values.tolist()]
