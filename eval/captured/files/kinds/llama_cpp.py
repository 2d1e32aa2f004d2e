"""Sessions and slots that llama.cpp saves: token ids in clear, then its cache."""

import struct
from pathlib import Path
from typing import BinaryIO

import torch

from eval.captured.files.kinds.kind import Capture, Source, locate_numbers
from eval.captured.files.tensors import Outputs

VERSIONS = {b"nsgg": ("session", (9, 10)), b"qsgg": ("slot", (2, 3))}
"""By the magic number: what the file is, and the versions whose layout is known."""
FLOAT_CODES = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
QUANTISED = {2: "q4_0", 8: "q8_0"}
LONGEST_NAME = 64  # characters of an architecture
MOST_LAYERS = 4096


def recognise(source: Source) -> bool:
    """The magic number of a session or of a slot."""
    return source.start[:4] in VERSIONS


def read(source: Source) -> Capture:
    """The token ids, and `value.N`, `(T, heads * width)`, of each block N where they are floats.

    Layout: `state_save_file`, `state_seq_save_file` and the cache's `state_write` of llama.cpp.
    Keys are not read: a conversion to GGUF may have permuted their channels. Quantised values are
    not read either: llama.cpp may have rotated them by a Hadamard matrix, which the file does not
    say.

    Raises:
        RequestError: another version, or a file that ends before its ids.
    """
    name, known = VERSIONS[source.start[:4]]
    with source.path.open("rb") as file:
        cursor = Cursor(file, source.path)
        try:
            _, version, count = cursor.take("4sII")
            if version not in known:
                kind, read = f"llama.cpp {name}, version {version}", " and ".join(map(str, known))
                raise source.refuse(f"{kind}; known are {read}")
            ids = list(cursor.take(f"{count}i"))
        except struct.error:
            raise source.refuse(f"llama.cpp {name}: the file ends before its token ids") from None
        kind = f"llama.cpp {name}, version {version}: {count} token ids"
        if not ids:
            raise source.refuse(f"{kind}; give one that has some")
        try:
            if name == "session":
                _pass_name(cursor)
            outputs = _read_cache(cursor)
        except (struct.error, ValueError) as error:
            why = f"no values of its cache can be read ({error}); leave --verify out"
            return Capture(kind, {}, [ids], refusal=why)
    return Capture(f"{kind}; values of {len(outputs)} layers", outputs, [ids], named=True)


class Cursor:
    """Reads numbers one after another, little-endian; none beyond the end of the file."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path, self.at, self.size = file, path, 0, path.stat().st_size

    def take(self, form: str) -> tuple[int, ...]:
        """Numbers in the form of `struct`; a `struct.error` where the file ends before them."""
        count = struct.calcsize(f"<{form}")
        offset = self.skip(count)
        self.file.seek(offset)
        return struct.unpack(f"<{form}", self.file.read(count))

    def skip(self, count: int) -> int:
        """Goes past bytes, and gives where they began."""
        if count < 0 or self.at + count > self.size:
            raise struct.error("the file ends within it")
        self.at += count
        return self.at - count


def _pass_name(cursor: Cursor) -> None:
    """Goes past the name of the architecture, which a slot does not have.

    Raises:
        ValueError: it is no name.
        struct.error: the file ends within it.
    """
    (length,) = cursor.take("I")
    if not 0 < length <= LONGEST_NAME:
        raise ValueError(f"an architecture's name of {length} characters")
    name = bytes(cursor.take(f"{length}B"))
    if not name.isascii() or not name.decode().isprintable():
        raise ValueError(f"an architecture named {name!r}")


def _read_cache(cursor: Cursor) -> dict[str, Outputs]:
    """The values of each layer; see `read`.

    Raises:
        ValueError: another layout than one sequence, its positions in order, that fills the file.
        struct.error: the file ends within it.
    """
    streams, T = cursor.take("II")
    if streams != 1 or not T:
        raise ValueError(f"{streams} streams, {T} cells")
    for number in range(T):
        position, sequences = cursor.take("iI")
        if position != number or sequences > 1:
            raise ValueError(f"cell {number} has position {position} of {sequences} sequences")
        cursor.take(f"{sequences}i")
    transposed, layers = cursor.take("II")
    if transposed > 1 or not 0 < layers <= MOST_LAYERS:
        raise ValueError(f"v_trans {transposed}, {layers} layers")
    for _ in range(layers):  # keys
        _, width = cursor.take("iQ")
        cursor.skip(T * width)
    found = [_find_values(cursor, T, bool(transposed)) for _ in range(layers)]
    if cursor.at != cursor.size:
        raise ValueError(f"{cursor.size - cursor.at:,} bytes more than its layout has")
    return {f"value.{number}": entry for number, entry in enumerate(found, start=1)}


def _find_values(cursor: Cursor, T: int, transposed: bool) -> Outputs:
    """The values of the next layer, not read yet."""
    if transposed:
        number, size, width = cursor.take("iII")
    else:
        number, row = cursor.take("iQ")
        size = FLOAT_CODES[number].itemsize if number in FLOAT_CODES else 1
        width = row // size
    if number in QUANTISED:
        raise ValueError(f"{QUANTISED[number]}, which may be Hadamard-rotated")
    kind = FLOAT_CODES.get(number)
    if kind is None or size != kind.itemsize or not width or (not transposed and row % size):
        raise ValueError(f"values of type {number} in {size} bytes, {width} channels")
    start = cursor.skip(T * width * size)
    shape = (width, T) if transposed else (T, width)
    values = locate_numbers(cursor.path, start, shape, kind)
    return Outputs(values.map(lambda x: x.T.contiguous()) if transposed else values)
