"""Bits at a given precision: against brute force, closed forms and torch's own quantisers."""

import copy
import itertools
import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from tokenizers import Tokenizer

from eval.commands.bits import bits_tables
from eval.measures.bits import measure
from eval.measures.bits.measure import (
    Candidates,
    Passage,
    Question,
    candidate_outputs,
    measure_bits,
    spread,
)
from eval.measures.bits.posterior import (
    entropy,
    fit_of_codes,
    fit_under_noise,
    information,
    noise_evidence,
    quantise,
)
from eval.measures.bits.task import Design
from eval.sites.circuit import Circuit
from eval.sites.rounding import capture
from tests.arch.cases import byte_tokenizer
from tests.eval.views.page.cases import about, bits_row

V = 40
MIXERS = ["flat", "attention", "headed(heads=2)"]


@pytest.fixture(params=MIXERS)
def circuit(request, small_model):
    return Circuit(small_model(mixers=(request.param,), vocab_size=V), 2)


@pytest.fixture
def passage():
    return Passage(3, tuple(range(5, 17)), 4)


def candidates() -> Candidates:
    unigram = torch.arange(1.0, V + 1)
    return Candidates(torch.arange(V), unigram / unigram.sum())


def figures(circuit: Circuit, passage: Passage, distances=(0, 1, 2, 7), **settings) -> dict:
    tokens = torch.tensor([passage.tokens])
    question = Question(distances=distances, noise=(1 / 16, 1.0), **settings)
    largest = circuit.of_tokens(tokens).abs().amax(dim=(0, 1))
    row = measure_bits(
        circuit, passage, candidates(), largest, capture([circuit], tokens)[0][1][0], question
    )
    return row | {"distances": list(question.distances)}


def whole(circuit: Circuit, passage: Passage) -> torch.Tensor:
    """Every candidate's outputs by one full pass each, in float64."""
    model = Circuit(copy.deepcopy(circuit.model).double(), circuit.layers)
    rows = [
        [*passage.tokens[: passage.place], v, *passage.tokens[passage.place + 1 :]]
        for v in range(V)
    ]
    return torch.stack([model.of_tokens(torch.tensor([row]))[0, passage.place :] for row in rows])


def test_candidates_outputs_are_those_of_full_passes(circuit, passage, monkeypatch):
    monkeypatch.setattr("eval.measures.bits.measure.tokens_at_once", lambda model: 50)
    ours = candidate_outputs(circuit, passage, torch.arange(V))
    torch.testing.assert_close(ours.double(), whole(circuit, passage), rtol=1e-4, atol=1e-4)


