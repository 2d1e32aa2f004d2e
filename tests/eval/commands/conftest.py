"""Commands read the built-in corpus where they are given none: here fewer of its stories."""

import pytest


@pytest.fixture(autouse=True)
def _few_stories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval.models.text.EVALUATED", 20)
