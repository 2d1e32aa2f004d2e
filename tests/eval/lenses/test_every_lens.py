"""Every lens on every family of models."""

import math

import pytest

from eval.lenses.lens import lenses
from eval.lenses.stories import stories
from eval.models import open_checkpoint
from tests.eval.lenses.cases import ask, look, wrapped_checkpoint

FAMILIES = ("gpt2", "gptj", "llama 2, grouped, scaled")
LENSES = sorted(set(lenses()) - {"steering"})  # whose stories are longer than their contexts
MIXERS = ("flat", "attention(kv_heads=2)/expanded", "attention+headed")


@pytest.mark.parametrize("name", FAMILIES + MIXERS)
@pytest.mark.parametrize("lens", LENSES)
def test_a_lens_on_a_model(lens, name, model_directory):
    if name in FAMILIES:
        checkpoint = wrapped_checkpoint(name)
    else:
        checkpoint = open_checkpoint(model_directory(mixers=tuple(name.split("/"))))
    found = look(lens, checkpoint, range(60, 72), range(40, 52), tokens=2000)
    rows = list(found.figures())
    assert rows
    for row in rows:
        assert math.isfinite(row["value"]), row
        assert row.get("low", row["value"]) <= row["value"] <= row.get("high", row["value"]), row


def test_the_same_text_is_read_once(model_directory):
    checkpoint, request = open_checkpoint(model_directory()), ask(corpus="toy:400")
    first = stories(checkpoint, request, "fitting", 4)
    assert first.shape == (4, 32)
    assert stories(checkpoint, request, "fitting", 4) is first
    assert stories(checkpoint, request, "fitting", 5) is not first