def test_information_is_that_of_bayes_rule_by_hand(small_model, passage):
    """Densities of numpy, candidate by candidate, with draws of their own."""
    circuit = Circuit(small_model(mixers=("attention",), vocab_size=V), 2)
    few = figures(circuit, passage, draws=2000)["bits"]["unigram"]["noise 1 rms"]
    outputs, truth = whole(circuit, passage).numpy(), passage.truth
    prior = candidates().unigram.numpy().astype(float)
    generator = np.random.default_rng(0)
    sizes = np.sqrt((outputs[truth] ** 2).mean(axis=-1))
    known = -(prior * np.log2(prior)).sum()
    for places, shown, at in (([0], "alone", 0), ([2], "alone", 2), ([1, 2], "cumulative", 2)):
        logs = np.log(prior)
        for s in places:  # all draws at once
            drawn = generator.standard_normal((2000, 1, outputs.shape[-1]))
            y = outputs[truth, s] + sizes[s] * drawn
            logs = logs + norm.logpdf(y, outputs[:, s], sizes[s]).sum(axis=-1)
        p = np.exp(logs - logs.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        losses = -(p * np.log2(np.where(p > 0, p, 1))).sum(axis=1)
        error = 4 * np.std(losses) / len(losses) ** 0.5 * 2**0.5
        assert few[shown][[0, 1, 2, 7].index(at)] == pytest.approx(
            known - np.mean(losses), abs=error + 1e-3
        )


def test_information_of_a_linear_model_is_its_closed_form(small_model, passage):
    """Without norms and channel mixers an output is a_t e(token), and what other tokens add."""
    model, reported = small_model(mixers=("flat",), vocab_size=V).double(), [0, 1, 2, 7]
    circuit = Circuit(model, 2, without=frozenset({"norms", "channel"}))
    rounded = figures(circuit, passage, draws=8)["bits"]  # to four digits
    ours = candidate_outputs(circuit, passage, torch.arange(V))
    T, start = len(passage.tokens), passage.place
    embeddings = model.embedding.weight
    outputs, mixed = embeddings[list(passage.tokens)], torch.eye(T, dtype=torch.float64)
    for block in model.blocks:
        triangle = block.token_mixer.mix
        weight = triangle.weight.tril()[:T, :T]
        outputs = outputs + weight @ outputs + triangle.bias[:T, None]
        mixed = mixed + weight @ mixed
    a, differences = mixed[start:, start], embeddings[passage.truth] - embeddings
    chance = torch.Generator().manual_seed(passage.index)
    torch.randperm(V, generator=chance)  # of the sampled effect
    noise = torch.randn(8, T - start, outputs.shape[1], generator=chance).double()
    evidence = noise_evidence(ours[passage.truth] - ours, noise)
    for level in (1 / 16, 1.0):
        size = level * outputs[start:].square().mean(dim=-1).sqrt()
        drawn = noise[:, None] * size[:, None]
        squares = (a[:, None] * differences[:, None] + drawn).square().sum(dim=-1)
        logs = -squares / (2 * size**2)  # (draws, V, positions)
        fit = fit_under_noise(*evidence, size)
        priors = {"uniform": torch.full((V,), 1 / V), "unigram": candidates().unigram}
        for name, prior in priors.items():
            known = float(entropy(prior.double().log()))
            found = information(fit, prior.double()[None], reported)[:, 0]
            together = torch.cat([logs[..., :1], logs[..., 1:].cumsum(dim=-1)], dim=-1)
            for number, (shown, by_hand) in enumerate((("alone", logs), ("cumulative", together))):
                posterior = (by_hand + prior.double().log()[:, None]).log_softmax(dim=1)
                left = -(posterior.exp() * posterior).sum(dim=1).mean(dim=0) / math.log(2)
                expected = (known - left)[reported].tolist()
                assert found[number].tolist() == pytest.approx(expected, abs=1e-6)
                said = rounded[name][f"noise {level:g} rms"][shown]
                assert said == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize("signal", [0.3, 1.0, 2.5])
def test_two_candidates_are_the_binary_channel(signal):
    """An identity model of two opposite embeddings at unit noise: capacity by quadrature."""

    def density(z):
        return float(norm.pdf(z)) * math.log2(1 + math.exp(-2 * signal * (signal + z)))

    expected = 1 - quad(density, -10, 10)[0]
    outputs = torch.tensor([[[signal]], [[-signal]]])
    noise = torch.randn(20_000, 1, 1, generator=torch.Generator().manual_seed(0))
    fit = fit_under_noise(*noise_evidence(outputs[0] - outputs, noise), torch.ones(1))
    alone, cumulative = information(fit, torch.full((1, 2), 0.5), [0])
    assert float(alone) == pytest.approx(expected, abs=0.02)
    assert torch.equal(alone, cumulative)


def test_integers_and_floats_are_torchs_own():
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    largest, zero = x[:30].abs().amax(dim=0), torch.zeros(6, dtype=torch.int32)
    for width in (2, 4, 6, 8):
        top = 2 ** (width - 1) - 1
        theirs = torch.fake_quantize_per_channel_affine(x, largest / top, zero, 1, -top, top)
        torch.testing.assert_close(quantise(x, f"int{width}", largest) * largest / top, theirs)
    largest = x.abs().amax(dim=0)
    assert torch.equal(quantise(x, "bf16", largest), x.bfloat16())
    scaled = (x / (largest / 448)).to(torch.float8_e4m3fn).float()
    assert torch.equal(quantise(x, "fp8", largest), scaled)


def test_candidates_of_one_code_are_counted_one_by_one():
    assert float(entropy(torch.tensor([0.5, 0.25, 0.25, 0.0]).log())) == pytest.approx(1.5)
    codes = torch.randint(3, (V, 4, 5), generator=torch.Generator().manual_seed(1))
    for channels, s in itertools.product(range(1, 6), range(4)):
        later = [s] if s == 0 else range(1, s + 1)
        same = (codes[..., :channels] == codes[7, :, :channels]).all(dim=-1)
        alone = sum(bool(same[v, s]) for v in range(V))
        joint = sum(all(same[v, t] for t in later) for v in range(V))
        bits = information(fit_of_codes(same), torch.full((1, V), 1 / V), [s]).flatten()
        expected = [math.log2(V / alone), math.log2(V / joint)]
        assert bits.tolist() == pytest.approx(expected, abs=1e-5)


def test_effects_and_margins_are_those_of_the_outputs(circuit, passage):
    row, outputs = figures(circuit, passage), whole(circuit, passage)
    truth = outputs[passage.truth]
    rms = truth.square().mean(dim=-1).sqrt()
    assert row["rms"] == pytest.approx(rms[[0, 1, 2, 7]].tolist(), rel=1e-3)
    effect = (outputs.numpy().std(axis=0) ** 2).mean(axis=-1) ** 0.5 / rms.numpy()
    assert row["effect"] == pytest.approx(effect[[0, 1, 2, 7]].tolist(), rel=1e-3, abs=1e-4)
    assert row["effect_sampled"] != row["effect"]
    assert spread(outputs).shape == (8,)
    margins = row["margin_bits"]
    assert margins["cumulative"][1] == margins["alone"][1]
    assert margins["cumulative"][3] >= max(margins["alone"][1:]) - 1e-3
    ((_, rounding),) = capture([circuit], torch.tensor([passage.tokens]))
    floor = rounding[0, 4:].norm(dim=-1)
    others = [v for v in range(V) if v != passage.truth]
    nearest = ((outputs - truth).norm(dim=-1)[others].amin(dim=0) / floor).log2()
    assert margins["alone"] == pytest.approx(nearest[[0, 1, 2, 7]].tolist(), abs=0.05)


def test_outputs_of_zeros_are_told_apart_but_from_others_of_zeros(small_model, passage):
    """A floor of 0 made the margin infinite, which rows have as null, as they do one of nothing."""
    model = small_model(vocab_size=V)
    for rows, told in (([passage.truth], True), ([passage.truth, 3], False)):
        with torch.no_grad():
            model.embedding.weight[rows] = 0
        row = figures(Circuit(model, 0), passage, distances=(0,))
        assert [margin is not None for margin in row["margin_bits"]["alone"]] == [told]
        assert row["rms"] == [0]
        assert row["effect"][0] > 1e9  # no mean leaves it out


def test_outputs_after_the_last_distance_are_not_computed(small_model, passage, monkeypatch):
    """Of a long text they took gigabytes; the figures are those of the whole passage."""
    circuit, seen = Circuit(small_model(vocab_size=V), 2), []
    whole = figures(circuit, passage)

    def outputs(*given: Any) -> torch.Tensor:
        seen.append(candidate_outputs(*given))
        return seen[-1]

    monkeypatch.setattr(measure, "candidate_outputs", outputs)
    row = figures(circuit, passage, distances=(0, 2))
    assert seen[0].shape[1] == 3
    assert row["tokens"] == list(passage.tokens)
    for name in ("alone", "cumulative"):
        margins = [whole["margin_bits"][name][place] for place in (0, 2)]
        assert row["margin_bits"][name] == pytest.approx(margins, abs=0.1)
        for precision, bits in whole["bits"]["uniform"].items():
            expected = [bits[name][place] for place in (0, 2)]
            assert row["bits"]["uniform"][precision][name] == pytest.approx(expected, abs=1e-3)


def test_the_vocabulary_has_the_ids_of_tokens_alone():
    """Ids of a gap were candidates, and those beyond the number of tokens were not."""
    known = json.loads(byte_tokenizer().to_str())
    known["model"]["vocab"]["zz"] = 300
    text: Any = SimpleNamespace(
        tokenizer=Tokenizer.from_str(json.dumps(known)),
        windows=lambda *_, **__: torch.tensor([[51, 300, 300]]),
    )
    question = Question()
    found = Design("toy:40", question)._candidates(text)
    assert found.tokens.tolist() == sorted(text.tokenizer.get_vocab().values())
    assert found.tokens[-1] == 300
    assert torch.equal(found.unigram[[51, -1]] * (259 + 3), torch.tensor([2.0, 3.0]))
    assert Design("toy:40", question, candidates=2)._candidates(text).tokens.tolist() == [51, 300]


@pytest.mark.parametrize(
    ("counts", "n"), [((1, 3), "n = 1 to 3 passages"), ((1, 1), "n = 1 passage;")]
)
def test_tables_say_the_least_and_the_most_passages(counts, n):
    """The number of the first line stood for all."""
    rows = [bits_row(about(0, name, name), prompt, 2.0)
            for name, count in zip("ab", counts, strict=True)
            for prompt in range(count)]  # fmt: skip
    assert n in bits_tables(rows)
