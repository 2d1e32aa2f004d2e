"""Prompt caches that mlx-lm saves: the keys and values of each layer, and how many rows count."""

import re
from functools import partial

from torch import Tensor

from eval.captured.files.arrays import Entry
from eval.captured.files.kinds.kind import FLOATS, INTEGERS, Capture, Source
from eval.captured.files.tensors import Outputs, read_metadata

NAME = re.compile(r"\d+(\.\d+)+")
CLASSES = "1", "2"
"""Where the header names the class of each layer's cache: today, and in mlx-lm before 0.30."""
PLAIN = ("KVCache", "ConcatenateKVCache")
WINDOW = "RotatingKVCache"


def recognise(source: Source) -> bool:
    """Tensors that are named by numbers, and a class of cache for each first number."""
    return all(map(NAME.fullmatch, source.entries)) and bool(_classes(source))


def read(source: Source) -> Capture:
    """`rotated_key.N` and `value.N`, `(B, heads, T, width)`, of each block N.

    Layout: `save_prompt_cache` of mlx-lm. Rows behind a cache's own count are left out: room for
    later tokens, or tokens that were taken back (`trim_prompt_cache`).

    Raises:
        RequestError: no layer whose rows are the prompt's from the first on, as floats.
    """
    outputs, others = dict[str, Outputs](), dict[str, list[int]]()
    for layer, kind in sorted(_classes(source).items()):
        parts = {"rotated_key": f"{layer}.0", "value": f"{layer}.1"}
        held = [source.entries.get(name) for name in parts.values()]
        whole = all(part and len(part.shape) == 4 and part.kind in FLOATS for part in held)
        rows = _count_rows(source, layer, kind) if whole else f"{kind}"
        if isinstance(rows, str):
            others.setdefault(rows, []).append(layer + 1)
            continue
        for part, entry in zip(parts, held, strict=True):
            if entry:
                B, heads, _, width = entry.shape
                cut = Entry((B, heads, rows, width), entry.kind, partial(_cut, entry, rows))
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


def _classes(source: Source) -> dict[int, str]:
    """The class of each layer's cache, by the header of the file."""
    if source.path.is_dir() or not source.entries:
        return {}
    said = read_metadata(source.path)
    for place in CLASSES:
        found = {
            int(name.partition(".")[2]): kind
            for name, kind in said.items()
            if re.fullmatch(rf"{place}\.\d+", name) and kind.endswith("Cache")
        }
        if found:
            return found
    return {}


def _count_rows(source: Source, layer: int, kind: str) -> int | str:
    """The rows of a layer that are its prompt's from the first on; or why there are none."""
    present = source.entries[f"{layer}.0"].shape[2]
    if source.entries[f"{layer}.1"].shape[2] != present:
        return f"{kind} with unlike keys and values"
    if kind not in (*PLAIN, WINDOW):
        return kind
    said = read_metadata(source.path)
    numbers = {
        name: int(entry.read())
        for name in (f"{layer}.2", f"{layer}.5")
        if (entry := source.entries.get(name)) and entry.kind in INTEGERS and not entry.shape
    }
    count = numbers.get(f"{layer}.2", present)
    if kind == WINDOW:  # in older files the header says where it is
        old = [said.get(f"0.{layer}.{place}", "") for place in (3, 4)]
        count, end = (
            map(int, old)
            if all(number.isdecimal() for number in old)
            else (numbers.get(f"{layer}.2", -1), numbers.get(f"{layer}.5", -2))
        )
        if count != end:
            return "a window that holds the last rows alone"
    return count if 0 < count <= present else f"{kind} of {count} rows"


def _cut(entry: Entry, rows: int) -> Tensor:
    return entry.read()[:, :, :rows]
