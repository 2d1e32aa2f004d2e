"""Verdicts across methods, and what rows say of themselves."""

import pytest

from eval.measurements import coordinates
from eval.recoveries import hidden_positions
from eval.verdicts import SHORT, join_rows
from tests.eval.report.cases import make_row, make_rows

GRADIENT, SEARCH, AMBIGUOUS, NOT_FOUND = SHORT


def row(method, found, **changes):
    """A row of four tokens, two of them hidden; the verdicts are those of one method alone."""
    truth = [1, 2, 3, 4]
    verdict = ["recovered" if a == b else "not found" for a, b in zip(found, truth, strict=True)]
    own = {"truth": truth, "found": found, "verdict": verdict} | changes
    made = make_row(method=method, length=4, hidden=2, **own)
    return made | {"key": f"{made['key']} {found}"}


def test_each_token_has_the_verdict_of_all_methods():
    descent = row("descent", [1, 9, 9, 9])
    search = row("alternating", [8, 2, 3, 8])
    search["verdict"] = ["not found", "recovered", "ambiguous", "not found"]
    (joined,) = join_rows([descent, search])
    assert joined.verdicts == [GRADIENT, SEARCH, AMBIGUOUS, NOT_FOUND]
    assert joined.decisive
    assert joined.count(hidden=True) == {GRADIENT: 1, SEARCH: 1}
    assert joined.count(hidden=False) == {AMBIGUOUS: 1, NOT_FOUND: 1}


def test_any_gradient_method_will_do_but_ambiguous_stands_above_a_lucky_find():
    rows = [row("descent", [9, 9, 3, 4]), row("adam", [1, 9, 9, 9]), row("adam", [9, 2, 9, 9])]
    (joined,) = join_rows([*rows, row("alternating", [1, 2, 3, 4])])
    assert joined.verdicts == [GRADIENT] * 4
    lucky = row("descent", [1, 2, 3, 4])
    search = row("alternating", [1, 2, 3, 4], verdict=["ambiguous"] + ["recovered"] * 3)
    (joined,) = join_rows([lucky, search])
    assert joined.verdicts == [AMBIGUOUS, GRADIENT, GRADIENT, GRADIENT]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": 1},
        {"prompts": "random"},
        {"slice": "[:, :2, :]"},
        {"noise": 0.1},
        {"control": "identity"},
        {"padded": True},
        {"site": {"layer": 4, "part": "mixer"}},
        {"site": {"layer": [3, 4], "part": "block"}},
        {"site": {"layer": 4, "part": "block", "without": ["residual"]}},
        {"truth": [1, 2, 3, 5]},
        {"step": 0},
        {"model": "flat"},
    ],
    ids=str,
)
def test_other_questions_are_not_joined(changes):
    plain = row("descent", [1, 2, 3, 4])
    assert len(join_rows([plain, row("alternating", [1, 2, 3, 4], **changes)])) == 2


@pytest.mark.parametrize("changes", [{"control": "shuffled"}, {"family": "probe"}])
def test_a_control_with_nothing_to_find_and_a_reader_have_no_verdict(changes):
    assert join_rows([row("descent", [1, 2, 3, 4], **changes)]) == []


def test_coordinates_tell_what_departs():
    odd = row("descent", [1, 2, 3, 4], noise=0.5, control="identity", padded=True)
    odd["site"] = {"layer": [1, 3], "part": "stream", "without": ["norm", "residual"]}
    expected = {"without": "norm, residual", "noise": 0.5, "control": "identity", "padded": True,
                "layer": 3, "part": "stream 1+3"}  # fmt: skip
    assert expected.items() <= coordinates(odd).items()


def test_positions_that_padding_hides():
    own = {"length": 4, "slice": "[:, -1, :]"}
    assert hidden_positions(make_row(**own, hidden=3)) == {0, 1, 2}
    assert hidden_positions(make_row(**own, hidden=4, padded=True)) == {0, 1, 2, 3}


def test_join_keeps_every_question():
    rows = make_rows(models=("flat",), count=2)
    joined = join_rows(rows)
    assert sum(len(j.rows) for j in joined) == len(rows)
    assert len(joined) == len(rows) / 3
