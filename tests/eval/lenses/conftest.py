"""Every kind of model that a lens looks at."""

import pytest

from tests.eval.lenses.cases import ALL, any_model


@pytest.fixture(params=ALL)
def model(request, small_model):
    return any_model(request.param, small_model)
