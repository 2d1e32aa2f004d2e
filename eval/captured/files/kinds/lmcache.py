"""Chunks of keys and values that LMCache's file system backend writes, `.data` with a header."""

import math
import struct

import torch

from eval.captured.files.kinds.kind import Capture, Source, locate_numbers
from eval.captured.files.tensors import Outputs

HEADER = struct.Struct("<7i")
FORMATS = {
    1: "(2, layers, tokens, width)",
    2: "(tokens, 2, width), of a layer that it does not say",
    3: "(2, tokens, width), of a layer that it does not say",
    4: "compressed",
    5: "compressed",
    6: "MLA latents, which are neither keys nor values",
}
TYPES = {1: torch.float16, 2: torch.float16, 3: torch.bfloat16, 4: torch.float32,
         5: torch.float64, 6: torch.uint8, 7: torch.float8_e4m3fn,
         8: torch.float8_e5m2}  # fmt: skip


def recognise(source: Source) -> bool:
    """A header whose length, format and type are known, and which the file is as long as."""
    if len(source.start) < HEADER.size:
        return False
    length, form, kind, *_ = HEADER.unpack_from(source.start)
    size = source.path.stat().st_size
    return length + HEADER.size == size and form in FORMATS and kind in TYPES


def read(source: Source) -> Capture:
    """`rotated_key.N` and `value.N`, `(T, width)`, of each block N.

    Layout: `protocol.py` of LMCache/LMCache: seven integers, then numbers of format 1.

    Raises:
        RequestError: another format, numbers of 8 bits, whose scale the file lacks, or sizes that
            do not fill it.
    """
    length, form, number, *sizes = HEADER.unpack_from(source.start)
    if form != 1:
        raise source.refuse(
            f"LMCache chunk of format {form}, {FORMATS[form]}; known is {FORMATS[1]}"
        )
    kind = TYPES[number]
    if kind.itemsize == 1:
        raise source.refuse(f"LMCache chunk of {kind}: without a scale; multiply, and save floats")
    pairs, layers, T, width = sizes
    if min(sizes) < 1 or pairs != 2 or math.prod(sizes) * kind.itemsize != length:
        raise source.refuse(f"LMCache chunk: {tuple(sizes)} of {kind} are not {length:,} bytes")
    outputs = dict[str, Outputs]()
    for layer in range(layers):
        for pair, part in enumerate(("rotated_key", "value")):
            start = HEADER.size + (pair * layers + layer) * T * width * kind.itemsize
            held = locate_numbers(source.path, start, (T, width), kind)
            outputs[f"{part}.{layer + 1}"] = Outputs(held)
    return Capture(
        f"LMCache chunk: {T} tokens, {layers} layers, keys rotated; where it begins is not in it: "
        "give --first, if it is not the prompt's first chunk",
        outputs,
        named=True,
    )
