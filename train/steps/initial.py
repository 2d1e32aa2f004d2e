"""Initial weights of a new run from another model, as `--init_from` names it."""

import json
from pathlib import Path

import torch

from arch import LanguageModel
from arch.formats.hub.card import download
from arch.formats.llama import check_importable, open_directory
from arch.pretrained.tokenizers import read_tokenizer
from arch.storage.runs import PRETRAINED
from tokenizer import encode_alike
from train.settings import RunError

PADDED_WEIGHTS = ("embedding.weight", "head.weight")
COMPUTED = ("n_layers", "mixers", "channel_mixer", "norm", "norm_eps", "final_norm", "tied")
"""Settings of a model by which the same weights compute something else."""
COMPARED = 16  # tokens on which two models with the same weights are compared
ROUNDING = 1e-5  # of their outputs: what the two may differ by


def start_from_weights(
    model: LanguageModel, source: str, tokenizer_json: str, trust_code: bool = False
) -> str:
    """Copies every weight that `model` has under the same name and in the same shape, in place.

    The source is a model directory, or `hf:` and a directory or a hub's name of a Llama in
    transformers' layout; its tokenizer must encode as that of the data. Rows of `vocab_multiple`,
    which no token has, keep their own weights. So does what differs, such as the mixers of a
    hybrid, or a triangle of another context. A tied model takes the embedding, and no head.

    Returns:
        A line that says what was copied and what was not; and if all was, whether it computes
        otherwise here, as with other heads.

    Raises:
        RunError: another tokenizer, or nothing fits.
        arch.ModelError: the source is not there, or no model.
    """
    name = source.removeprefix(PRETRAINED)
    path = name if name == source or Path(name).is_dir() else download(source, check_importable)
    loaded = open_directory(path, trust_code=trust_code)
    theirs = read_tokenizer(loaded.tokenizer_json, f"--init_from {source}: tokenizer.json")
    ours = read_tokenizer(tokenizer_json, "--data: tokenizer.json")
    if not encode_alike(theirs, ours):
        raise RunError(
            f"--init_from {source}: its tokenizer is not that of --data; pack the data with its "
            "tokenizer.json"
        )
    state, own = loaded.model.state_dict(), model.state_dict(keep_vars=True)
    names = {id(tensor): name for name, tensor in reversed(own.items())}  # a tied head has two
    copied, different, count = 0, [], 0
    with torch.no_grad():
        for name in reversed(names.values()):
            weights, tensor = state.get(name), own[name]
            target = tensor[: model.config.vocab_size] if name in PADDED_WEIGHTS else tensor
            if weights is None or weights.shape != target.shape:
                different.append(name)
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
    more = f" and {len(different) - 4} more" if len(different) > 4 else ""
    listed = ", ".join(different[:4])
    rest = f"; initial weights of their own: {listed}{more}" if different else ""
    rest = rest or _describe_difference(model, loaded.model)
    return f"from {source}: {copied} tensors of {copied + len(different)}, {count:,} weights{rest}"


@torch.no_grad()
def _describe_difference(model: LanguageModel, theirs: LanguageModel) -> str:
    """The end of a line, where a model with all weights of another computes something else."""
    configs = model.config, theirs.config
    length, size = min(COMPARED, *(c.context for c in configs)), configs[1].vocab_size
    tokens = torch.arange(length)[None] * 7 % size
    ours, expected = model(tokens)[..., :size], theirs.float()(tokens)
    if (ours - expected).abs().max() <= ROUNDING * expected.abs().max():
        return ""
    here, there = (json.loads(config.to_json()) for config in configs)
    differing = (
        f"its {name} is {json.dumps(there[name])}, here {json.dumps(here[name])}"
        for name in COMPUTED
        if here[name] != there[name]
    )
    return f"; that model computes otherwise by them: {', '.join(differing)}"
