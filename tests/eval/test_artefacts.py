"""Tensors that were fitted: kept once, read again, and refused in one line where damaged."""

import torch

from eval import RequestError
from eval.artefacts import fitted
from eval.models import open_model
from tests.said import one_line

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


def test_a_damaged_file_is_refused_in_one_line(model_directory, tmp_path):
    model = open_model(model_directory("flat", 0, d_model=16), "cpu")
    fitted(tmp_path, model, {}, TEXT, lambda: {"a": torch.zeros(2)})
    (file,) = tmp_path.glob("artefacts/*")
    file.write_bytes(file.read_bytes()[:20])
    with one_line(RequestError, str(file)):
        fitted(tmp_path, model, {}, TEXT, dict)
