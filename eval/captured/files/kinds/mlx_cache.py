"""Prompt caches that mlx-lm saves: the keys and values of each layer, and how many rows count."""

import re
from collections.abc import Mapping

from eval.captured.files.kinds.kind import INTEGERS, Capture, Source
from eval.captured.files.stored import FLOAT_NAMES
from eval.captured.files.tensors import Outputs, read_metadata

NAME = re.compile(r"\d+(\.\d+)+")
CLASSES = "1", "2"
"""What the names begin with by which the header tells each layer's class: today, and in 0.26."""
PLAIN = ("KVCache", "ConcatenateKVCache")
WINDOW = "RotatingKVCache"


def recognise(source: Source) -> bool:
    """Tensors that are named by numbers, and a class of cache for each first number."""
    named = source.path.is_file() and all(map(NAME.fullmatch, source.entries))
    return named and bool(_classes(read_metadata(source.path)))


def read(source: Source) -> Capture:
    """`rotated_key.N` and `value.N`, `(B, heads, T, width)`, of each block N.

    Layout: `save_prompt_cache` of mlx-lm. Rows behind a cache's own count are left out: room for
    later tokens, or tokens that were taken back (`trim_prompt_cache`).

    Raises:
        RequestError: no layer whose rows are the prompt's from the first on, as floats.
    """
    outputs, others = dict[str, Outputs](), dict[str, list[int]]()
    header = read_metadata(source.path)
    for layer, kind in sorted(_classes(header).items()):
        parts = {"rotated_key": f"{layer}.0", "value": f"{layer}.1"}
        held = [source.entries.get(name) for name in parts.values()]
        whole = all(part and len(part.shape) == 4 and part.kind in FLOAT_NAMES for part in held)
        rows = _count_rows(source, header, layer, kind) if whole else kind
        if isinstance(rows, str):
            others.setdefault(rows, []).append(layer + 1)
            continue
        for part, entry in zip(parts, held, strict=True):
            if entry:
                cut = entry.map(lambda x, rows=rows: x[:, :, :rows])
                outputs[f"{part}.{layer + 1}"] = Outputs(cut)
    left = "; ".join(
        f"not read: layers {', '.join(map(str, layers))}, {why}" for why, layers in others.items()
    )
    if not outputs:
        raise source.refuse(f"prompt cache of mlx-lm; {left}")
    layers = len(outputs) // 2
    return Capture(
        f"prompt cache of mlx-lm: keys and values of {layers} layers, keys rotated"
        + f"; {left}" * bool(left),
        outputs,
        named=True,
    )


def _classes(header: Mapping[str, str]) -> dict[int, str]:
    """The class of each layer's cache."""
    for first in CLASSES:
        found = {
            int(name.partition(".")[2]): kind
            for name, kind in header.items()
            if re.fullmatch(rf"{first}\.\d+", name) and kind.endswith(("Cache", "CacheList"))
        }
        if found:
            return found
    return {}


def _count_rows(source: Source, header: Mapping[str, str], layer: int, kind: str) -> int | str:
    """The rows of a layer that are its prompt's from the first on; or why there are none."""
    present = source.entries[f"{layer}.0"].shape[2]
    if source.entries[f"{layer}.1"].shape[2] != present:
        return f"{kind} with unlike keys and values"
    if kind not in (*PLAIN, WINDOW):
        return kind
    count = _number(source, f"{layer}.2")
    if kind == WINDOW:  # in 0.26 the header has its numbers, four or five: the last two count
        held = [number for name, number in sorted(header.items()) if name.startswith(f"0.{layer}.")]
        count, end = (
            _number(source, f"{layer}.{number}", old)
            for number, old in zip((2, 5), [None, None, *held][-2:], strict=True)
        )
        if count is None or end is None:
            return f"{kind} without the number of its rows"
        if count != end:
            return "a window that holds the last rows alone"
    count = present if count is None else count
    return count if 0 < count <= present else f"{kind} of {count} rows"


def _number(source: Source, name: str, otherwise: str | None = None) -> int | None:
    """The whole number that stands under a name, or else in the header; None if there is none."""
    entry = source.entries.get(name)
    if entry and entry.kind in INTEGERS and not entry.shape:
        return int(entry.read())
    return int(otherwise) if otherwise and otherwise.isdecimal() else None
