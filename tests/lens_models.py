"""Models that lenses are tried on: some of ours, and small random ones of transformers."""

from typing import Any

import torch
from torch import Tensor, nn

from arch import LanguageModel
from arch.pretrained import PretrainedModel
from tests.test_pretrained import FAMILIES, their_model

OURS: dict[str, dict[str, Any]] = {
    "flat": {"mixers": ("flat",)},
    "llama": {
        "mixers": ("attention(heads=4, kv_heads=2)",),
        "channel_mixer": "swiglu",
        "norm": "rmsnorm",
    },
    "headed and attention in turn, tied": {
        "mixers": ("headed(heads=4)", "attention(heads=2)"),
        "n_layers": 4,
        "tied": True,
    },
    "side by side, no final norm": {
        "mixers": ("attention(heads=2, bias=true)+parallel(branches=2)",),
        "final_norm": False,
    },
}
ALL = (*OURS, *FAMILIES)


def any_model(name: str, small_model: Any) -> LanguageModel:
    """One of `ALL` in float32, its norms and biases drawn, so that none is one or nothing."""
    if name in FAMILIES:
        return PretrainedModel(their_model(name, dtype=torch.float32))
    return shaken(small_model(**OURS[name]))


def shaken(module: Any) -> Any:
    """With norms and biases drawn."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return module


def some_tokens(model: LanguageModel, rows: int = 2, length: int = 12, seed: int = 3) -> Tensor:
    """Random ones, `(rows, length)`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (rows, length), generator=generator)
