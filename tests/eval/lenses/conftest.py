"""Every kind of model that a lens looks at."""

import pytest

from tests.eval.lenses.cases import MODELS, any_model


@pytest.fixture(params=MODELS)
def model(request, small_model):
    return any_model(request.param, small_model)
