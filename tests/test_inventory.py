"""Nothing that a user can ask for goes, or comes, unnamed."""

import pytest

from tests.inventory import collect, removed, stored, unnamed

ASKED = {"command: eval x", "flag: eval x --a", "flag: eval x --b", "lens: y"}


def test_nothing_goes_unnamed() -> None:
    today = set(collect())
    gone = unnamed(set(stored()) - today, removed())
    assert not gone, "put them under `### Removed` in CHANGELOG.md, in backticks, and say why"
    new = today - set(stored())
    assert not new, "run `python -m tests.inventory`, which adds them to tests/inventory.txt"


def test_it_holds_what_it_should() -> None:
    some = """command: eval claims table, command: eval retrieval, command: train fit,
        command: tokenizer pack, flag: eval invert --layers, flag: train fit --model.d_model,
        solver: alternating, setting: adam.steps, lens: logit, mixer: attention,
        quantity: margin_bits, page: Token by token, claim: 101"""
    assert {" ".join(line.split()) for line in some.split(",")} <= set(stored())


@pytest.mark.parametrize(
    ("named", "left"),
    [
        (set(), ASKED),
        ({"lens: y"}, ASKED - {"lens: y"}),
        ({"command: eval x"}, {"lens: y"}),
        ({"command: eval"}, ASKED),
        (ASKED, set()),
    ],
)
def test_a_command_stands_for_its_flags(named: set[str], left: set[str]) -> None:
    assert unnamed(ASKED, named) == left
