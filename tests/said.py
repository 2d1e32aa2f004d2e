"""What commands print, as far as many tests read it."""

import pytest


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error: all that a command printed on its standard error."""
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    return line
