"""Captured tensors as people store them: their number formats, and files of them.

A format rounds each number to the nearest of those that it has. The distance between neighbours,
the step, bounds how far a stored number lies from the one computed: half a step, or a whole one
where the model's own rounding tips it to the other side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eval import RequestError
from eval.text import say_once

FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BYTES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
FORMATS = (*FLOATS, *BYTES, "int8")
OFFSETS = (".zero_point", "_zero_point", ".zp", ".zeros", ".offset")
"""Endings of the names of tensors that are to be taken from integers before they are scaled."""
SCALED = ("{}.scale", "{}_scale", "scale")
"""Names under which a file may hold the scale of an integer tensor."""
FILES = "a .safetensors, .npy or .npz file"
BOMB = 100  # times its size that an archive may unpack to


@dataclass(frozen=True)
class Stored:
    """Outputs of a site as numbers of a format.

    Attributes:
        values: the numbers that are stored, `(B, T, C)`, in float32.
        step: distance between neighbouring numbers of the format at each, `(B, T, C)`.
        format: one of `FORMATS`.
    """

    values: Tensor
    step: Tensor
    format: str

    def to(self, device: torch.device) -> Stored:
        """The same on a device."""
        return Stored(self.values.to(device), self.step.to(device), self.format)


def rounding_spread(steps: Tensor) -> Tensor:
    """How far stored numbers lie from those computed, at most: `(..., C)` steps to `(...)`.

    Rounding errors are even within half a step, and their squares add up: six deviations above
    their mean, and never above that of half a step in each number.
    """
    squares = steps.double().square()
    mean, variance = squares.sum(-1) / 12, squares.square().sum(-1) / 180
    return torch.minimum(mean + 6 * variance.sqrt(), squares.sum(-1) / 4).sqrt().to(steps.dtype)


def read_stored(
    outputs: Tensor, format: str | None = None, scale: Tensor | float | None = None
) -> Stored:
    """A caller's tensor as the numbers that it holds, and their steps.

    Args:
        outputs: `(T, C)`, `(B, T, C)`, or `(B, heads, T, width)` as a key/value cache holds them.
        format: that the numbers went through, if not the tensor's own; None: the tensor's own, or
            the shortest of `FLOATS` that holds all of them.
        scale: of integers: one number, or `(C,)` for channels, `(T,)`, `(T, 1)` or `(B, T, 1)` for
            tokens; each stands for that many units.

    Raises:
        RequestError: another shape or format, or integers without a scale.
    """
    if format is not None and format not in FORMATS:
        raise RequestError(f"format {format!r}: must be one of {', '.join(FORMATS)}")
    shape = tuple(outputs.shape)
    if outputs.dim() == 4:
        outputs = outputs.transpose(1, 2).flatten(2)
    elif outputs.dim() == 2:
        outputs = outputs[None]
    if outputs.dim() != 3 or not outputs.numel() or outputs.dtype == torch.bool:
        raise RequestError(
            f"outputs: {shape} of {_kind(outputs)}; give numbers of the shape (T, width), "
            "(B, T, width), or (B, heads, T, width) of a key/value cache"
        )
    if outputs.is_complex():
        raise RequestError(f"outputs: {_kind(outputs)}; give real numbers")
    if not outputs.is_floating_point():
        return _of_integers(outputs, format, scale)
    if outputs.element_size() == 1:
        return _of_bytes(outputs, format, scale)
    if scale is not None:
        raise RequestError(
            f"scale: outputs of {_kind(outputs)} need none; multiply them by it first, or leave it "
            "out"
        )
    values = outputs.float()  # numbers of float64 are rounded, which the steps of float32 allow for
    known = format or _shortest(values)
    if known not in FLOATS:
        raise RequestError(
            f"format {known}: outputs are of {_kind(outputs)}; give the stored numbers and their "
            "scale"
        )
    return Stored(values, _steps(values, FLOATS[known]), known)


def _of_integers(outputs: Tensor, format: str | None, scale: Tensor | float | None) -> Stored:
    if outputs.dtype != torch.int8 or format not in (None, "int8"):
        raise RequestError(f"outputs: {_kind(outputs)}; of integers int8 is known, with a scale")
    if scale is None:
        raise RequestError(
            "outputs: int8 without a scale; give it (a tensor named NAME.scale in the file, or "
            "scale=): (width,) for channels, (T,) or (T, 1) for tokens, or one number"
        )
    step = _spread_scale(scale, outputs)
    return Stored(outputs * step, step, "int8")


def _of_bytes(outputs: Tensor, format: str | None, scale: Tensor | float | None) -> Stored:
    """Floating-point numbers of one byte, each of which stands for as many units."""
    names = {kind: name for name, kind in BYTES.items()}
    if outputs.dtype not in names or format not in (None, names[outputs.dtype]):
        raise RequestError(
            f"outputs: {_kind(outputs)}; of floating-point numbers of one byte "
            f"{', '.join(map(str, BYTES.values()))} are known"
        )
    values = outputs.float()
    units = 1.0 if scale is None else _spread_scale(scale, outputs)
    return Stored(values * units, _steps(values, outputs.dtype) * units, names[outputs.dtype])


def _spread_scale(scale: Tensor | float, outputs: Tensor) -> Tensor:
    """The scale of each of `(B, T, C)` numbers; 0 where the number is 0 and needs none.

    Raises:
        RequestError: a shape that does not fit, or a scale that is not a number above 0.
    """
    units = torch.as_tensor(scale, device=outputs.device).float()
    B, T, C = outputs.shape
    if units.dim() == 4:  # of keys and values: (B, heads, T, 1 or width)
        heads = units.shape[1]
        whole = units.shape[:3] == (B, heads, T) and not C % heads
        if whole and units.shape[3] in (1, C // heads):
            units = units.expand(B, heads, T, C // heads).transpose(1, 2).flatten(2)
    elif units.dim() == 1 and len(units) == T != C:
        units = units[:, None]
    elif units.dim() > 1 and 1 < units.shape[-1] < C and not C % units.shape[-1]:
        units = units.repeat_interleave(C // units.shape[-1], dim=-1)  # of groups of channels
    try:
        step = units.expand(outputs.shape)
    except RuntimeError:
        raise RequestError(
            f"scale: {tuple(units.shape)} does not fit outputs of {tuple(outputs.shape)}; give "
            f"({C},) for channels, ({T},) or ({T}, 1) for tokens, (T, groups) for groups of "
            "channels, or one number"
        ) from None
    fits = step.isfinite() & ((step > 0) | ((step == 0) & (outputs.float() == 0)))
    if not bool(fits.all()):
        raise RequestError("scale: must be above 0 wherever a number is not 0")
    return step


def _shortest(values: Tensor) -> str:
    """The shortest format that holds all the numbers, those that are no numbers left out."""
    finite = values[values.isfinite()]
    for name, kind in FLOATS.items():
        if torch.equal(finite.to(kind).to(finite.dtype), finite):
            return name
    raise AssertionError("float32 holds what was rounded to it")


def _steps(values: Tensor, kind: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of a floating-point format, at each value."""
    about = torch.finfo(kind)
    least = max(about.smallest_normal * about.eps, torch.finfo(values.dtype).tiny)
    finite = values.nan_to_num(0.0, 0.0, 0.0)
    steps = torch.ldexp(torch.full_like(values, about.eps / 2), torch.frexp(finite).exponent)
    return steps.masked_fill(finite == 0, least).clamp(min=least)


