"""Fitted tensors, kept in a results directory and used again.

An artefact is `artefacts/KEY.safetensors` with `KEY.json` beside it. The second is written last and
holds the hash of the first, so that a torn file is noticed.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from arch.files import write_file
from eval import RequestError
from eval.rows import row_key

if TYPE_CHECKING:
    from eval.models import Checkpoint

FOLDER = "artefacts"


class Artefact(NamedTuple):
    """Tensors by name, on the CPU, and the facts that were saved with them."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]


def fitted(
    directory: str | Path | None,
    checkpoint: "Checkpoint",
    about: Mapping[str, Any],
    text: Iterable[Tensor],
    fit: Callable[[], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Tensors fitted on a model: read if they were fitted before on the same text, else saved.

    Args:
        directory: of results; None to fit each time.
        checkpoint: the model; the tensors come to its device.
        about: all else that the fit depends on, for JSON.
        text: the tokens that the fit sees.
        fit: fits them.

    Raises:
        RequestError: the files of an earlier fit are damaged.
        OSError: they cannot be written.
    """
    seen = hashlib.sha256()
    for tokens in text:
        seen.update(repr(tuple(tokens.shape)).encode() + tokens.cpu().numpy().tobytes())
    about = {**about, "text_sha256": seen.hexdigest()}
    key = row_key(*checkpoint.identity, about)
    device = checkpoint.model.embedding.weight.device
    if directory and (artefact := load(directory, key)):
        return {name: tensor.to(device) for name, tensor in artefact.tensors.items()}
    tensors = dict(fit())
    if directory:
        save(directory, key, tensors, about | {"checkpoint": checkpoint.provenance})
    return tensors


def save(directory: str | Path, key: str, tensors: Mapping[str, Tensor], about: Any) -> None:
    """Writes an artefact whole or not at all, in the place of one of the same key.

    The key names it as the keys of rows do (`eval.rows.row_key`); `about` are its facts, for JSON.

    Raises:
        OSError: it cannot be written.
    """
    content = tensor_bytes({n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()})
    record = {"key": key, "sha256": hashlib.sha256(content).hexdigest(), "about": about}
    file, beside = _paths(directory, key)
    write_file(file, content)
    write_file(beside, json.dumps(record, indent=1).encode())


def load(directory: str | Path, key: str) -> Artefact | None:
    """An artefact of a results directory; None where there is none of the key.

    Raises:
        RequestError: its files are damaged.
    """
    file, beside = _paths(directory, key)
    if not beside.is_file():
        return None
    try:
        record, content = json.loads(beside.read_text("utf-8")), file.read_bytes()
        if record["sha256"] != hashlib.sha256(content).hexdigest():
            raise ValueError("the hash of its tensors is another")
        return Artefact(read_tensors(content), record["about"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"{file}: a damaged artefact ({error}); delete it and {beside.name}, and it is fitted "
            "again"
        ) from None


def _paths(directory: str | Path, key: str) -> tuple[Path, Path]:
    folder = Path(directory) / FOLDER
    return folder / f"{key}.safetensors", folder / f"{key}.json"
