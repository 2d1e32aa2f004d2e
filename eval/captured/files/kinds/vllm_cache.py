"""Keys and values that vLLM's ExampleConnector writes: a folder with a file for each layer."""

from typing import Any

from eval.captured.files.arrays import Entry
from eval.captured.files.kinds.kind import Capture, Source, read_layer
from eval.captured.files.stored import FLOAT_NAMES
from eval.captured.files.tensors import Outputs

NAME = "kv_cache"
LEAST_BLOCK = 8
"""Tokens of a block of the cache, at least; whole blocks alone are written."""
JOINED, TRITON, OLD = "(T, heads, 2 * width)", "(T, 2, heads, width)", "(2, T, heads * width)"


def recognise(source: Source) -> bool:
    """A folder of files that are named by their layer, in each of which `kv_cache` stands alone."""
    return bool(source.layers) and all(set(held) == {NAME} for held in source.layers.values())


def read(source: Source) -> Capture:
    """`rotated_key.N` and `value.N`, `(T, heads * width)`, of each block N.

    Layout: `(T, heads, 2 * width)`, keys before values (`example_connector.py` of vLLM), of its
    Triton backend `(T, 2, heads, width)`, or as it once was `(2, T, heads * width)`.

    Raises:
        RequestError: two files of one layer, another shape or type, latents, or layers of unlike
            shapes.
    """
    found = dict[int, Entry]()
    for name, held in source.layers.items():
        layer = read_layer(name)
        if layer is None or layer in found:
            raise source.refuse(f"{name}: give one file for each layer, named model.layers.N")
        found[layer] = held[NAME]
    first = found[min(found)]
    for layer, entry in found.items():
        if (entry.shape, entry.kind) != (first.shape, first.kind):
            raise source.refuse(
                f"{NAME} of layer {layer} {entry}, of layer {min(found)} {first}; give one request"
            )
    T, layout, cuts = _find_layout(source, first)
    outputs = {
        f"{part}.{layer + 1}": Outputs(entry.map(lambda x, cut=cut: x[cut].flatten(1).contiguous()))
        for layer, entry in sorted(found.items())
        for part, cut in cuts.items()
    }
    kind = f"vLLM keys and values (ExampleConnector): {T} tokens, {len(found)} layers, keys rotated"
    kind += f"; {first.shape} read as {layout}; tokens behind the last whole block are not in it"
    return Capture(kind, outputs, named=True)


def _find_layout(source: Source, entry: Entry) -> tuple[int, str, dict[str, Any]]:
    """The number of tokens, the axes, and the indices of keys and values in a layer's tensor.

    Raises:
        RequestError: see `read`.
    """
    shape, every = entry.shape, slice(None)
    if entry.kind not in FLOAT_NAMES:
        raise source.refuse(
            f"{NAME} {entry}: fp8 without its scale and format; multiply by k_scale and v_scale of "
            "the checkpoint, and save floats"
        )
    if len(shape) == 2:
        raise source.refuse(f"{NAME} {entry}: an MLA latent, which is neither key nor value")
    T, second, *rest = (*shape, 0, 0)
    if len(shape) == 3 and min(shape) > 0:
        if T == 2 and not second % LEAST_BLOCK:
            return second, OLD, {"rotated_key": 0, "value": 1}
        half, odd = divmod(rest[0], 2)
        if not (T % LEAST_BLOCK or odd):
            cuts = {"rotated_key": (..., slice(half)), "value": (..., slice(half, None))}
            return T, JOINED, cuts
    if len(shape) == 4 and min(shape) > 0 and second == 2 and not T % LEAST_BLOCK:
        return T, TRITON, {"rotated_key": (every, 0), "value": (every, 1)}
    raise source.refuse(
        f"{NAME} {entry}: give {JOINED}, {TRITON} or {OLD}, T in whole blocks of {LEAST_BLOCK} "
        "tokens or more"
    )
