"""Text files that are written whole or not at all, and the hash of any file."""

import hashlib
from pathlib import Path

from arch.files import write_file


def write_text(path: str | Path, text: str) -> None:
    """Writes a file in UTF-8; its directory is made when missing, lone surrogates are spelt out.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    write_file(Path(path), text.encode("utf-8", errors="backslashreplace"))


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
