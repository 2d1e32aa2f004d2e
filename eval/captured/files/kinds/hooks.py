"""Activations named by the hooks of TransformerLens: a dictionary in one file, or SAELens' folder.

SAELens keeps a `datasets` folder with a column for each hook; its rows are shuffled, the positions
within a row are not. Of a model that transformers runs, a hook is named by its module.
"""

import math
import re
from collections.abc import Mapping

import torch

from eval.captured.files.arrays import Entry
from eval.captured.files.kinds.kind import INTEGERS, Capture, Source
from eval.captured.files.stored import FLOAT_NAMES
from eval.captured.files.tensors import Outputs, find_mask
from eval.sites.circuit import CACHED

BEFORE = ("hook_resid_pre", "hook_in")
"""Hooks on what goes into a block, which is what the block before it gives."""
PARTS = {
    "hook_resid_pre": "block", "hook_resid_mid": "stream", "hook_resid_post": "block",
    "hook_attn_out": "mixer", "attn.hook_k": "key", "attn.hook_rot_k": "rotated_key",
    "attn.hook_v": "value", "hook_in": "block", "hook_out": "block", "attn.hook_out": "mixer",
    "attn.k.hook_out": "key", "attn.v.hook_out": "value",
}  # fmt: skip
"""What they are the outputs of: names of HookedTransformer, then those of TransformerBridge."""
HOOK = re.compile(rf"blocks\.(\d+)\.({'|'.join(map(re.escape, PARTS))})")
MODULE = re.compile(r"(?:\w+\.)+(?:layers|h|blocks)\.(\d+)(?:\.\w+\.([kv])_proj)?")
"""A block of a model of transformers, or its projection to keys or values."""
IDS = "token_ids"


def recognise(source: Source) -> bool:
    """A name as `blocks.3.hook_resid_post`; a folder of `datasets` with such a column.

    Or a folder with a column for the tokens and one of a module, as `model.layers.3`.
    """
    hooks = (name for name in source.entries if "hook_" in name and name.startswith("blocks."))
    if not all(name.rpartition(".")[2].isdecimal() for name in hooks):  # numbers are of a list
        return True
    modules = any(map(MODULE.fullmatch, source.entries))
    return modules and IDS in source.entries and source.path.is_dir()


def read(source: Source) -> Capture:
    """The parts of each block N, as `block.N` and `key.N`, `(B, T, width)`.

    Layout: hook L of TransformerLens counts blocks from 0; keys and values are `(B, T, heads,
    width)`, or of TransformerBridge also `(B, T, heads * width)`: without B, the site tells them.
    SAELens: `(B, T, width)`, and in newer folders `token_ids`, `(B, T)`. A mask beside them is of
    the tokens, too.

    Raises:
        RequestError: no hook that is known, another shape or type, or ids that are no rows of whole
            numbers, or of fewer positions.
    """
    outputs, differing, masks = dict[str, Outputs](), dict[str, None](), list[Entry | None]()
    for name, entry in source.entries.items():
        if hook := _find_hook(name):
            site, headed = hook
            read = _read_hook(source, name, entry, headed)
            masks.append(read.mask)
            if (other := outputs.get(site)) and not _are_equal(other, read):
                differing[site] = None  # as where a norm stands behind a mixer
            outputs[site] = read
    outputs = {site: read for site, read in outputs.items() if site not in differing}
    twofold = f"; two hooks of {', '.join(differing)} differ: neither is read" * bool(differing)
    unread = [
        name
        for name, entry in source.entries.items()
        if not (_find_hook(name) or name == IDS or any(entry is mask for mask in masks))
    ]
    if not outputs:
        raise source.refuse(
            f"hooks {', '.join(unread)[:300]}{twofold}: known are blocks.N. and {', '.join(PARTS)};"
            " latents of an SAE, scores and outputs behind a norm are no sites"
        )
    ids = _read_ids(source)
    by = "TransformerLens" if any(map(HOOK.fullmatch, source.entries)) else "a model's modules"
    kind = f"hooks of {by}: {', '.join(outputs)}{twofold}"
    if unread:
        kind += f"; not read: {', '.join(unread)}"
    if ids is not None:
        T, held = _count_tokens(source, outputs, ids), len(ids[0])
        if held > T:
            why = f"has outputs of {T} of its {held} tokens alone; leave --verify out"
            return Capture(kind[:900], {}, ids, refusal=why)
    return Capture(kind[:900], outputs, ids, named=True)


