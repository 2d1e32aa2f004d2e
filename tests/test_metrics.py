"""The figures of one row."""

import itertools

import pytest

from eval.inversion.metrics import extras, is_permuted, margin_bits, set_recall


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


def test_any_other_order_is_permuted():
    truth = [10, 11, 12, 13]
    for places in itertools.permutations(range(4)):
        found = [truth[place] for place in places]
        assert is_permuted(found, truth, [0, 1, 2, 3]) == (found != truth)
    assert is_permuted([5, 5, 6], [5, 5, 6], [0, 1, 2]) is False  # equal tokens are not exchanged


def test_what_cannot_be_asked_is_none():
    assert set_recall([1], [1], []) is None
    assert is_permuted([1, 2], [1, 2], [0]) is None
    assert is_permuted([1, 9], [1, 2], [0, 1]) is False


def test_margin_bits_are_none_without_a_floor_and_never_negative():
    assert margin_bits(8.0, 1.0) == 3
    assert margin_bits(0.5, 1.0) == 0
    for margin, floor in ((None, 1.0), (1.0, 0.0), (1.0, None), (float("nan"), 1.0)):
        assert margin_bits(margin, floor) is None


def test_extras_are_of_hidden_tokens():
    found = extras([2, 1, 3, 9], [1, 2, 3, 4], {2, 3}, margin=4.0, floor=1.0)
    assert found == {"set_recall": 1.0, "permuted": True, "margin_bits": 2.0}
    own = extras([1, 2], [1, 2], {0, 1})
    assert own == {"set_recall": None, "permuted": None, "margin_bits": None}
