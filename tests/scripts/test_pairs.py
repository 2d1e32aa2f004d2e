"""E13: the joint posterior of two tokens, against every pair run by itself."""

import math

import pandas
import pytest
import torch

from eval.measures.bits.posterior import fit_under_noise, information, noise_evidence
from eval.models.checkpoint import open_model
from eval.models.text import held_out_text
from eval.sites.circuit import Circuit
from scripts.experiments import pairs
from scripts.experiments.shared import choose_passages, commonest

V, POSITION = 12, 3
DESIGN = {"distances": [1, 2], "noise": [0.5], "draws": 3}


@pytest.fixture(params=["flat", "attention(heads=2)", "mixed(heads=2)"])
def circuit(request, small_model):
    return Circuit(small_model(vocab_size=V, mixers=(request.param,)), 2)


@pytest.fixture
def tokens():
    return torch.randint(V, (POSITION + 4,))


@pytest.mark.parametrize("size", [1, 2])
def test_the_tokens_asked_about_are_candidates_and_the_first_ones_differ(model_directory, size):
    text = held_out_text(open_model(model_directory("flat")), "toy:400")
    candidates = commonest(text, 64)
    chosen = choose_passages(text, candidates, (3, 9), 4, after=2, size=size)
    assert [passage.place for passage in chosen] == [3, 5, 7, 9]
    assert len({passage.truth for passage in chosen}) == 4
    for passage in chosen:
        behind = passage.tokens[passage.place :]
        assert {*behind[:size]} <= {*candidates.tolist()}
        assert len(behind) == size + 2


def test_every_pair_has_the_outputs_that_the_model_gives_it(circuit, tokens, monkeypatch):
    monkeypatch.setattr(pairs, "tokens_at_once", lambda _: 5 * V)
    candidates = torch.arange(0, V, 2)
    found = pairs.run_pairs(circuit, tokens, POSITION, candidates, [1, 2])
    for a, first in enumerate(candidates):
        for b, second in enumerate(candidates):
            text = tokens.clone()
            text[POSITION], text[POSITION + 1] = first, second
            expected = circuit.of_tokens(text[None])[0, POSITION + 2 :]
            torch.testing.assert_close(found[a, b], expected)


def test_bits_of_one_token_are_those_of_eval_bits_where_the_other_is_known(circuit, tokens):
    candidates = torch.arange(V)
    found = pairs.measure_pair(circuit, tokens, POSITION, candidates, DESIGN, 0)["noise 0.5 rms"]
    outputs = pairs.run_pairs(circuit, tokens, POSITION, candidates, [1, 2])
    first, second = tokens[POSITION : POSITION + 2].tolist()
    truth = outputs[first, second]
    noise = torch.randn(3, *truth.shape, generator=torch.Generator().manual_seed(0))
    size = 0.5 * truth.square().mean(-1).sqrt()
    for name, of in {"first": outputs[:, second], "second": outputs[first]}.items():
        fit = fit_under_noise(*noise_evidence(truth - of, noise), size)
        expected = information(fit, torch.full((1, V), 1 / V), [0, 1])[0, 0]
        assert found[f"{name}, other known"] == pytest.approx(expected.tolist(), abs=1e-4)
    assert all(0 <= bits <= 2 * math.log2(V) for bits in found["both"])


def test_bits_of_both_are_those_of_one_and_then_of_the_other():
    """By the chain rule, in the mean over all truths and noises of an enumerable channel."""
    torch.manual_seed(0)
    channel = torch.randn(4, 4, 5, dtype=torch.float64).softmax(dim=-1)  # p(y | a, b)
    names = "both", "first, other unknown", "second, other known"
    total = dict.fromkeys(names, 0.0)
    for a in range(4):
        for b in range(4):
            fit = channel.log().permute(2, 0, 1)[:, None]  # a "draw" for each y
            for y in range(5):
                bits = pairs.bits_of_pairs(fit[y : y + 1], a, b)
                for name in names:
                    total[name] += float(bits[name] * channel[a, b, y]) / 16
    assert total["both"] == pytest.approx(
        total["first, other unknown"] + total["second, other known"]
    )


def test_tokens_that_do_not_meddle_lose_nothing_by_an_unknown_neighbour():
    torch.manual_seed(0)
    one, other = torch.randn(2, 2, 1, V)
    fit = one[..., :, None] + other[..., None, :]
    bits = pairs.bits_of_pairs(fit, 3, 5)
    for token in ("first", "second"):
        torch.testing.assert_close(bits[f"{token}, other known"], bits[f"{token}, other unknown"])
    row = {"model": "flat", "distances": [1], "bits": {"noise 1 rms": {
        name: of.tolist() for name, of in bits.items()}}}  # fmt: skip
    (line,) = pairs.tabulate([row, row]).to_dict("records")
    assert line["first ratio"] == line["first ratio low"] == pytest.approx(1)
    assert line["difference"] == pytest.approx(0, abs=1e-6)


def cell(known, first, second):
    """A line of the table, of a model at a distance, with intervals of +- 0.05."""
    ratios = {"first ratio": first, "second ratio": second, "difference": first - second}
    ends = {f"{name}{end}": of + by for name, of in ratios.items()
            for end, by in (("", 0), (" low", -0.05), (" high", 0.05))}  # fmt: skip
    return {"model": "flat", "noise": "noise 0.25 rms", "distance": 1, **ends,
            "first judged": known >= 0.5, "second judged": known >= 0.5}  # fmt: skip


@pytest.mark.parametrize(("cells", "neighbour", "order"), [
    ([(9, 0.95, 0.99)], "confirmed", "open"),
    ([(9, 0.95, 0.99), (9, 0.82, 0.95)], "open", "open"),
    ([(9, 0.95, 0.99), (9, 0.7, 0.9)], "refuted", "open"),
    ([(9, 0.95, 0.99), (0.1, 0.2, 0.9)], "confirmed", "open"),
    ([(9, 0.86, 0.98)], "confirmed", "confirmed"),
    ([(9, 0.86, 0.98), (9, 0.98, 0.87)], "confirmed", "refuted"),
    ([(0.1, 0.9, 0.99)], "open", "open"),
])  # fmt: skip
def test_verdicts_are_those_of_the_registration(cells, neighbour, order):
    table = pandas.DataFrame([cell(*of) for of in cells])
    assert pairs.judge_neighbour(table).verdict == neighbour
    assert pairs.judge_order(table).verdict == order
