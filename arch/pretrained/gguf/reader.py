"""A GGUF file, opened, and checked to be one that holds a whole model."""

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from arch.errors import ModelError, reason, show_value
from arch.storage.files import refuse_pointer
from arch.storage.weights import Shapes

GGUF = ".gguf"


def check_gguf(file: Path) -> None:
    """Refuses a file that is no GGUF, a part of one, or one of another kind than a model's.

    Raises:
        ModelError: saying which, and what to do.
    """
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"{file} needs the package gguf; fix: pip install gguf")
    if not file.is_file():
        raise ModelError(f"{file} cannot be loaded: there is no such file")
    reader = open_gguf(file)
    told = {
        name: bytes(field.parts[-1]).decode(errors="replace")
        for name in ("type", "architecture", "name")
        if (field := reader.fields.get(f"general.{name}"))
    }
    if (kind := told.get("type", "model")) != "model":
        raise ModelError(
            f"{file}: general.type is {show_value(kind)}; allowed: 'model'; give the model's file"
        )
    parts = reader.fields.get("split.count")
    count = int(parts.parts[parts.data[0]][0]) if parts and parts.data else 1
    if count > 1:
        raise ModelError(
            f"{file} is one of {count} parts (split.count); join them first, as by "
            "`llama-gguf-split --merge`"
        )
    if not reader.tensors:
        raise ModelError(f"{file} has no tensors, as a vocabulary alone; give the model's file")
    if "architecture" not in told:
        raise ModelError(f"{file} lacks general.architecture; convert the model again")
    if "llama" in told["architecture"] and told.get("name") == "mistral":
        raise ModelError(
            f"{file}: general.name is 'mistral', by which transformers takes the file for one of "
            "another family; change it: gguf-new-metadata --general-name Mistral"
        )


def is_kept_packed(file: Path) -> bool:
    """Whether transformers has a reader of this family that may leave its weights packed."""
    from transformers.integrations.gguf.utils import is_gguf_arch_supported

    return is_gguf_arch_supported(family_of(open_gguf(file)))


def read_gguf_shapes(file: Path) -> Shapes:
    """The shapes of a file's tensors, by their names there; the innermost dimension is first."""
    return {tensor.name: tuple(map(int, tensor.shape)) for tensor in open_gguf(file).tensors}


def family_of(reader: Any) -> str:
    """The family of models, by the name that a file has for it."""
    return reader.fields["general.architecture"].contents()


def open_gguf(file: Path) -> Any:
    """The reader of a file, which is parsed once until it is written anew.

    Raises:
        ModelError: the file cannot be read, or is no whole GGUF file.
    """
    try:
        about = file.stat()
        refuse_pointer(file)
    except OSError as error:
        raise ModelError(f"{file} cannot be loaded: {error.strerror}") from None
    return _parse(file, about.st_ino, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=1)
def _parse(file: Path, *written: int) -> Any:
    from gguf import GGUFReader

    class Reader(GGUFReader):
        """Ends where its file ends; beyond it GGUFReader takes empty arrays, without an end."""

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError(f"what begins at byte {offset} ends beyond its {len(self.data)}")
            return super()._get(offset, dtype, count, override_order)

    try:
        return Reader(file)
    except Exception as error:  # of whatever kind: the reader checks little
        raise ModelError(
            f"{file} cannot be loaded: it is no whole GGUF file ({reason(error, 160)})"
        ) from None
