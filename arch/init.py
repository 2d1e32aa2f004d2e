"""How every tensor starts: one table, one function."""

import math

import torch
from torch import nn

from arch.config import ModelConfig
from arch.errors import ModelError
from arch.mixers import Diagonals, Triangle


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Fills every parameter in place; draws from torch's global generator.

    `reference` is what maskedmixers does: PyTorch's own defaults. `default` is the best known for
    each kind: a model of attention alone starts small, as Llama does; one with a masked convolution
    starts as the reference. There a small embedding would drown in the first mixer's output, which
    no projection scales down: such a model stalls at the frequencies of single tokens
    (docs/results/training.md).

    | tensor | small | reference |
    |---|---|---|
    | embedding | N(0, 0.02), or embedding_std | N(0, 1), or embedding_std |
    | linear weight | N(0, 0.02) | U(+-1/sqrt(fan in)) |
    | linear weight into the residual stream | N(0, 0.02 / sqrt(2 n_layers)) | U(+-1/sqrt(fan in)) |
    | linear bias | 0 | U(+-1/sqrt(fan in)) |
    | triangle, lower part; diagonals; their bias | none is there | U(+-1/sqrt(fan in)) |
    | triangle, upper part | none is there | 0 |
    | anything else: norm scale, shift, ... | its module's `reset_parameters` | the same |

    The fan-in of a linear layer is its input width, that of a triangle its context, times the
    number of triangles where a stack is summed. A tied head is the embedding; by `default` that
    starts at 1/sqrt(d_model) where it would at 1, so that the first logits are of unit size.

    Raises:
        ModelError: a parameter that is not in the table, of a module without `reset_parameters`.
    """
    convolves = any(isinstance(module, Triangle | Diagonals) for module in model.modules())
    small = config.init == "default" and not convolves
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(
                module.weight, std=config.embedding_std or _embedding_std(config, small)
            )
        elif isinstance(module, Triangle | Diagonals):
            bound = module.fan_in**-0.5
            nn.init.uniform_(module.weight, -bound, bound)
            if isinstance(module, Triangle):
                module.weight.tril_()
            _start_bias(module.bias, bound)
        elif isinstance(module, nn.Linear):
            if config.tied and name == "head":
                continue
            bound = module.in_features**-0.5
            if small:
                into_stream = name.endswith(("o_proj", "down"))
                std = 0.02 / math.sqrt(2 * config.n_layers) if into_stream else 0.02
                nn.init.normal_(module.weight, std=std)
            else:
                nn.init.uniform_(module.weight, -bound, bound)
            _start_bias(module.bias, 0.0 if small else bound)
        elif remaining := [name for name, _ in module.named_parameters(recurse=False)]:
            if not hasattr(module, "reset_parameters"):
                raise ModelError(
                    f"{name}: nothing says how {', '.join(remaining)} of {type(module).__name__} "
                    "starts; give the class a method reset_parameters(self)"
                )
            module.reset_parameters()  # pyright: ignore[reportCallIssue]


def matrices(module: nn.Module) -> list[nn.Parameter]:
    """What an optimiser treats as a matrix over features: it decays, and Muon may take it.

    The weights of linear layers, and any parameter with two dimensions that a module keeps itself.
    Not embeddings, triangles and diagonals.
    """
    kinds = nn.Embedding | Triangle | Diagonals
    parts = [part for part in module.modules() if not isinstance(part, kinds)]
    found = [p for part in parts for p in part.parameters(recurse=False) if p.dim() == 2]
    embeddings = {m.weight for m in module.modules() if isinstance(m, nn.Embedding)}
    return [parameter for parameter in found if parameter not in embeddings]


def _embedding_std(config: ModelConfig, small: bool) -> float:
    if small:
        return 0.02
    return config.d_model**-0.5 if config.tied and config.init == "default" else 1.0


def _start_bias(bias: nn.Parameter | None, bound: float) -> None:
    if bias is not None:
        nn.init.uniform_(bias, -bound, bound)
