"""The settings of a run: none appears, disappears or changes its default by accident."""

from pathlib import Path

import pytest

from train.__main__ import main

OPTIONS = Path(__file__).parent / "options.txt"


@pytest.mark.parametrize("command", ["fit", "plan"])
def test_the_settings_are_those_that_are_written_down(command, capsys):
    """After a change on purpose: `python -m train fit --print_config | grep -v "#"` goes there."""
    with pytest.raises(SystemExit):
        main([command, "--print_config"])
    lines = capsys.readouterr().out.splitlines()
    own = ["measure: true"] if command == "plan" else []
    found = [line for line in lines if not line.startswith("#")]  # the version of lightning
    assert sorted(found) == sorted(OPTIONS.read_text().splitlines() + own)


def test_there_is_nothing_to_compile_at_installation():
    root = Path(__file__).parents[2]
    assert 'build-backend = "setuptools.build_meta"' in (root / "pyproject.toml").read_text()
    assert not (root / "setup.py").exists()
    rooms = ("arch", "tokenizer", "train", "eval")
    sources = {path.suffix for room in rooms for path in (root / room).rglob("*") if path.is_file()}
    assert not sources & {".c", ".cc", ".cpp", ".cu", ".pyx", ".so"}
