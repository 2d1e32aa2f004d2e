"""Files that are written whole or not at all."""

import os
from pathlib import Path


def write_text(path: str | Path, text: str) -> None:
    """Writes a file by way of a temporary sibling; its directory is made when missing.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
