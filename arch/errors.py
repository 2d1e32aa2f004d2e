"""The error that users of models read, and how texts of foreign files are shown in a line."""

import sys

LETTERS = 600
"""Of a text that is shown in a line, at most."""
VALUE_LETTERS = 80
"""Of a value of a configuration, at most."""
LARGEST = 3.4e38
"""Numbers of float32 are below it."""


class ModelError(ValueError):
    """A model, its configuration or its directory is wrong; one line says how."""


def say(line: str) -> None:
    """Says a line on stderr, of what a user should know of a model that is read all the same."""
    print(line, file=sys.stderr)


def printable(text: object, letters: int = LETTERS) -> str:
    """A text of a foreign file as a line may show it.

    Control characters, escapes, line breaks, lone surrogates and marks that turn the direction are
    spelt out, as `\\x1b`; a long text is cut in its middle.
    """
    whole = str(text)
    if len(whole) > letters:
        whole = f"{whole[: letters * 2 // 3]}...{whole[-letters // 4 :]}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in whole)


def reason(error: BaseException, letters: int = 200) -> str:
    """What an error of a library says, in one line; its type where it says nothing."""
    return printable(" ".join(str(error).split()) or type(error).__name__, letters)


def show_value(value: object) -> str:
    """A value of a foreign file as a line may show it; it may be too long or deep to be written."""
    try:
        return printable(printable(repr(value), VALUE_LETTERS), VALUE_LETTERS)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} of any length"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of a GPU or of the machine: libraries say it by many names."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"OutOfMemoryError", "MemoryError"}:
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and any(words in said for words in _NO_MEMORY)


_NO_MEMORY = (
    "can't allocate memory",  # torch's allocator of CPU memory
    "not enough memory",
    "bad_alloc",
    "could not create a memory object",  # oneDNN
    "could not create a primitive",
    "Cannot allocate memory",
    "out of memory",  # CUDA, and NCCL of CUDA
    "STATUS_ALLOC_FAILED",  # cuBLAS, cuDNN
)


def check_count(name: str, value: object, most: int = 2**63 - 1) -> None:
    """Refuses what is not a whole number from 1 to `most`.

    Raises:
        ModelError: naming `name` and the value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        given = show_value(value)
        raise ModelError(f"{name} is {given}; it must be a whole number of at least 1")
    if value > most:
        raise ModelError(f"{name} is {show_value(value)}; allowed: up to {most}")
