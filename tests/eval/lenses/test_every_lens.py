"""Every lens on every family of wrapped models, and on models of ours."""

import math

import pytest

from eval.lenses.lens import lenses
from eval.models import open_checkpoint
from tests.eval.lenses.cases import look, wrapped_checkpoint

FAMILIES = ("gpt2", "opt", "gptj", "llama 2, grouped, scaled", "llama 3")
LENSES = sorted(set(lenses()) - {"steering"})  # whose stories are longer than their contexts
MIXERS = ("flat", "attention(kv_heads=2)/expanded", "attention+headed")


@pytest.mark.parametrize(
    ("lens", "name"),
    [(lens, name) for lens in LENSES for name in FAMILIES + MIXERS[lens == "ov" :]],
)
def test_a_lens_on_a_model(lens, name, model_directory):
    if name in FAMILIES:
        checkpoint = wrapped_checkpoint(name)
    else:
        checkpoint = open_checkpoint(model_directory(mixers=tuple(name.split("/"))))
    found = look(lens, checkpoint, range(60, 72), range(40, 52), tokens=2000)
    assert found.figures
    assert all(math.isfinite(figure["value"]) for figure in found.figures)
    assert all(array.values.isfinite().any() for array in found.arrays.values())
