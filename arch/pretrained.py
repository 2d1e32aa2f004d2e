"""Pretrained transformers models behind our contract.

    loaded = load_pretrained("gpt2")
    loaded.model.hidden(loaded.model.embed(tokens), 3)

`embed` is a row of the embedding for each token and nothing else, so that a search over tokens is a
search over its rows; GPT-2's and OPT's learnt positions are added by `with_positions`, on the way
into the first block. Rotary positions are inside attention. Needs the extra `pretrained`.

Of GPT-2, GPT-J, OPT, Llama and Mistral the parts of a block are known (`PretrainedModel`); of any
other causal model a block is a whole layer (`arch.decoder.Decoder`).
"""

import importlib.util
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor, nn

from arch.convert import from_transformers
from arch.decoder import Decoder, describe_pretrained
from arch.directory import LoadedModel
from arch.errors import ModelError
from arch.families import take_apart
from arch.model import LanguageModel
from arch.weights import drop_padding

GGUF = ".gguf"


class PretrainedModel(LanguageModel):
    """A transformers causal model as a `LanguageModel`, around the same weights.

    In evaluation mode: the dropout of the wrapped attention is left out.
    """

    def __init__(self, model: Any) -> None:
        nn.Module.__init__(self)  # the parts are there already: build none
        parts = take_apart(model)
        self.embedding, self.norm, self.head = parts.embedding, parts.norm, parts.head
        self.blocks = nn.ModuleList(parts.blocks)
        self.positions, self.first_position = parts.positions, parts.first_position
        kind, norm = model.config.model_type, parts.blocks[0].norm_token
        self.config = describe_pretrained(self, kind, parts.context, norm)
        self.eval()

    def with_positions(self, embeddings: Tensor, start: int = 0) -> Tensor:
        """Adds the learnt positions start ... start + T, where the family has them."""
        if self.positions is None:
            return embeddings
        first = self.first_position + start
        return embeddings + self.positions.weight[first : first + embeddings.shape[1]]


def load_pretrained(
    name: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> LoadedModel:
    """Loads a model of the hub, or a directory in transformers' layout, with its tokenizer.

    `name` is a directory, a name on the hub, which transformers downloads or has in its cache, or a
    GGUF file, whose weights are dequantised (needs the package gguf).

    Raises:
        ModelError: transformers is missing, the model cannot be found, or it is no causal decoder.
    """
    model, tokenizer = _read(name, {"dtype": dtype})
    wrapped = wrap_model(model)
    check_tokenizer(name, tokenizer, wrapped)
    # Ids may have gaps, but none is beyond the last token's.
    wrapped = drop_padding(wrapped, 1 + max(tokenizer.get_vocab().values()))
    meta = {
        "name": Path(name).name,
        "source": "transformers",
        "family": model.config.model_type,
        "precision": str(dtype).removeprefix("torch."),
    }
    return LoadedModel(wrapped.to(device), wrapped.config, tokenizer.to_str(), meta, Path(name))


def import_gguf(file: Path) -> LoadedModel:
    """A Llama in a GGUF file as a model of ours, its weights dequantised to float32.

    Raises:
        ModelError: as `load_pretrained` and `import_transformers`.
    """
    source, tokenizer = _read(str(file), {"dtype": torch.float32})
    return from_transformers(source.config.to_dict(), source.state_dict, tokenizer.to_str(), file)


def wrap_model(model: Any) -> LanguageModel:
    """A transformers causal model in memory as a `LanguageModel`, around the same weights.

    Raises:
        ModelError: it is no causal decoder.
    """
    try:
        return PretrainedModel(model)
    except ModelError:  # a family, or a variant of one, whose parts are not known
        return Decoder(model)


def _read(name: str, options: dict[str, Any]) -> tuple[Any, Tokenizer]:
    """A model of transformers and its tokenizer."""
    if importlib.util.find_spec("transformers") is None:
        raise ModelError("pretrained models need transformers; fix: pip install '.[pretrained]'")
    from transformers import AutoModelForCausalLM, PreTrainedConfig

    place, more = (name, {}) if not name.endswith(GGUF) else _gguf(Path(name))
    if place.startswith((".", "/", "~")) and not Path(place).exists():  # no name of the hub
        raise ModelError(f"{name} cannot be loaded: there is no such directory")
    try:
        config, _ = PreTrainedConfig.get_config_dict(place, **more)
        if config.get("is_encoder_decoder"):
            raise ModelError(f"{name} is an encoder and a decoder; give a decoder-only model")
        tokenizer = _tokenizer(place, more)
        return AutoModelForCausalLM.from_pretrained(place, **options, **more), tokenizer
    except (OSError, SafetensorError, ValueError, IndexError, KeyError, struct.error) as error:
        # transformers says by a ValueError that a model has no causal form, or a GGUF file no end
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(f"{name} cannot be loaded: {reason}") from None


def _gguf(file: Path) -> tuple[str, dict[str, Any]]:
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"{file} needs the package gguf; fix: pip install gguf")
    if not file.is_file():
        raise ModelError(f"{file} cannot be loaded: there is no such file")
    return str(file.parent), {"gguf_file": file.name}


def check_tokenizer(name: str, tokenizer: Tokenizer, model: LanguageModel) -> None:
    """Refuses a tokenizer with ids that the model's embedding has no row for.

    Raises:
        ModelError: naming the largest of both.
    """
    largest, rows = max(tokenizer.get_vocab().values()), model.embedding.num_embeddings
    if largest >= rows:
        raise ModelError(
            f"{name}: its tokenizer has ids up to {largest}, its embedding {rows} rows; give the "
            "tokenizer that the model was trained with"
        )


def _tokenizer(name: str, options: dict[str, Any]) -> Tokenizer:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name, **options)
    if not tokenizer.is_fast:
        raise ModelError(f"{name} has no fast tokenizer, a tokenizer.json")
    return tokenizer.backend_tokenizer
