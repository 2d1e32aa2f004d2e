"""Tensors that were fitted: kept once, and read again."""

import torch

from eval.artefacts import fitted
from eval.models import open_model

TEXT = [torch.arange(6)[None]]


def test_a_fit_is_kept_by_model_question_and_text(model_directory, tmp_path):
    models = [open_model(model_directory("flat", step, d_model=16), "cpu") for step in (0, 5)]
    kept = {"map": torch.randn(3, 2).T, "bias": torch.arange(4)}
    asked = [
        (models[0], {"layer": 1}, TEXT),
        (models[1], {"layer": 1}, TEXT),
        (models[0], {"layer": 2}, TEXT),
        (models[0], {"layer": 1}, [TEXT[0] + 1]),
    ]
    for times in (1, 0):
        for question in asked:
            fits = []
            found = fitted(tmp_path, *question, lambda fits=fits: fits.append(1) or kept)
            assert len(fits) == times
            assert all(torch.equal(found[name], tensor) for name, tensor in kept.items())
    assert len(list(tmp_path.glob("artefacts/*"))) == len(asked)
