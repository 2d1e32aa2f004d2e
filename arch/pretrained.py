"""Pretrained transformers models (GPT-2, GPT-J, OPT, Llama, Mistral) behind our contract.

    loaded = load_pretrained("gpt2")
    loaded.model.hidden(loaded.model.embed(tokens), 3)

`embed` is a row of the embedding for each token and nothing else, so that a search over tokens is a
search over its rows; GPT-2's and OPT's learnt positions are added by `with_positions`, on the way
into the first block. Rotary positions are inside attention. Needs the extra `pretrained`.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor, nn

from arch.config import ModelConfig
from arch.directory import LoadedModel
from arch.errors import ModelError
from arch.families import anatomy, check_family
from arch.model import LanguageModel
from arch.weights import drop_padding


@dataclass(frozen=True)
class PretrainedConfig(ModelConfig):
    """Describes a wrapped model; cannot build one. Its one mixer is the family's name."""

    def __post_init__(self) -> None:
        """Nothing to check: transformers did."""


class PretrainedModel(LanguageModel):
    """A transformers causal model as a `LanguageModel`, around the same weights.

    In evaluation mode: the dropout of the wrapped attention is left out.
    """

    def __init__(self, model: Any) -> None:
        nn.Module.__init__(self)  # the parts are there already: build none
        parts = anatomy(model)
        self.embedding, self.norm, self.head = parts.embedding, parts.norm, parts.head
        self.blocks = nn.ModuleList(parts.blocks)
        self.positions, self.first_position = parts.positions, parts.first_position
        self.config = PretrainedConfig(
            vocab_size=parts.embedding.num_embeddings,
            context=parts.context,
            d_model=parts.embedding.embedding_dim,
            n_layers=len(parts.blocks),
            mixers=(model.config.model_type,),
            channel_mixer=model.config.model_type,
            norm="layernorm" if isinstance(parts.blocks[0].norm_token, nn.LayerNorm) else "rmsnorm",
            tied=parts.head.weight is parts.embedding.weight,
        )
        self.eval()

    def with_positions(self, embeddings: Tensor, start: int = 0) -> Tensor:
        """Adds the learnt positions start ... start + T, where the family has them."""
        if self.positions is None:
            return embeddings
        first = self.first_position + start
        return embeddings + self.positions.weight[first : first + embeddings.shape[1]]


def load_pretrained(
    name: str,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    eight_bit: bool = False,
) -> LoadedModel:
    """Loads a model of the hub, or a directory in transformers' layout, with its tokenizer.

    Args:
        name: a directory, or a name on the hub, which transformers downloads or has in its cache.
        device: where to put it.
        dtype: of the weights; float16 where they are in 8 bit.
        eight_bit: linear layers in 8 bit (Dettmers et al., 2208.07339), by bitsandbytes on a GPU.

    Raises:
        ModelError: transformers, bitsandbytes or a GPU is missing, the model cannot be found, or
            its family is not supported.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ModelError("pretrained models need transformers; fix: pip install '.[pretrained]'")
    from transformers import AutoModelForCausalLM, PreTrainedConfig

    options = _eight_bit_options(device) if eight_bit else {"dtype": dtype}
    try:
        found, _ = PreTrainedConfig.get_config_dict(name)
        check_family(found.get("model_type"))
        tokenizer = _tokenizer(name)
        model = AutoModelForCausalLM.from_pretrained(name, **options)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{name} cannot be loaded: {str(error).splitlines()[0]}") from None
    # Ids may have gaps, but none is beyond the last token's.
    wrapped = drop_padding(PretrainedModel(model), 1 + max(tokenizer.get_vocab().values()))
    meta = {
        "name": Path(name).name,
        "source": "transformers",
        "family": model.config.model_type,
        "precision": "8 bit" if eight_bit else str(dtype).removeprefix("torch."),
    }
    wrapped = wrapped if eight_bit else wrapped.to(device)
    return LoadedModel(wrapped, wrapped.config, tokenizer.to_str(), meta, Path(name))


def _eight_bit_options(device: str | torch.device) -> dict[str, Any]:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError("8 bit needs bitsandbytes; fix: pip install bitsandbytes")
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        raise ModelError(f"8 bit needs a CUDA device, found {device}; fix: leave out 8 bit")
    from transformers import BitsAndBytesConfig

    return {
        "dtype": torch.float16,
        "device_map": {"": torch.device(device)},
        "quantization_config": BitsAndBytesConfig(load_in_8bit=True),
    }


def _tokenizer(name: str) -> Tokenizer:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    if not tokenizer.is_fast:
        raise ModelError(f"{name} has no fast tokenizer, a tokenizer.json")
    return tokenizer.backend_tokenizer
