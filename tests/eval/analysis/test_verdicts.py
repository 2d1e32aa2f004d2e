"""The verdict of each token across methods."""

import pytest

from eval.analysis.verdicts import SHORT, join_rows
from tests.eval.views.page.cases import make_row

GRADIENT, SEARCH, AMBIGUOUS, NOT_FOUND = SHORT


def row_of(solver, found, **changes):
    """A row of four tokens, two of them hidden; the verdicts are those of one solver alone."""
    truth = [1, 2, 3, 4]
    verdict = ["recovered" if a == b else "not found" for a, b in zip(found, truth, strict=True)]
    own = {"truth": truth, "found": found, "verdict": verdict} | changes
    made = make_row(solver=solver, length=4, hidden=2, **own)
    return made | {"key": f"{made['key']} {found}"}


def test_each_token_has_the_verdict_of_all_methods():
    descent = row_of("descent", [1, 9, 9, 9])
    search = row_of("alternating", [8, 2, 3, 8])
    search["verdict"] = ["not found", "recovered", "ambiguous", "not found"]
    (joined,) = join_rows([descent, search])
    assert joined.verdicts == [GRADIENT, SEARCH, AMBIGUOUS, NOT_FOUND]
    assert joined.decisive
    assert joined.count(hidden=True) == {GRADIENT: 1, SEARCH: 1}
    assert joined.count(hidden=False) == {AMBIGUOUS: 1, NOT_FOUND: 1}


def test_any_gradient_method_will_do_but_ambiguous_stands_above_a_lucky_find():
    rows = [
        row_of("descent", [9, 9, 3, 4]),
        row_of("adam", [1, 9, 9, 9]),
        row_of("adam", [9, 2, 9, 9]),
    ]
    (joined,) = join_rows([*rows, row_of("alternating", [1, 2, 3, 4])])
    assert joined.verdicts == [GRADIENT] * 4
    lucky = row_of("descent", [1, 2, 3, 4])
    search = row_of("alternating", [1, 2, 3, 4], verdict=["ambiguous"] + ["recovered"] * 3)
    (joined,) = join_rows([lucky, search])
    assert joined.verdicts == [AMBIGUOUS, GRADIENT, GRADIENT, GRADIENT]


def test_a_text_is_one_question_whatever_its_number_in_a_command():
    """Its number parted the solvers, and it had no verdict."""
    descent = row_of("descent", [9, 9, 3, 4], prompts="text", prompt=1)
    (joined,) = join_rows([descent, row_of("alternating", [1, 2, 3, 4], prompts="text", prompt=0)])
    assert joined.decisive
    assert joined.verdicts == [SEARCH, SEARCH, GRADIENT, GRADIENT]


@pytest.mark.parametrize("changes", [{"control": "shuffled"}, {"family": "probe"}])
def test_a_control_with_nothing_to_find_and_a_reader_have_no_verdict(changes):
    assert join_rows([row_of("descent", [1, 2, 3, 4], **changes)]) == []
