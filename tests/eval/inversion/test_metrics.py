"""The figures of one row."""

import itertools

import pytest
import torch

from eval.inversion.answer import extras, is_permuted, nearest_rival, set_recall


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


@pytest.mark.parametrize(
    ("runner_up", "floor", "expected"),
    [
        ([8.0], [1.0], (8.0, 1.0, 3.0)),
        ([8.0, 64.0], [2.0, 32.0], (64.0, 32.0, 1.0)),  # neither the least margin nor any mean
        ([0.5, 9.0], [1.0, 1.0], (0.5, 1.0, 0.0)),  # never negative
        ([1.0, 4.0], [0.0, 1.0], (None, None, None)),
        ([float("nan"), 4.0], [1.0, 1.0], (None, None, None)),
        ([], [], (None, None, None)),
        (None, [1.0], (None, None, None)),
    ],
)
def test_nearest_rival_is_the_one_with_the_fewest_floors_at_its_own_position(
    runner_up, floor, expected
):
    given = None if runner_up is None else torch.tensor(runner_up)
    found = nearest_rival(given, torch.tensor(floor))
    assert (found["margin"], found["margin_floor"], found["margin_bits"]) == expected


def test_extras_are_of_hidden_tokens():
    found = extras([2, 1, 3, 9], [1, 2, 3, 4], {2, 3})
    assert found == {"set_recall": 1.0, "permuted": True}
    own = extras([1, 2], [1, 2], {0, 1})
    assert own == {"set_recall": None, "permuted": None}
