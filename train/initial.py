"""Initial weights from another model: to train it on, to fine-tune it, to warm-start a hybrid."""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from arch import LanguageModel, LoadedModel, import_transformers, load_model
from tokenizer import tokenizer_hash
from train.settings import RunError

HUB = "hf:"
VOCABULARY = ("embedding.weight", "head.weight")


def initialise(model: LanguageModel, source: str, tokenizer_json: str) -> str:
    """Copies every weight that `model` has under the same name and in the same shape.

    The rows of `vocab_multiple`, which no token has, keep their own weights. So does what differs,
    such as the mixers of a hybrid, or a triangle of another context.

    Args:
        model: changed in place.
        source: a model directory, or `hf:` and a directory or a hub's name of a Llama in
            transformers' layout.
        tokenizer_json: that of the data; the source must have the same.

    Returns:
        A line that says what was copied, and what was not.

    Raises:
        RunError: another tokenizer, or nothing fits.
        arch.ModelError: the source is not there, or no model.
    """
    loaded = _load(source)
    tokenizers = (Tokenizer.from_str(text) for text in (loaded.tokenizer_json, tokenizer_json))
    if len({tokenizer_hash(tokenizer) for tokenizer in tokenizers}) > 1:
        raise RunError(
            f"--init_from {source}: its tokenizer is not that of --data; pack the data with its "
            "tokenizer.json"
        )
    state = loaded.model.state_dict()
    copied, kept, count = 0, [], 0
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            weights = state.get(name)
            target = tensor[: model.config.vocab_size] if name in VOCABULARY else tensor
            if weights is None or weights.shape != target.shape:
                kept.append(name)
            else:
                target.copy_(weights)
                copied, count = copied + 1, count + weights.numel()
    if not copied:
        raise RunError(
            f"--init_from {source}: none of its weights fits; its model is {_sizes(loaded.model)}, "
            f"this one {_sizes(model)}; change --model"
        )
    rest = f"; initial weights of their own: {_names(kept)}" if kept else ""
    return f"from {source}: {copied} tensors of {copied + len(kept)}, {count:,} weights{rest}"


def _load(source: str) -> LoadedModel:
    if not source.startswith(HUB):
        return load_model(source)
    name = source.removeprefix(HUB)
    if Path(name).is_dir():
        return import_transformers(name)
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(name, allow_patterns=["*.json", "*.safetensors"])
    except (OSError, ValueError) as error:  # no network, no such model, no such name
        reason = " ".join(str(error).split())[:200]
        raise RunError(
            f"--init_from {source}: cannot be downloaded ({reason}); give a directory instead"
        ) from None
    return import_transformers(folder)


def _sizes(model: LanguageModel) -> str:
    config = model.config
    return f"{' '.join(config.mixers)}, d {config.d_model}, n {config.n_layers}"


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
