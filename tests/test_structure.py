"""The rooms grow no larger, and a reader goes no further, than the limits below.

A limit stands a little above what is there; whoever makes a room smaller lowers it. The target is
where it is to end. `python -m tests.structure` prints both beside what is measured.
"""

import pytest

from tests import structure

TO_COME = {  # capability: its room, the lines that it may add there and to the tests
    "bits": ("eval", 500, 250),
    "explore": ("eval", 1_150, 700),
    "any decoder": ("arch", 500, 350),
    "experiments": ("scripts", 260, 150),
    "their analysis": ("eval", 350, 150),
    "SmolLM2 from PyPI": ("arch", 170, 130),
    "reading by linear maps, SipIt": ("eval", 610, 180),
    "a recurrent mixer": ("arch", 110, 5),
    "hiding any tokens": ("eval", 130, 100),
    "claims asked of stand-ins, and again": ("eval", 220, 110),
    "comparisons of experiments": ("eval", 330, 150),
    "a loss for earlier tokens": ("train", 70, 115),
    "recall, and what recoverability costs": ("scripts", 500, 240),
    "hidden tokens at any vocabulary": ("eval", 60, 0),
    "hidden tokens of many prompts at once": ("eval", 115, 30),
    "correlations over cells": ("eval", 150, 25),
    "how few states, and padding": ("scripts", 300, 150),
}
"""What limits and targets leave room for."""


def _room(room):
    return sum(lines for name, lines, _ in TO_COME.values() if name == room)


TESTS = sum(lines for _, _, lines in TO_COME.values())
LIMITS = {  # measure: limit, target
    "lines: arch": (3_430 + _room("arch"), 2_450 + _room("arch")),
    "lines: train": (2_925 + _room("train"), 1_900 + _room("train")),
    "lines: tokenizer": (1_736, 1_100),
    "lines: eval": (20_920 + _room("eval"), 11_500 + _room("eval")),
    "lines: scripts": (2_036 + _room("scripts"), 1_600 + _room("scripts")),
    "lines: tests": (20_230 + TESTS, 13_000 + TESTS),
    "files in eval": (110, 85),
    "floors in eval": (5, 5),
    "arrows between folders of eval": (29, 27),
    "longest chain of imports in eval": (8, 8),
    "files of eval that `eval loss` imports": (12, 12),
    "public names in several files": (20, 20),
    "files above 400 lines": (0, 0),
    "lines of the README": (130, 130),
}


@pytest.fixture(scope="module")
def measured():
    return structure.measured()


@pytest.mark.parametrize("measure", LIMITS)
def test_limit_holds(measure, measured):
    limit, _ = LIMITS[measure]
    assert measured[measure] <= limit, "python -m tests.structure prints what there is"


def test_everything_that_is_measured_has_a_limit(measured):
    assert measured.keys() == LIMITS.keys()
    assert all(target <= limit for limit, target in LIMITS.values())


@pytest.mark.parametrize(
    ("graph", "length"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set(), "d": {"c"}}, 3),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, 3),
        ({"a": set()}, 1),
    ],
)
def test_longest_path(graph, length):
    assert structure.longest(graph) == length
