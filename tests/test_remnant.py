"""The command `remnant`: every room by its name."""

import pytest

import remnant


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("eval solvers --names chance", 0, "chance"),
        ("train recipes", 0, "flat-small"),
        ("eval nothing", 2, "there is no such command"),
        ("evaluate", 2, "there is no such room; use tokenizer, arch, train, eval"),
        ("", 0, "usage: remnant ROOM COMMAND"),
    ],
)
def test_a_room_runs_its_command(words, code, says, capsys):
    assert remnant.main(words.split()) == code
    said = capsys.readouterr()
    assert says in said.out + said.err
