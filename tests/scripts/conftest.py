"""What the tests of benchmarks share."""

import pytest

from tests.train.cases import pack_toy


@pytest.fixture(scope="session")
def packed(small_tokenizer, tmp_path_factory):
    """60 toy stories."""
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("packed") / "toy", 60)
