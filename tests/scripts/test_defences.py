"""The exact attackers of E11, where it is known what they must find."""

import math

import pytest
import torch
from torch import Generator

from arch import LanguageModel, ModelConfig
from scripts.experiments import defences

T, V = 10, 64


@pytest.fixture(scope="module")
def captured():
    """A model of four blocks, tokens, their stream and every candidate's."""
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=V, context=16, d_model=32, n_layers=4, mixers=("flat",))
    model = LanguageModel(config).eval().requires_grad_(False)
    tokens = torch.randint(V, (T,))
    stream = model.hidden(model.embed(tokens[None]), defences.LAYER)[0]
    return model, tokens, stream, defences.all_candidates(model, tokens)


def attacked(captured, kind, strength, root=None):
    _, tokens, stream, candidates = captured
    root = torch.eye(stream.shape[-1]) if root is None else root
    defended = defences.defend(kind, strength, stream, root, Generator().manual_seed(0))
    found = defences.attack_exactly(kind, strength, defended.seen, candidates, stream, root, tokens)
    return defended, found


def test_the_candidates_of_the_true_tokens_are_the_stream(captured):
    _, tokens, stream, candidates = captured
    torch.testing.assert_close(candidates[range(T), tokens], stream)


@pytest.mark.parametrize(
    ("kind", "strength"),
    [("noise", 0.01), ("shaped", 0.01), ("codes", 8), ("permute", 0), ("rotate", 0), ("mix", 0)],
)
def test_a_weak_defence_or_a_secret_alone_hides_nothing(captured, kind, strength):
    defended, found = attacked(captured, kind, strength)
    assert not torch.equal(defended.seen, captured[2])
    assert found["exact"] == T
    assert found["bits"] == pytest.approx(math.log2(V), abs=1e-3)


def test_of_noise_of_a_thousandfold_size_its_own_size_says_little(captured):
    assert attacked(captured, "noise", 1000.0)[1]["bits"] < 1


def test_shaped_noise_has_the_power_of_plain_noise_and_costs_less(captured):
    model, _, stream, _ = captured
    root = defences.noise_shape(model, torch.randint(V, (4, T)))
    assert float(root.square().sum()) == pytest.approx(len(root), rel=1e-4)
    clean, costs = defences.continue_from(model, stream[None])[0], {}
    for kind in ("noise", "shaped"):
        seen = torch.stack(
            [
                defences.defend(kind, 0.2, stream, root, Generator().manual_seed(i)).seen
                for i in range(20)
            ]
        )
        costs[kind] = sum(
            defences.divergence(clean, logits) for logits in defences.continue_from(model, seen)
        )
    assert costs["shaped"] < costs["noise"]


def test_dropped_positions_are_not_shown(captured):
    kept = defences.drop(captured[2], 0.5, Generator().manual_seed(0))
    assert len(kept.shown) == T - T // 2
    assert kept.shown[-1] == T - 1
    gone = [t for t in range(T) if t not in kept.shown]
    assert not kept.seen[gone].any()
    assert torch.equal(kept.seen[kept.shown], captured[2][kept.shown])
