"""Initial weights from another model: to train it on, to fine-tune it, to warm-start a hybrid."""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from arch import LanguageModel
from arch.convert import download, open_directory
from tokenizer import tokenizer_hash
from train.settings import RunError

HUB = "hf:"
VOCABULARY = ("embedding.weight", "head.weight")


def initialise(model: LanguageModel, source: str, tokenizer_json: str) -> str:
    """Copies every weight that `model` has under the same name and in the same shape, in place.

    The source is a model directory, or `hf:` and a directory or a hub's name of a Llama in
    transformers' layout; its tokenizer must be that of the data. The rows of `vocab_multiple`,
    which no token has, keep their own weights. So does what differs, such as the mixers of a
    hybrid, or a triangle of another context.

    Returns:
        A line that says what was copied, and what was not.

    Raises:
        RunError: another tokenizer, or nothing fits.
        arch.ModelError: the source is not there, or no model.
    """
    name = source.removeprefix(HUB)
    path = name if name == source or Path(name).is_dir() else download(source)
    loaded = open_directory(path)
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
        configs = (loaded.model.config, model.config)
        sizes = [f"{' '.join(c.mixers)}, d {c.d_model}, n {c.n_layers}" for c in configs]
        raise RunError(
            f"--init_from {source}: none of its weights fits; its model is {sizes[0]}, this one "
            f"{sizes[1]}; change --model"
        )
    more = f" and {len(kept) - 4} more" if len(kept) > 4 else ""
    rest = f"; initial weights of their own: {', '.join(kept[:4])}{more}" if kept else ""
    return f"from {source}: {copied} tensors of {copied + len(kept)}, {count:,} weights{rest}"
