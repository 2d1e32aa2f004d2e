"""Captures of IBM's vLLM-Hook: tensors named by modules, plain or quantised, of all prompts."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from eval.captured.files.arrays import Entry, mask_prompts
from eval.captured.files.kinds.kind import Capture, Source, read_layer
from eval.captured.files.stored import FLOAT_NAMES, FLOATS, dtype_name
from eval.captured.files.tensors import Outputs

LENGTHS = "seq_lens"
COMPANIONS = ("_scale", "_zp", "_qmeta")
BITS = {"int8": 8, "int4": 4, "int2": 2}
FP8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def recognise(source: Source) -> bool:
    """Every tensor is named by a module of a layer, with `__` in the place of dots."""
    return bool(source.entries) and all("__layers__" in name for name in source.entries)


def read(source: Source) -> Capture:
    """`block.N` of outputs of blocks and `rotated_key.N` of `__k`, `(B, T, width)` with a mask.

    Layout: `artifact_writer.py` and `artifact_quant.py` of IBM/vLLM-Hook. Prompts stand padded, or
    one after another.

    Raises:
        RequestError: no `seq_lens`, rows that do not fit them, last tokens alone, a zero point,
            a quantisation that is not known, or two tensors of one site.
    """
    lengths = source.facts.get(LENGTHS)
    if (
        not isinstance(lengths, list)
        or not lengths
        or not all(type(T) is int and T > 0 for T in lengths)
    ):
        raise source.refuse(
            f"{LENGTHS} {str(lengths)[:50]}: give the tokens of each prompt, in "
            f"{source.path.with_suffix('.json').name} as vLLM-Hook writes it"
        )
    outputs, formats = dict[str, Outputs](), set[str]()
    for name in source.entries:
        if name.endswith((*COMPANIONS, "__q")):  # of queries there is no site
            continue
        site = _name_site(source, name)
        if site in outputs:
            raise source.refuse(f"{name}: another module's tensor is {site} too; keep one of them")
        rows, scale = _read_rows(source, name)
        formats.add(dtype_name(rows.dtype))
        outputs[site] = _split(source, name, rows, scale, lengths)
    if not outputs:
        raise source.refuse("holds queries alone; give keys or outputs of blocks")
    prompts = f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens"
    kind = f"vLLM-Hook capture: {prompts}, {', '.join(sorted(formats))}; {', '.join(outputs)}"
    return Capture(kind[:900], outputs, named=True)


def _name_site(source: Source, name: str) -> str:
    """The site of a module, whose layers count from 0."""
    layer, key = read_layer(name), name.endswith("__k")
    if layer is None or not (key or name.endswith(f"__layers__{layer}")):
        raise source.refuse(
            f"{name}: no block's output and no key is named so; as model__layers__3, or "
            "model__layers__3__self_attn__attn__k"
        )
    return f"{'rotated_key' if key else 'block'}.{layer + 1}"


def _read_rows(source: Source, name: str) -> tuple[Tensor, Tensor | None]:
    """A tensor's numbers, and a scale for each where they are integers.

    Raises:
        RequestError: see `read`.
    """
    held, about = source.entries[name].read(), source.facts.get(f"{name}_qmeta")
    if f"{name}_zp" in source.entries or source.facts.get(f"{name}_zp") is not None:
        raise source.refuse(f"{name}_zp: a zero point, which vLLM-Hook does not use; apply it")
    scale = source.entries.get(f"{name}_scale")
    if about is None and scale is None:
        if source.entries[name].kind not in FLOAT_NAMES:
            raise source.refuse(f"{name} {source.entries[name]}: integers without {name}_qmeta")
        return held, None
    about = about if isinstance(about, dict) else {}
    tag = str(about.get("tag"))
    if tag in BITS and scale is not None:
        codes = _read_codes(source, name, held, about, tag)
        return codes, _spread_scale(source, f"{name}_scale", scale.read(), codes, about)
    if tag in FP8 and scale is None and held.dtype == torch.uint8:
        return held.view(FP8[tag]), None
    if tag in FLOATS and scale is None and held.dtype == FLOATS[tag]:
        return held, None
    raise source.refuse(
        f"{name}: {source.entries[name]}, {name}_scale {scale}, {name}_qmeta {str(about)[:100]}: "
        f"known are {', '.join(BITS)} with a scale, {', '.join((*FP8, *FLOATS))} without"
    )


def _read_codes(source: Source, name: str, held: Tensor, about: dict[str, Any], tag: str) -> Tensor:
    """Codes `(T, width)` in int8, those that are packed unpacked: the first in the lowest bits."""
    try:
        T, width = map(int, about["orig_shape"])
    except (KeyError, TypeError, ValueError):
        raise source.refuse(
            f"{name}_qmeta: orig_shape {str(about.get('orig_shape'))[:50]}; must be [rows, width]"
        ) from None
    bits, largest = BITS[tag], 2 ** (BITS[tag] - 1) - 1
    kind = torch.int8 if bits == 8 else torch.uint8
    packed = T, math.ceil(width * bits / 8)
    if held.dtype != kind or tuple(held.shape) != packed or not held.numel():
        raise source.refuse(
            f"{name} {source.entries[name]}: {tag} of orig_shape {(T, width)} takes {packed} "
            f"{dtype_name(kind)}"
        )
    if bits < 8:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        fields = (held[..., None] >> shifts) & (2**bits - 1)
        held = fields.flatten(1)[:, :width].to(torch.int8) - largest
    if held.to(torch.int16).abs().max() > largest:
        raise source.refuse(f"{name}: a code beyond {largest}, the largest of {tag}")
    return held


def _spread_scale(
    source: Source, name: str, scale: Tensor, codes: Tensor, about: dict[str, Any]
) -> Tensor:
    """A scale for each code: of the tensor `(1,)`, tokens `(T,)` or groups `(T, groups)`."""
    (T, width), size = codes.shape, about.get("group_size")
    scale = scale.float()
    if (wrong := scale[~(scale.isfinite() & (scale > 0))]).numel():
        raise source.refuse(f"{name}: a scale of {wrong[0]:g}; scales are numbers above 0")
    if scale.numel() == 1:
        return scale.reshape(1, 1).expand(T, width)
    if tuple(scale.shape) in ((T,), (T, 1)):
        return scale.reshape(T, 1).expand(T, width)
    if type(size) is int and size > 0 and tuple(scale.shape) == (T, math.ceil(width / size)):
        return scale.repeat_interleave(size, dim=1)[:, :width]
    raise source.refuse(
        f"{name} {tuple(scale.shape)}: codes are {(T, width)}, group_size {str(size)[:20]}; a scale"
        f" is (1,), ({T},), or ({T}, groups)"
    )


def _split(
    source: Source, name: str, rows: Tensor, scale: Tensor | None, lengths: list[int]
) -> Outputs:
    """The prompts `(B, T, width)` of rows that stand padded, or one prompt after another.

    Raises:
        RequestError: rows that do not fit the lengths, or last tokens alone.
    """
    B, total, shape = len(lengths), sum(lengths), tuple(rows.shape)
    if len(shape) == 2 and shape[0] == total:
        padded = scale if scale is None else _pad(scale, lengths)
        return Outputs(_pad(rows, lengths), padded, mask=Entry.of(mask_prompts(lengths)))
    if len(shape) == 2 and shape[0] == B:
        raise source.refuse(
            f"{name} {shape}: the last token of each of {B} prompts alone; save a row as a tensor "
            "of its own, and give --first and --layer"
        )
    if len(shape) == 3 and shape[:2] == (B, max(lengths)) and scale is None:
        mask = mask_prompts(lengths)
        if rows.float()[mask == 0].any():
            raise source.refuse(f"{name}: numbers behind {LENGTHS} {lengths}; pads are zeros there")
        return Outputs(Entry.of(rows), mask=Entry.of(mask))
    raise source.refuse(f"{name} {shape}: {LENGTHS} {str(lengths)[:100]} say {total} tokens")


def _pad(rows: Tensor, lengths: list[int]) -> Entry:
    """Prompts one after another, `(sum of lengths, ...)`, as `(B, T, ...)` with zeros behind."""
    return Entry.of(nn.utils.rnn.pad_sequence(list(rows.split(lengths)), batch_first=True))
