"""What commands print and errors say, as far as many tests read it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error: all that a command printed on its standard error but the corpus."""
    said = capsys.readouterr().err.strip().splitlines()
    (line,) = [line for line in said if not line.startswith("corpus: ")]
    assert line.startswith("error: ")
    return line


@contextmanager
def one_line(error: type[Exception], message: str) -> Iterator[None]:
    """The block raises an error of one line, which has a message in it."""
    with pytest.raises(error) as caught:
        yield
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
