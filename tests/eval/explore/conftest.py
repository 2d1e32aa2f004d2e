"""One explorer for all tests that ask it, with a model at two training steps."""

import pytest


@pytest.fixture(scope="session")
def explored(tmp_path_factory, small_model, small_tokenizer):
    """The directory of the models that the explorer shows."""
    from tests.eval.explore.explore_cases import two_steps

    return two_steps(tmp_path_factory.mktemp("runs"), small_model, small_tokenizer)


@pytest.fixture(scope="session")
def port(explored):
    """Where the explorer listens."""
    from tests.eval.explore.explore_cases import running

    with running([str(explored)]) as port:
        yield port
