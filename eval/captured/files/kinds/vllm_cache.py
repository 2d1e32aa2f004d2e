"""Keys and values that vLLM's ExampleConnector writes: a folder with a file for each layer."""

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from eval.captured.files.arrays import Entry
from eval.captured.files.kinds.kind import Capture, Source, read_layer
from eval.captured.files.stored import FLOAT_NAMES
from eval.captured.files.tensors import Outputs

NAME = "kv_cache"
LEAST_BLOCK = 8
"""Tokens of a block of the cache, at least; whole blocks alone are written."""


def recognise(source: Source) -> bool:
    """A folder of files that are named by their layer, in each of which `kv_cache` stands alone."""
    return bool(source.layers) and all(set(held) == {NAME} for held in source.layers.values())


def read(source: Source) -> Capture:
    """`rotated_key.N` and `value.N`, `(T, heads * width)`, of each block N.

    Layout: `(T, heads, 2 * width)`, keys before values (`example_connector.py` of vLLM), or as it
    once was `(2, T, heads * width)`.

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
    T, cuts = _cuts(source, first)
    outputs = dict[str, Outputs]()
    for layer, entry in sorted(found.items()):
        for part, cut in cuts.items():
            outputs[f"{part}.{layer + 1}"] = Outputs(
                Entry((T, _width(first)), entry.kind, partial(_read, entry, cut))
            )
    kind = f"vLLM keys and values (ExampleConnector): {T} tokens, {len(found)} layers, keys rotated"
    return Capture(f"{kind}; tokens behind the last whole block are not in it", outputs, named=True)


def _cuts(source: Source, entry: Entry) -> tuple[int, Mapping[str, Callable[[Tensor], Tensor]]]:
    """The number of tokens, and what takes the keys and the values out of a layer's tensor.

    Raises:
        RequestError: see `read`.
    """
    shape = entry.shape
    if entry.kind not in FLOAT_NAMES:
        raise source.refuse(
            f"{NAME} {entry}: fp8 without its scale and format; multiply by k_scale and v_scale of "
            "the checkpoint, and save floats"
        )
    if len(shape) == 2:
        raise source.refuse(f"{NAME} {entry}: an MLA latent, which is neither key nor value")
    whole = len(shape) == 3 and min(shape) > 0
    if whole and shape[0] == 2 and not shape[1] % LEAST_BLOCK:
        return shape[1], {"rotated_key": lambda held: held[0], "value": lambda held: held[1]}
    if whole and not shape[0] % LEAST_BLOCK and not shape[2] % 2:
        width = shape[2] // 2
        return shape[0], {
            "rotated_key": lambda held: held[..., :width],
            "value": lambda held: held[..., width:],
        }
    raise source.refuse(
        f"{NAME} {entry}: give (T, heads, 2 * width) or (2, T, heads * width), T in whole blocks "
        f"of {LEAST_BLOCK} tokens or more"
    )


def _width(entry: Entry) -> int:
    A, B, C = entry.shape
    return C if A == 2 else B * C // 2


def _read(entry: Entry, cut: Callable[[Tensor], Tensor]) -> Tensor:
    return cut(entry.read()).flatten(1).contiguous()
