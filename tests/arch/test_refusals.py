"""What models and their functions cannot do is refused in one line, which names what was seen."""

from typing import Any

import pytest
import torch
from torch import nn

from arch import (
    ModelConfig,
    ModelError,
    describe,
    generate,
    import_reference,
    import_transformers,
)
from arch.errors import reason
from arch.formats.maskedmixers import from_reference
from arch.kernels.masked_conv import masked_convolution
from tests.arch.cases import random_tokens, small_model
from tests.arch.formats.test_reference import L, expanded, flat, model
from tests.said import one_line

FLAT = small_model("flat")
LONG, SHORT = torch.zeros(1, 13, dtype=torch.long), random_tokens(FLAT, length=2)
X = torch.randn(2, 5, 4)
FLATS = model([flat(), flat()]).state_dict()
TOO_LONG = "13 positions are longer than the model's context of 12"


def lacking(state, part):
    return {name: tensor for name, tensor in state.items() if part not in name}


def drawn(**settings: Any):
    asked: dict[str, Any] = {"max_new_tokens": 3} | settings
    return generate(FLAT, SHORT, **asked)


def longer(go_on):
    """Goes on from a state of the whole context."""
    _, state = FLAT.prefix(FLAT.embed(LONG[:, :12]))
    return go_on(FLAT.embed(LONG[:, :1]), state)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: masked_convolution(X, torch.ones(4, 5)), "weight is (4, 5): expected (5, 5)"),
        (lambda: masked_convolution(X, torch.ones(3, 5, 5)), "weight has 3 heads"),
        (lambda: masked_convolution(X, torch.ones(5, 5), torch.ones(1, 5)), "bias is (1, 5)"),
        (lambda: describe(FLAT.config, 13), "length is 13; allowed: up to the context of 12"),
        (lambda: describe(FLAT.config, 0), "length is 0"),
        (lambda: drawn(temperature=-1), "temperature is -1"),
        (lambda: drawn(top_k=0), "top_k is 0"),
        (lambda: drawn(top_p=0), "top_p is 0"),
        (lambda: drawn(top_p=1.5), "top_p is 1.5"),
        (lambda: drawn(max_new_tokens=-1), "max_new_tokens is -1"),
        (lambda: generate(FLAT, LONG[:, :0], 3), "the length of the prompt is 0"),
        (lambda: generate(FLAT, LONG[0], 3), "tokens is (13,)"),
        (lambda: generate(FLAT, LONG, 3), TOO_LONG),
        (lambda: FLAT(LONG), TOO_LONG),
        (lambda: longer(FLAT.prefix), TOO_LONG),
        (lambda: longer(FLAT.step), TOO_LONG),
        *((lambda run=run, layer=layer: run(FLAT.embed(SHORT), layer=layer),
           f"layer {layer} does not exist; allowed: 0 (the embedding) to 2")
          for run in (FLAT.hidden, FLAT.prefix) for layer in (-1, 3)),
        (lambda: from_reference({}), "has no wte.weight and mixerblocks.0.*"),
        (lambda: from_reference(FLATS | {"mixerblocks.1.conv.weight": torch.ones(L, L + 1, 1)}),
         "mixerblocks.1.conv.* has the shapes {'weight': (12, 13, 1)} and the biases ['bias']"),
        (lambda: from_reference(lacking(model([expanded(2)]).state_dict(), "conv.0.bias")),
         "the biases ['2.bias']"),
        (lambda: from_reference(FLATS | {"memory.weight": X}), "unknown memory.weight"),
        (lambda: from_reference(lacking(FLATS, "0.seq_layernorm")), "no blocks.0.norm_token.weig"),
        (lambda: from_reference(lacking(FLATS, "0.conv")), "0.conv.* has the shapes {}"),
        (lambda: from_reference(model([flat(), nn.Conv1d(6, 6, 1)]).state_dict()),
         "mix.weight is (6, 6), the configuration says (12, 12)"),
        (lambda: ModelConfig.from_json("{", "here.json"), "here.json is not JSON"),
        (lambda: ModelConfig.from_json("[]", "here.json"), "here.json is not a JSON object"),
        (lambda: ModelConfig.from_json('{"n_heads": 4, "width": 3}', "here.json"),
         "here.json has unknown fields: n_heads, width"),
    ],
)  # fmt: skip
def test_a_call_is_refused(call, message):
    with one_line(ValueError, message):
        call()


@pytest.mark.parametrize(
    ("read", "name", "content", "message"),
    [
        (import_reference, ".", None, "has none of model.safetensors, pytorch_model.bin"),
        (import_reference, "x.pt", None, "x.pt cannot be read: "),
        (import_reference, "x.pt", b"not a checkpoint", "x.pt cannot be read: "),
        (import_reference, "x.pt", [1, 2], "x.pt holds no state dict"),
        (import_transformers, "nowhere", None, "no such model directory"),
        (import_transformers, ".", None, "has no config.json, tokenizer.json"),
    ],
)
def test_a_file_is_refused(read, name, content, message, tmp_path):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        torch.save(content, tmp_path / name)
    with one_line(ModelError, message):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("error", "said"),
    [(RuntimeError(), "RuntimeError"), (ValueError("one\n  two\x1b"), r"one two\x1b")],
)
def test_an_error_of_a_library_is_told_in_one_line(error, said):
    """One without words ended a command of checks in an IndexError."""
    assert reason(error) == said
