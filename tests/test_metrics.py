"""The figures of one row."""

import itertools

import pytest

from eval.inversion.metrics import (
    extras,
    hamming,
    is_permuted,
    margin_bits,
    order,
    reciprocal_rank,
    set_recall,
)


def test_hamming_is_a_share():
    assert hamming([1, 2, 3, 4], [1, 2, 3, 4]) == 0
    assert hamming([1, 2, 9, 8], [1, 2, 3, 4]) == 0.5
    assert hamming([4, 3, 2, 1], [1, 2, 3, 4]) == 1


@pytest.mark.parametrize(
    ("found", "truth", "recall"),
    [
        ([3, 1, 2, 9], [1, 2, 3, 9], 1.0),
        ([1, 1, 1, 9], [1, 2, 3, 9], 1 / 3),  # one 1 is there, not three
        ([1, 2, 2, 9], [2, 2, 1, 9], 1.0),
        ([9, 9, 9, 1], [1, 2, 3, 9], 0.0),  # the last position is not asked about
    ],
)
def test_set_recall_counts_a_multiset(found, truth, recall):
    assert set_recall(found, truth, [0, 1, 2]) == pytest.approx(recall)


def test_order_is_one_minus_twice_the_share_of_exchanged_pairs():
    truth = [10, 11, 12, 13]
    for places in itertools.permutations(range(4)):
        pairs = list(itertools.combinations(range(4), 2))
        exchanged = sum(places[i] > places[j] for i, j in pairs)
        found = [truth[places.index(t)] for t in range(4)]
        tau = order(found, truth, [0, 1, 2, 3])
        assert tau == pytest.approx(1 - 2 * exchanged / len(pairs))
        assert is_permuted(found, truth, [0, 1, 2, 3]) == (exchanged > 0)


def test_order_of_what_was_found():
    assert order([1, 9, 3], [1, 2, 3], [0, 1, 2]) == 1
    assert order([3, 9, 1], [1, 2, 3], [0, 1, 2]) == -1
    assert order([1, 9, 8], [1, 2, 3], [0, 1, 2]) is None
    assert order([5, 5, 6], [5, 5, 6], [0, 1, 2]) == 1  # equal tokens are not exchanged
    assert order([5, 6, 5], [5, 5, 6], [0, 1, 2]) == pytest.approx(1 / 3)


def test_what_cannot_be_asked_is_none():
    assert set_recall([1], [1], []) is None
    assert reciprocal_rank([0], []) is None
    assert is_permuted([1, 2], [1, 2], [0]) is None
    assert is_permuted([1, 9], [1, 2], [0, 1]) is False


def test_reciprocal_rank():
    assert reciprocal_rank([0, 1, 3, 99], [0, 1, 2]) == pytest.approx((1 + 1 / 2 + 1 / 4) / 3)


def test_margin_bits_are_none_without_a_floor_and_never_negative():
    assert margin_bits(8.0, 1.0) == 3
    assert margin_bits(0.5, 1.0) == 0
    for margin, floor in ((None, 1.0), (1.0, 0.0), (1.0, None), (float("nan"), 1.0)):
        assert margin_bits(margin, floor) is None


def test_extras_tell_shown_from_hidden():
    found = extras([2, 1, 3, 9], [1, 2, 3, 4], [5, 1, 0, 3], {2, 3}, margin=4.0, floor=1.0)
    assert found == {
        "hamming": 0.75,
        "mrr_self": pytest.approx((1 + 1 / 4) / 2),
        "mrr_nonself": pytest.approx((1 / 6 + 1 / 2) / 2),
        "set_recall": 1.0,
        "order": pytest.approx(-1),
        "permuted": True,
        "margin_bits": 2.0,
    }
    own = extras([1, 2], [1, 2], [0, 0], {0, 1})
    assert (own["set_recall"], own["order"], own["permuted"], own["mrr_nonself"]) == (None,) * 4
    assert own["margin_bits"] is None