def _find_hook(name: str) -> tuple[str, bool] | None:
    """The site of a hook, and whether its heads may be an axis of their own; None: it has none."""
    if match := HOOK.fullmatch(name):
        part = PARTS[match[2]]
        return f"{part}.{int(match[1]) + (match[2] not in BEFORE)}", part in CACHED
    if match := MODULE.fullmatch(name):
        part = {None: "block", "k": "key", "v": "value"}[match[2]]
        return f"{part}.{int(match[1]) + 1}", False
    return None


def _read_ids(source: Source) -> list[list[int]] | None:
    """The tokens of each prompt; None where they do not stand in it.

    Raises:
        RequestError: they are no rows of whole numbers of one length.
    """
    if (entry := source.entries.get(IDS)) is not None:
        if entry.kind not in INTEGERS or len(entry.shape) not in (1, 2) or not min(entry.shape):
            raise source.refuse(f"{IDS} {entry}: give int64, (B, T)")
        return entry.read().view(-1, entry.shape[-1]).tolist()
    if (ids := source.facts.get(IDS)) is None:
        return None
    lists = (list, tuple)
    is_nested = isinstance(ids, lists) and all(isinstance(row, lists) for row in ids)
    rows = list(ids) if is_nested else [ids]
    whole = all(isinstance(row, lists) and all(type(x) is int for x in row) for row in rows)
    if not whole or not rows or not rows[0] or len({len(row) for row in rows}) > 1:
        raise source.refuse(f"{IDS} {ids!r:.50}: give whole numbers, (B, T)")
    return [list(row) for row in rows]


def _count_tokens(source: Source, outputs: Mapping[str, Outputs], ids: list[list[int]]) -> int:
    """The tokens of each prompt whose outputs all hooks hold.

    Raises:
        RequestError: a hook of another number of prompts than of ids, or of more tokens.
    """
    held, least = len(ids[0]), len(ids[0])
    for site, read in outputs.items():
        *axes, T = read.outputs.shape[:-1]
        if site.startswith(CACHED) and len(ids) == 1 and read.outputs.shape[0] == held:
            axes, T = [], held  # (T, heads, width)
        if math.prod(axes) != len(ids) or held < T:
            said = f"{IDS} of {len(ids)} prompts of {held} tokens, hooks {site} {(*axes, T)}"
            raise source.refuse(f"{said}; give those of the same text")
        least = min(least, T)
    return least


def _are_equal(first: Outputs, second: Outputs) -> bool:
    """Whether two hooks hold the same numbers, as one block's output and the next one's input."""
    one, other = first.read().outputs, second.read().outputs
    return one.dtype == other.dtype and torch.equal(one.flatten(), other.flatten())


def _read_hook(source: Source, name: str, entry: Entry, headed: bool) -> Outputs:
    """The outputs of a hook; heads are joined where the shape says that they are an axis.

    Raises:
        RequestError: another shape or type.
    """
    shape = entry.shape
    if not 2 <= len(shape) <= 3 + headed or min(shape) < 1 or entry.kind not in FLOAT_NAMES:
        axes = "(B, T, width), of keys and values also (B, T, heads, width)"
        raise source.refuse(f"{name} {entry}: give floats {axes}, or without B")
    # (B, T, heads * width) or (T, heads, width): the site's width tells, but not of these
    headed &= len(shape) == 4 or (len(shape) == 3 and shape[1] in (1, shape[0]))
    shapes = shape[:-2] if headed else shape[:-1], (1, shape[0])
    mask = source.entries.get(find_mask(name, source.entries, shapes) or "")
    return Outputs(entry.map(lambda x: x.flatten(-2)) if headed else entry, mask=mask)
