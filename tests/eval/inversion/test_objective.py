"""Objectives, decoders and the figures of a row, against torch's own functions and by hand."""

import itertools
from math import nan

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eval.inversion.gradient.objectives import (
    OBJECTIVES,
    by_distance,
    by_normed_direction,
    by_pseudo_inverse,
)
from eval.inversion.scoring import is_permuted, nearest_rival, set_recall
from eval.sites.circuit import Circuit

SHOWN, TARGET = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    pair = a.flatten()[None], b.flatten()[None]
    return F.cosine_embedding_loss(*pair, torch.ones(1), reduction="none")[0]


def l1(a: Tensor, b: Tensor) -> Tensor:
    return F.l1_loss(a, b, reduction="sum")


PLAIN = {
    "l1": l1,
    "l2": lambda s, t: F.pairwise_distance(s.flatten(), t.flatten(), eps=0),
    "cosine": cosine,
    "relative": lambda s, t: ((s - t).norm(dim=1) / t.norm(dim=1)).square().sum(),
    "mixed(1.0, 0.01)": lambda s, t: cosine(s, t) + 0.01 * l1(s, t),
}


@pytest.mark.parametrize("name", PLAIN)
def test_objectives_are_torchs(name):
    expected = torch.stack([PLAIN[name](s, t) for s, t in zip(SHOWN, TARGET, strict=True)])
    assert torch.allclose(OBJECTIVES[name](SHOWN, TARGET), expected, atol=1e-5)


def test_decoders_are_their_formulas(small_model):
    model = small_model()
    circuit, W, norm = Circuit(model, 2), model.embedding.weight, model.blocks[0].norm_token
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    truth = torch.tensor([[5, 17, 300], [1, 2, 3]])
    for decode, scores in {
        by_pseudo_inverse: x @ torch.linalg.pinv(W),
        by_distance: -(x[:, :, None] - W).norm(dim=-1),
        by_normed_direction: F.cosine_similarity(norm(x)[:, :, None], norm(W), dim=-1),
    }.items():
        assert torch.allclose(decode(circuit, x), scores, atol=1e-3), decode
        assert decode(circuit, model.embed(truth)).argmax(dim=-1).equal(truth), decode


def test_tokens_far_from_zero_are_told_apart_by_distance(small_model):
    """Products of such vectors rounded the distances between them away."""
    model = small_model()
    model.embedding.weight.add_(1e4)
    tokens = torch.arange(300).view(20, 15)
    found = by_distance(Circuit(model, 1), model.embed(tokens)).argmax(dim=-1)
    assert found.equal(tokens)


@pytest.mark.parametrize(
    ("tokens", "truth", "recall"),
    [
        ([3, 1, 2, 9], [1, 2, 3, 9], 1.0),
        ([1, 1, 1, 9], [1, 2, 3, 9], 1 / 3),  # one 1 is there, not three
        ([1, 2, 2, 9], [2, 2, 1, 9], 1.0),
        ([9, 9, 9, 1], [1, 2, 3, 9], 0.0),  # the last position is not asked about
    ],
)
def test_set_recall_counts_a_multiset(tokens, truth, recall):
    assert set_recall(tokens, truth, [0, 1, 2]) == pytest.approx(recall)
    assert set_recall(tokens, truth, []) is None


def test_any_other_order_is_permuted():
    truth = [10, 11, 12, 13]
    for tokens in itertools.permutations(truth):
        assert is_permuted([*tokens], truth, [0, 1, 2, 3]) == ([*tokens] != truth)
    assert is_permuted([5, 5, 6], [5, 5, 6], [0, 1, 2]) is False  # equal tokens are not exchanged
    assert is_permuted([1, 9], [1, 2], [0, 1]) is False
    assert is_permuted([1, 2], [1, 2], [0]) is None


@pytest.mark.parametrize(
    ("runner_up", "floor", "expected"),
    [
        ([8.0], [1.0], (8.0, 1.0, 3.0)),
        ([8.0, 64.0], [2.0, 32.0], (64.0, 32.0, 1.0)),  # neither the least margin nor any mean
        ([0.5, 9.0], [1.0, 1.0], (0.5, 1.0, 0.0)),  # never negative
        *((given, floor, (None, None, None)) for given, floor in (
            ([1.0, 4.0], [0.0, 1.0]), ([nan, 4.0], [1.0, 1.0]), ([], []), (None, [1.0]))),
    ],
)  # fmt: skip
def test_nearest_rival_is_the_one_with_the_fewest_floors_at_its_own_position(
    runner_up, floor, expected
):
    given = None if runner_up is None else torch.tensor(runner_up)
    rival = nearest_rival(given, torch.tensor(floor))
    assert (rival["margin"], rival["margin_floor"], rival["margin_bits"]) == expected
