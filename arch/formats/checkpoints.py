"""Checkpoints of mixers: a file of tensors, whose names say by which project's code it was written.

Two are known: `arch.formats.maskedmixers` and `arch.formats.structured`.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from arch.errors import ModelError, printable, reason
from arch.formats.foreign import common_prefix
from arch.formats.maskedmixers import from_reference
from arch.formats.structured import EMBEDDING, from_structured
from arch.model import LanguageModel
from arch.storage.files import refuse_pointer
from arch.storage.weights import FLOATS, read_weights, say_newer_pickles

_FILES = ("model.safetensors", "pytorch_model.bin")


def import_reference(path: str | Path, mixer: str | None = None) -> LanguageModel:
    """Reads a checkpoint: a directory of the trainer's, a `.safetensors` or a torch file.

    `mixer` says which structured mixer it holds; see `from_structured`.

    Raises:
        ModelError: no such file, not tensors, or names and shapes of another model.
    """
    path = Path(path)
    if path.is_dir():
        files = [path / name for name in _FILES if (path / name).is_file()]
        if not files:
            raise ModelError(f"{path} has none of {', '.join(_FILES)}")
        say_newer_pickles(path, files[:1])
        path = files[0]
    if path.suffix == ".safetensors":
        return _from_names(read_weights(path), mixer, str(path))
    refuse_pointer(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, by what is damaged
        raise ModelError(f"{path} cannot be read: {reason(error, 160)}") from None
    named = isinstance(state, Mapping) and all(isinstance(name, str) for name in state)
    if not named or not all(_is_dense(tensor) for tensor in state.values()):
        raise ModelError(f"{path} holds no state dict: dense tensors by their names")
    return _from_names(state, mixer, str(path))


def _from_names(state: Mapping[str, Tensor], mixer: str | None, source: str) -> LanguageModel:
    """The model of a state dict, by whose names it has."""
    for name, tensor in state.items():
        if tensor.dtype not in FLOATS.values():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(
                f"{source}: {printable(name, 120)} is of type {kind}; allowed: {', '.join(FLOATS)}"
            )
    prefix = common_prefix(state, source)
    state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    structured = EMBEDDING in state
    if mixer and not structured:
        raise ModelError(
            f"--mixer {mixer}: {source} has no {EMBEDDING}, as structured mixers have; leave it out"
        )
    try:
        return (
            from_structured(state, mixer, source) if structured else from_reference(state, source)
        )
    except ModelError as error:  # a size that no configuration may have names no file
        raise ModelError(str(error) if source in str(error) else f"{source}: {error}") from None


def _is_dense(held: object) -> bool:
    return isinstance(held, Tensor) and held.layout == torch.strided and not held.is_meta
