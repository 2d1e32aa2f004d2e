"""Key/value caches of transformers: what each class of them holds, and from which position on.

A class that is not known is refused by its name: what it holds would be guessed.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from eval.captured.files.stored import NOT_PLAIN, is_plain
from eval.messages import ArgumentError, RequestError, say_once


class LayeredCache(Protocol):
    """A cache of transformers: for each layer keys and values `(B, heads, T, width)`."""

    layers: Sequence[Any]


Cache = LayeredCache | Sequence[tuple[Tensor, ...]]
"""Also a tuple of (keys, values), one a layer."""

LAYERS = {
    "DynamicLayer", "DynamicSlidingWindowLayer", "StaticLayer", "StaticSlidingWindowLayer",
    "LinearAttentionAndFullAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer",
    "LinearAttentionAndStaticFullAttentionLayer",
    "LinearAttentionAndStaticSlidingWindowAttentionLayer",
}  # fmt: skip
"""Classes of layers that hold numbers as they were computed: the last ones, or with room behind."""


def read_cache(
    outputs: Tensor | Cache, layer: int | Sequence[int] | None, part: str | None
) -> tuple[Tensor, int]:
    """The keys or values of a layer where a whole cache is given; a tensor as it is.

    Slots behind the last position written are cut, and what is before a window is said to be gone.

    Returns:
        The numbers, `(B, heads, T, width)` of a cache, and the position of the first row.

    Raises:
        RequestError: no tensor and no cache, a class that is not known, or a layer that holds
            nothing.
    """
    if isinstance(outputs, Tensor):
        return _check_plain(outputs), 0
    layers = _list_layers(outputs)
    if part not in ("rotated_key", "value") or not isinstance(layer, int):
        raise RequestError(
            f"layer {layer}, part {part}: of a cache give part rotated_key or value, and one layer"
        )
    if not 1 <= layer <= len(layers):
        raise ArgumentError("layer", f"the cache has layers 1 to {len(layers)}", layer)
    read = _read_pair if layers is outputs else _read_layer
    keys, values, written = read(layers[layer - 1], layer)
    held = values if part == "value" else keys
    if not isinstance(held, Tensor) or held.dim() != 4 or not held.numel():
        raise ArgumentError("layer", "the cache holds no keys and values of it", layer)
    if (
        isinstance(keys, Tensor)
        and isinstance(values, Tensor)
        and keys.shape[:3] != values.shape[:3]
    ):
        raise ArgumentError(
            "layer",
            f"keys {tuple(keys.shape)} and values {tuple(values.shape)} are of unlike positions; "
            "give the tensor itself",
            layer,
        )
    _check_plain(held)
    rows = held.shape[2]
    if not written:
        raise ArgumentError("layer", "nothing was written to the cache yet", layer)
    if written < rows:
        say_once(f"layer {layer}: positions {written} to {rows - 1} of the cache are empty; cut")
        return held[:, :, :written], 0
    if written > rows:
        say_once(f"layer {layer}: holds the last {rows} of {written} positions (a sliding window)")
    return held, written - rows


def _check_plain(tensor: Tensor) -> Tensor:
    if not is_plain(tensor):
        raise ArgumentError("outputs", f"{_name(tensor)}: {NOT_PLAIN}")
    return tensor


def _list_layers(cache: Any) -> Sequence[Any]:
    """What a cache holds of each layer.

    Raises:
        RequestError: it is none.
    """
    held = getattr(cache, "layers", None)
    if held is None and isinstance(cache, list | tuple):
        if all(isinstance(layer, Tensor) for layer in cache):
            raise ArgumentError(
                "outputs",
                f"a {_name(cache)} of {len(cache)} tensors; give one of them, as [3] for layer 3",
            )
        held = cache
    if not isinstance(held, Sequence):
        raise ArgumentError(
            "outputs",
            f"a {_name(cache)}; give a tensor, a decoder's cache of transformers 5, or a pair of "
            "keys and values for each layer",
        )
    return held


def _read_pair(pair: Any, layer: int) -> tuple[Any, Any, int]:
    """Keys and values, and how many positions they have.

    Raises:
        RequestError: no pair of them.
    """
    if isinstance(pair, tuple) and len(pair) == 3 and pair[2] is None:  # of list(cache): no window
        pair = pair[:2]
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        held = f"{len(pair)} entries" if isinstance(pair, list | tuple) else f"a {_name(pair)}"
        raise ArgumentError("layer", f"{held}; give a pair of keys and values", layer)
    keys, values = pair
    return keys, values, keys.shape[2] if isinstance(keys, Tensor) and keys.dim() == 4 else 0


def _read_layer(held: Any, layer: int) -> tuple[Any, Any, int]:
    """Keys and values of a layer, and how many positions were written to it.

    Raises:
        RequestError: a class that is not known.
    """
    if "uantized" in (name := _name(held)):
        raise ArgumentError(
            "layer",
            f"its numbers are quantised ({name}); give the tensors themselves, "
            "dequantised or with their scale",
            layer,
        )
    if name not in LAYERS:
        raise ArgumentError(
            "layer",
            f"what a {name} holds is not known; give the keys or values themselves; known are "
            + ", ".join(sorted(LAYERS)),
            layer,
        )
    if held.keys is None:
        raise ArgumentError("layer", "nothing was written to the cache yet", layer)
    return held.keys, held.values, int(held.get_seq_length())


def _name(thing: object) -> str:
    return type(thing).__name__
