"""What was fitted, kept beside the rows and used again: tensors, and what they are of.

An artefact is `artefacts/KEY.safetensors` in a results directory with `KEY.json` beside it, which
is written last and holds the hash of the first, so that a file that was torn is not taken for one.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from arch.files import write_file
from eval.errors import RequestError

FOLDER = "artefacts"


class Artefact(NamedTuple):
    """Tensors by name, on the CPU, and what was said of them when they were saved."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]


def save(directory: str | Path, key: str, tensors: Mapping[str, Tensor], about: Any) -> None:
    """Writes an artefact whole or not at all; one of the same key is replaced.

    Args:
        directory: of results.
        key: names what was fitted, as the keys of rows do (`eval.rows.row_key`).
        tensors: by name, of any device.
        about: what they are of, for JSON.

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
