"""What all tests of `eval` share."""

import pytest


@pytest.fixture(autouse=True)
def _few_prefixes(monkeypatch):
    """Maps from outputs of 32 or 64 channels to tokens are fitted after fewer prefixes.

    What they guess is checked by running it: worse guesses cost a search work, and no proof.
    """
    monkeypatch.setattr("eval.inversion.guesses.PREFIXES", 24)
