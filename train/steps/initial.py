"""Initial weights of a new run from another model, as `--init_from` names it."""

import hashlib
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
PARTS = {"mixers": "token_mixer", "channel_mixer": "channel_mixer"}
"""The part of a block that a setting is of."""
COMPARED = 16  # tokens on which two models with the same weights are compared
ROUNDING = 1e-5  # of their outputs: what the two may differ by


def start_from_weights(
    model: LanguageModel, source: str, tokenizer_json: str, trust_code: bool = False
) -> tuple[str, str]:
    """Copies every weight that `model` has under the same name and in the same shape, in place.

    The source is a model directory, or `hf:` and a directory or a hub's name of a Llama in
    transformers' layout; its tokenizer must encode as that of the data. Rows of `vocab_multiple`,
    which no token has, keep their own weights. So does what differs, such as the mixers of a
    hybrid, or a triangle of another context. A tied model takes the embedding, and no head.

    Returns:
        A line that says what was copied, whether it computes otherwise here, as with other heads,
        and what was not copied; and the SHA-256 of what was, in hexadecimal.

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
    copied, different = _copy_weights(model, loaded.model.state_dict())
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
    count, digest = sum(map(torch.numel, copied.values())), hashlib.sha256()
    for name, tensor in copied.items():
        digest.update(name.encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    taken = f"{len(copied)} tensors of {len(copied) + len(different)}, {count:,} weights"
    step = f", step {loaded.meta['step']}" if "step" in loaded.meta else ""
    model.eval()
    rest = _describe_difference(model, loaded.model, different) + rest
    model.train()
    return f"from {source}{step}: {taken}{rest}", digest.hexdigest()


@torch.no_grad()
def _copy_weights(
    model: LanguageModel, state: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Copies the tensors of a state that fit, in place: these by name, and which keep their own."""
    own, copied, different = model.state_dict(keep_vars=True), {}, []
    names = {id(tensor): name for name, tensor in reversed(own.items())}  # a tied head has two
    for name in reversed(names.values()):
        weights, tensor = state.get(name), own[name].detach()
        target = tensor[: model.config.vocab_size] if name in PADDED_WEIGHTS else tensor
        if weights is None or weights.shape != target.shape:
            different.append(name)
        else:
            copied[name] = target.copy_(weights)
    return copied, different


@torch.no_grad()
def _describe_difference(model: LanguageModel, theirs: LanguageModel, different: list[str]) -> str:
    """A part of a line, where weights of another model, but for `different`, compute otherwise."""
    configs = model.config, theirs.config
    length, size = min(COMPARED, *(c.context for c in configs)), configs[1].vocab_size
    tokens = torch.arange(length)[None] * 7 % size
    if not different and _are_alike(model(tokens)[..., :size], theirs.float()(tokens)):
        return ""
    here, there = (json.loads(config.to_json()) for config in configs)
    differing = [
        f"its {name} is {json.dumps(there[name])}, here {json.dumps(here[name])}"
        for name in COMPUTED
        if here[name] != there[name]
        and not (name in PARTS and _has_alike_parts(model, theirs, PARTS[name], {*different}))
    ]
    said = ", ".join(differing)
    return f"; that model computes otherwise by them: {said}" if said or not different else ""


def _has_alike_parts(
    model: LanguageModel, theirs: LanguageModel, part: str, different: set[str]
) -> bool:
    """Whether a part computes the same in all blocks where a weight of it was copied."""
    D, length = model.config.d_model, min(COMPARED, model.config.context, theirs.config.context)
    x = torch.arange(length * D).sin().view(1, length, D)
    for i, (block, other) in enumerate(zip(model.blocks, theirs.blocks, strict=False)):
        ours, held = getattr(block, part), getattr(other, part).float()
        names = {f"blocks.{i}.{part}.{name}" for name in ours.state_dict()}
        if names and names <= different:
            continue
        if names & different or theirs.config.d_model != D or not _are_alike(ours(x), held(x)):
            return False
    return True


def _are_alike(ours: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((ours - expected).abs().max() <= ROUNDING * expected.abs().max())
