"""Fitted tensors, kept in a results directory and used again: `artefacts/KEY.safetensors`."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from arch.storage.files import write_file
from eval.messages import RequestError
from eval.models.checkpoint import Checkpoint
from eval.rows.store import row_key


def fitted(
    directory: str | Path | None,
    checkpoint: Checkpoint,
    about: Mapping[str, Any],
    text: Iterable[Tensor],
    fit: Callable[[], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Returns tensors fitted on a model: read if they were fitted before on the same text.

    Args:
        directory: of results; None to fit each time.
        checkpoint: the model; the tensors come to its device.
        about: all else that the fit depends on, for JSON; the file's metadata says it.
        text: the tokens that the fit sees.

    Raises:
        OSError: the file cannot be read or written.
        RequestError: the file is damaged.
    """
    seen = hashlib.sha256()
    for tokens in text:
        seen.update(repr(tuple(tokens.shape)).encode() + tokens.cpu().numpy().tobytes())
    about = {**about, "text_sha256": seen.hexdigest(), "settings": checkpoint.settings_sha256}
    path = Path(directory or "", "artefacts", f"{row_key(*checkpoint.identity, about)}.safetensors")
    if directory is not None and path.exists():
        try:
            device = str(checkpoint.model.embedding.weight.device)
            return load_file(path, device=device, backend="pread")
        except SafetensorError as error:
            raise RequestError(f"{path}: damaged ({error}); delete it and run again") from None
    tensors = {name: tensor.detach().clone(memory_format=torch.contiguous_format)
               for name, tensor in fit().items()}  # fmt: skip
    if directory is not None:  # laid out as they are read again: the same bits
        facts = about | {"checkpoint": checkpoint.provenance}
        content = {name: tensor.cpu() for name, tensor in tensors.items()}
        write_file(path, save(content, {"fit": json.dumps(facts)}))
    return tensors
