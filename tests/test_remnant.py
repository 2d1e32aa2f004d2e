"""The command `remnant`: every room by its name."""

import sys
from importlib.machinery import PathFinder

import pytest

import remnant


def test_a_mixer_in_the_working_directory_is_found_and_shadows_no_library(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "tokenizers"):
        (tmp_path / f"{name}.py").touch()
    assert remnant.main(["train", "recipes"]) == 0
    found = [PathFinder.find_spec(name) for name in ("mine", "tokenizers")]
    inside = [str(tmp_path) in str(spec and spec.origin) for spec in found]
    assert inside == [True, False]


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
