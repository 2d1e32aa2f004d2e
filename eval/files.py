"""Text files that are written whole or not at all."""

from pathlib import Path

from arch.files import write_file


def write_text(path: str | Path, text: str) -> None:
    """Writes a file in UTF-8; its directory is made when missing, lone surrogates are spelt out.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    write_file(Path(path), text.encode("utf-8", errors="backslashreplace"))
