"""The settings of a run: none appears, disappears or changes its default by accident."""

from pathlib import Path

import pytest

from train.__main__ import main

OPTIONS = Path(__file__).parent / "train_options.txt"


@pytest.mark.parametrize("command", ["fit", "plan"])
def test_the_settings_are_those_that_are_written_down(
    command: str, capsys: pytest.CaptureFixture[str]
):
    """After a change on purpose: `python -m train fit --print_config | grep -v "#"` goes there."""
    with pytest.raises(SystemExit):
        main([command, "--print_config"])
    lines = capsys.readouterr().out.splitlines()
    own = ["measure: true"] if command == "plan" else []
    found = [line for line in lines if not line.startswith("#")]  # the version of lightning
    assert sorted(found) == sorted(OPTIONS.read_text().splitlines() + own)
