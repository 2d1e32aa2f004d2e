"""How every tensor starts: one table, one function."""

import math

import torch
from torch import nn

from arch.config import ModelConfig
from arch.mixers import Triangle

EMBEDDING_STD = {"default": 0.02, "reference": 1.0}


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Fills every parameter in place; draws from torch's global generator.

    | tensor | default | reference (maskedmixers: PyTorch's own defaults) |
    |---|---|---|
    | embedding | N(0, 0.02), or embedding_std | N(0, 1), or embedding_std |
    | linear weight | N(0, 0.02) | U(+-1/sqrt(fan in)) |
    | linear weight into the residual stream | N(0, 0.02 / sqrt(2 n_layers)) | U(+-1/sqrt(fan in)) |
    | triangle weight, lower part | U(+-1/sqrt(context)) | U(+-1/sqrt(context)) |
    | triangle bias | 0 | U(+-1/sqrt(context)) |
    | linear bias | 0 | U(+-1/sqrt(fan in)) |
    | norm scale, shift | 1, 0 | 1, 0 |
    """
    default = config.init == "default"
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=config.embedding_std or EMBEDDING_STD[config.init])
        elif isinstance(module, Triangle):
            bound = module.weight.shape[-1] ** -0.5
            nn.init.uniform_(module.weight, -bound, bound).tril_()
            if module.bias is not None:
                nn.init.uniform_(module.bias, -bound, bound) if not default else module.bias.zero_()
        elif isinstance(module, nn.Linear):
            if config.tied and module.weight is model.embedding.weight:
                continue
            bound = module.weight.shape[1] ** -0.5
            if default:
                into_stream = name.endswith(("o_proj", "down"))
                std = 0.02 / math.sqrt(2 * config.n_layers) if into_stream else 0.02
                nn.init.normal_(module.weight, std=std)
            else:
                nn.init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                module.bias.zero_() if default else nn.init.uniform_(module.bias, -bound, bound)