def _kind(outputs: Tensor) -> str:
    return str(outputs.dtype).removeprefix("torch.")


def read_tensors(path: str | Path) -> dict[str, tuple[Tensor, Tensor | None]]:
    """The tensors of a file by name, each with its scale if the file has one.

    Nothing in a file is run: pickles (.pt, .pth, .bin, .pkl) are refused.

    Args:
        path: a .safetensors file, or a .npy file of one array, which is named after the file.

    Raises:
        RequestError: no such file, another kind, a damaged one, or one without tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise RequestError(f"{path}: no such file; give {FILES}")
    if not path.stat().st_size:
        raise RequestError(f"{path}: the file is empty; give {FILES}")
    tensors = load_tensors(path)
    scales = {
        name: template.format(name)
        for name in tensors
        for template in reversed(SCALED)
        if template.format(name) in tensors and template.format(name) != name
    }
    wanted = {name: (tensor, tensors.get(scales.get(name, "")))
              for name, tensor in sorted(tensors.items())
              if name not in scales.values() and tensor.dim() > 1}  # fmt: skip
    if not wanted:
        held = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items()) or "nothing"
        raise RequestError(
            f"{path}: holds {held}; give tensors of the shape (T, width) or (B, T, width)"
        )
    for name in tensors:
        if name.endswith(OFFSETS):
            raise RequestError(f"{path}: {name} is not known; subtract it first")
    if rest := tensors.keys() - wanted.keys() - {scales[name] for name in scales}:
        say_once(f"{path}: {', '.join(sorted(rest))}: of one dimension, not read")
    return wanted


def load_tensors(path: Path) -> Mapping[str, Tensor]:
    """All tensors of a file by name, scales among them; see `read_tensors`."""
    with path.open("rb") as file:
        start = file.read(9)
    if path.suffix == ".npy" or start.startswith(b"\x93NUMPY"):
        return {path.stem: _load_array(path)}
    if path.suffix == ".npz":
        return _load_arrays(path)
    # archives of torch.save, and plain pickles; the ninth byte of safetensors opens their header
    if start.startswith((b"PK\x03\x04", b"\x80")) and not start.endswith(b"{"):
        raise RequestError(
            f"{path}: a pickle, which could run code when it is read; save its tensors by "
            "safetensors.torch.save_file({name: tensor, ...}, FILE)"
        )
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, ValueError) as error:
        raise RequestError(f"{path}: not {FILES} ({error})") from None


def _load_array(path: Path) -> Tensor:
    import numpy as np

    try:
        return _as_tensor(np.load(path, allow_pickle=False, mmap_mode=None))
    except Exception as error:  # of many kinds, by what stands in the header
        raise RequestError(f"{path}: not an array of numbers ({_first_line(error)})") from None


def _load_arrays(path: Path) -> dict[str, Tensor]:
    """The arrays of a .npz file by name; one that would fill the memory is refused."""
    import zipfile

    import numpy as np

    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > BOMB * path.stat().st_size + (64 << 20):
            raise ValueError(f"it unpacks to {size:,} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: _as_tensor(arrays[name]) for name in arrays.files}
    except Exception as error:
        raise RequestError(f"{path}: no .npz of arrays of numbers ({_first_line(error)})") from None


def _as_tensor(array: Any) -> Tensor:
    """An array of either byte order as a tensor."""
    import numpy as np

    if array.dtype.kind == "V":
        raise ValueError(
            f"{array.dtype.itemsize}-byte numbers without a type, as numpy keeps bfloat16; save "
            "them as float32"
        )
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.ascontiguousarray(native).reshape(array.shape))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
