"""Number formats in which captured tensors are stored.

A format rounds each number to the nearest of those that it has. The distance between neighbours,
the step, bounds how far a stored number lies from the one computed: half a step, or a whole one
where the model's own rounding tips it to the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eval.messages import ArgumentError, RequestError, say_of_model


def dtype_name(kind: torch.dtype) -> str:
    """The name of a type of numbers, as float32."""
    return str(kind).removeprefix("torch.")


EXACT = "fp32"
FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16, EXACT: torch.float32}
FP8 = {
    "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
    "fp8_e4m3fnuz": torch.float8_e4m3fnuz, "fp8_e5m2fnuz": torch.float8_e5m2fnuz,
}  # fmt: skip
CODES = {"int8": torch.int8, "uint8": torch.uint8}
FLOAT_NAMES = frozenset(map(dtype_name, (torch.float64, *FLOATS.values())))
EIGHT_BITS = frozenset(map(dtype_name, (*FP8.values(), *CODES.values())))
BITS = {torch.int8: 1, torch.uint8: 1, torch.int16: 2, torch.uint16: 2}
"""Integers that may hold the bits of floats, by their bytes."""
FORMATS = (*FLOATS, *FP8, *CODES)
ORDERS = {2: "TC", 3: "BTC", 4: "BHTd"}
"""Axes of a tensor, by how many it has: prompts B, tokens T, channels C, heads H and those of d."""
ENOUGH = 16  # numbers that are no chance where all of them are also numbers of 8 bits
MOST_DECIMALS = 8
MOST_DIGITS = 6  # of which float32 keeps each
CLEAR = 8  # times the rounding of float32, from which a step of decimals is seen
SHAPES = (
    "one number, (T,) or (T, 1) for tokens, (width,) for channels, (T, groups) for groups of "
    "channels, (B, heads, T, 1) for tokens and heads"
)


DISPATCH = "__torch_dispatch__"
"""What classes of tensors have of their own that hold no numbers, or not all of them."""
NOT_PLAIN = (
    "a sparse, nested, masked, quantised or distributed tensor, or one without numbers; give a "
    "dense one, as by to_dense() or full_tensor()"
)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has a number in memory at each place of its shape, and none elsewhere."""
    return (
        tensor.layout == torch.strided
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)
        and getattr(type(tensor), DISPATCH) is getattr(Tensor, DISPATCH)
    )


@dataclass(frozen=True)
class Stored:
    """Outputs of a site as numbers of a format.

    Attributes:
        values: the numbers that are stored, `(B, T, C)`, in float32; NaN where their scale is none.
        step: distance between neighbouring numbers of the format at each, `(B, T, C)`; 0 of an
            integer whose scale is 0, which is known exactly. Of decimals that float32 does not
            keep in a large number, the distance between neighbours of float32.
        format: one of `FORMATS`, or as `2 decimals` or `6 digits`, to which numbers were printed.
    """

    values: Tensor
    step: Tensor
    format: str

    @property
    def scaled(self) -> bool:
        """Whether the format has 8 bits or few decimals or digits, which no model computes in."""
        return self.format not in FLOATS

    @property
    def coarse(self) -> bool:
        """Whether it has integers in units of a scale: a row of small numbers may be zeros."""
        return self.format in CODES

    def map(self, change: Callable[[Tensor], Tensor]) -> Stored:
        """The same with a change of shape or device of both tensors."""
        return Stored(change(self.values), change(self.step), self.format)

    def to(self, device: torch.device) -> Stored:
        """The same on a device."""
        return self.map(lambda x: x.to(device))


def rounding_spread(steps: Tensor) -> Tensor:
    """How far stored numbers lie from those computed, at most: `(..., C)` steps to `(...)`.

    Rounding errors are even within half a step, and their squares add up: six deviations above
    their mean, and never above that of half a step in each number.
    """
    squares = steps.double().square()
    mean, variance = squares.sum(-1) / 12, squares.square().sum(-1) / 180
    return torch.minimum(mean + 6 * variance.sqrt(), squares.sum(-1) / 4).sqrt().to(steps.dtype)


def read_stored(
    outputs: Tensor,
    format: str | None = None,
    scale: Tensor | float | None = None,
    zero_point: Tensor | float | None = None,
    order: str | None = None,
) -> Stored:
    """A caller's tensor as the numbers that it holds, and their steps.

    Args:
        outputs: `(T, C)`, `(B, T, C)`, or `(B, heads, T, width)` as a key/value cache holds them.
        format: that the numbers went through, if not the tensor's own; None: the tensor's own, or
            the shortest that holds all of them.
        scale: of 8 bits: one number, or a tensor of `SHAPES`; each code stands for that many units.
        zero_point: of integers: the code that stands for 0, of the same shapes.
        order: of the axes, if not that of `ORDERS`, as "BTHd".

    Raises:
        RequestError: another shape or format, integers without a scale, numbers of 16 bits and
            more with one, or a scale or zero point that does not fit, or fits in several ways.
    """
    if format is not None and format not in FORMATS:
        raise ArgumentError("format", f"must be one of {', '.join(FORMATS)}", repr(format))
    known = {kind: name for name, kind in (FLOATS | FP8 | CODES).items()}
    known[torch.float64] = EXACT
    own, seen = known.get(outputs.dtype), dtype_name(outputs.dtype)
    order = order or ORDERS.get(outputs.dim())
    if order is None or not outputs.numel() or own is None:
        stacked = "; of a stack of layers give one layer's" if outputs.dim() > max(ORDERS) else ""
        raise ArgumentError(
            "outputs",
            f"{tuple(outputs.shape)} of {seen}; give numbers of fp64, "
            f"{', '.join(FORMATS)}, of the shape (T, width), (B, T, width), or (B, heads, T, width)"
            f" of a key/value cache{stacked}; of bits of bfloat16 say format bf16"
            " (--stored bf16)",
        )
    outputs = outputs.detach()
    if own in FLOATS:
        for name, given in (("scale", scale), ("zero_point", zero_point)):
            if given is not None:
                raise RequestError(
                    f"{name}: outputs of {seen} need none; multiply by it first, or leave it out"
                )
        return _of_floats(_arrange(outputs.float(), order), format, own)
    if format not in (None, own):
        raise ArgumentError("format", f"outputs are of {seen}; leave it out", format)
    return _of_bytes(outputs, own, scale, zero_point, order)


def view_bits(outputs: Tensor, format: str | None) -> Tensor:
    """The floats of a format whose bits a tensor of integers holds; any other tensor as it is."""
    kind = (FLOATS | FP8).get(format or "")
    held = BITS.get(outputs.dtype)
    return outputs if kind is None or held != kind.itemsize else outputs.contiguous().view(kind)


def _of_floats(values: Tensor, format: str | None, own: str) -> Stored:
    """Float32 holds numbers of float64 to half its step, as it would those of the model."""
    known, kinds = format or _shortest(values), FLOATS | FP8
    if known in CODES:
        raise ArgumentError("format", "give the integers themselves, and their scale", known)
    if format not in (None, own):  # whose steps would be too small, or too large
        shortest, numbers = _shortest(values), values.nan_to_num(0.0, 0.0, 0.0)
        rows = numbers[numbers.any(dim=-1)]
        held = (rows.to(kinds[known]).float() == rows).all(dim=-1)
        none = len(rows) > 0 and not bool(held.any())  # rows not shown may be of another format
        if none or _eps(kinds[known]) < _eps(kinds[shortest]):
            fix = "leave it out, or if they are codes times their scale, give codes and scale"
            raise ArgumentError("format", f"the numbers are of {shortest}; {fix}", known)
    if format is None and known == EXACT:
        decimals, digits = _read_decimals(values), _read_digits(values)
        # Numbers of few decimals have few digits too, the small ones fewer, and the reverse.
        fewer = decimals is None or (digits and _have_fewer_digits(digits, decimals))
        if printed := digits if fewer else decimals:
            return printed
    return Stored(values, _steps(values, kinds[known]), known)


def _of_bytes(
    outputs: Tensor,
    own: str,
    scale: Tensor | float | None,
    zero_point: Tensor | float | None,
    order: str,
) -> Stored:
    """Numbers of 8 bits in units of their scale; see `read_stored`."""
    codes, shape = outputs.float(), outputs.shape
    if own in FP8:
        if zero_point is not None:
            raise ArgumentError(
                "zero_point", f"outputs of {dtype_name(outputs.dtype)} have none; leave it out"
            )
        if scale is None:
            say_of_model(
                f"outputs: {own} without a scale, for which 1 is taken; if there is one, give it "
                "(a tensor named NAME.scale in the file, --scale, or scale=)"
            )
        steps, units = _steps(codes, FP8[own]), 1.0 if scale is None else scale
    else:
        fp8 = "; of bits of fp8 say format fp8_e4m3 or fp8_e5m2 (--stored)"
        if scale is None:
            raise ArgumentError(
                "outputs",
                f"{own} without a scale; give it (a tensor named NAME.scale in the file, "
                f"or scale=): {SHAPES}{fp8}",
            )
        if own == "uint8" and zero_point is None:
            raise ArgumentError(
                "outputs",
                "uint8 without a zero point; give it (NAME.zero_point in the file, or "
                f"zero_point=), 0 if there is none{fp8}; of codes of 4 bits give int8 tensors "
                "with one code in each number",
            )
        if zero_point is not None:
            codes = codes - spread_units(zero_point, shape, order, "zero_point", outputs.device)
        steps, units = torch.ones_like(codes), scale
    units = spread_units(units, shape, order, "scale", outputs.device)
    wrong = ~units.isfinite() | (units < 0) | ((units == 0) & (codes != 0))
    values = torch.where(wrong, torch.nan, codes * units)
    steps = torch.where(wrong, 0.0, steps * units)
    return Stored(_arrange(values, order), _arrange(steps, order), own)


def _arrange(numbers: Tensor, order: str) -> Tensor:
    """Numbers whose axes are in this order as `(B, T, C)`."""
    if "B" not in order:
        numbers, order = numbers[None], "B" + order
    if order == "BHTd":
        numbers = numbers.transpose(1, 2)
    return numbers.flatten(2)


def spread_units(
    given: Tensor | float, shape: torch.Size, order: str, name: str, device: torch.device
) -> Tensor:
    """A scale or zero point for each number of a tensor, of the tensor's shape.

    Raises:
        RequestError: it does not fit, or fits in several ways that differ.
    """
    try:
        units = torch.as_tensor(given, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise RequestError(f"{name}: a {type(given).__name__}; give {SHAPES}") from None
    if not is_plain(units) or not units.numel():
        raise RequestError(f"{name}: {NOT_PLAIN if units.numel() else 'no numbers'}; give {SHAPES}")
    seen = dtype_name(units.dtype)
    if units.is_complex() or units.dtype == torch.bool:
        raise RequestError(f"{name}: of {seen}; give real numbers")
    if name == "scale" and units.dtype in CODES.values():
        raise RequestError(
            f"{name}: of {seen}, as exponents of powers of two (MX formats) or scales that "
            "are quantised themselves are kept; give what they stand for, as floats"
        )
    try:
        units = units.detach().float()
    except RuntimeError:  # of 4 bits, which torch holds and does not convert
        raise RequestError(f"{name}: of {seen}; give floats") from None
    if units.numel() == 1:
        return units.reshape(()).expand(shape)
    readings = [reading.expand(shape) for reading in _readings(units, shape, order)]
    if readings and all(torch.equal(reading, readings[0]) for reading in readings[1:]):
        return readings[0]
    fits = "fits outputs of {} in several ways" if readings else "does not fit outputs of {}"
    raise RequestError(
        f"{name}: {tuple(units.shape)} {fits.format(tuple(shape))}; give {SHAPES}, with all axes"
    )


def _readings(units: Tensor, shape: torch.Size, order: str) -> Iterator[Tensor]:
    """The ways in which units can be laid along a tensor's axes."""
    if units.dim() == 1:
        for axis, label in enumerate(order):
            if label != "B" and shape[axis] == len(units):
                yield units.view([-1 if i == axis else 1 for i in range(len(shape))])
        heads, last = (shape[order.index("H")], shape[-1]) if "H" in order else (0, 0)
        if len(units) == heads * last:
            at = {order.index("H"): heads, len(shape) - 1: last}
            yield units.view([at.get(i, 1) for i in range(len(shape))])
        return
    whole = _aligned(units, shape)
    if whole is not None:
        yield whole
        if 1 in (units.shape[-1], len(shape)) or units.shape[-1] == shape[-1]:
            return
    if (of_rows := _aligned(units[..., None], shape)) is not None:
        yield of_rows
    if order in ("BHTd", "HTd"):  # tokens before heads
        turned = _aligned(units[..., None].transpose(-3, -2), shape)
        if turned is not None:
            yield turned


def _aligned(units: Tensor, shape: torch.Size) -> Tensor | None:
    """Units whose last axis is that of channels, or of groups of them; None: they do not fit."""
    while units.dim() > len(shape) and units.shape[0] == 1:
        units = units[0]
    if units.dim() > len(shape):
        return None
    units = units.view([1] * (len(shape) - units.dim()) + list(units.shape))
    groups, channels = units.shape[-1], shape[-1]
    if 1 < groups < channels and not channels % groups:
        units = units.repeat_interleave(channels // groups, dim=-1)
    fits = all(n in (1, m) for n, m in zip(units.shape, shape, strict=True))
    return units if fits else None


def _shortest(values: Tensor) -> str:
    """The shortest format that holds all the numbers, those that are no numbers left out."""
    finite = values[values.isfinite()]

    def held(kind: torch.dtype) -> bool:
        return all(
            torch.equal(part.to(kind).to(part.dtype), part) for part in (finite[:1000], finite)
        )

    name = next((name for name, kind in FLOATS.items() if held(kind)), EXACT)
    if name == EXACT:
        return name
    byte = next((name for name, kind in FP8.items() if held(kind)), None)
    return byte if byte and finite.unique().numel() >= ENOUGH else name


def _read_decimals(values: Tensor) -> Stored | None:
    """Numbers rounded to so many decimals, as in a printed list; None: to none in sight.

    Each may miss its decimals by its own rounding in float32. Where a step is less than `CLEAR`
    times that, as in the large row of many first tokens, a number says nothing of decimals.
    """
    numbers = values[values.isfinite()].double()
    rounding = numbers.abs() * torch.finfo(torch.float32).eps
    for places in range(1, MOST_DECIMALS + 1):
        step = numbers.new_tensor(10.0**-places)
        if _are_multiples(numbers, step.expand_as(numbers), rounding):
            telling = numbers[step >= CLEAR * rounding]
            whole = bool((telling == telling.round()).all())
            if whole or telling.unique().numel() < ENOUGH:
                return None
            steps = _steps(values, torch.float32).clamp(min=10.0**-places)
            return Stored(values, steps, f"{places} decimals")
    return None


def _are_multiples(numbers: Tensor, steps: Tensor, rounding: Tensor) -> bool:
    """Whether `(N,)` numbers are multiples of their steps, up to their rounding."""
    return all(
        bool(((x / step - (x / step).round()).abs() * step <= off).all())
        for x, step, off in (
            (numbers[:1000], steps[:1000], rounding[:1000]),  # which most others end at
            (numbers, steps, rounding),
        )
    )


def _have_fewer_digits(digits: Stored, decimals: Stored) -> bool:
    """Whether a step of their digits is larger than that of their decimals, at enough numbers.

    Of numbers with a few decimals, a large one may end in zeros by chance, `ENOUGH` do not.
    """
    return digits.values[digits.step > 1.01 * decimals.step].unique().numel() >= ENOUGH


def _read_digits(values: Tensor) -> Stored | None:
    """Numbers printed with so many significant digits, as by `%.6g`; None: with none in sight."""
    numbers, eps = values.double(), torch.finfo(torch.float32).eps
    known = values.isfinite() & (values != 0)
    if values[known].unique().numel() < ENOUGH or bool((values == values.round())[known].all()):
        return None
    largest = 10.0 ** (numbers.abs() * (1 + eps)).log10().floor()  # power of ten up to a number
    for digits in range(1, MOST_DIGITS + 1):
        step = largest * 10.0 ** (1 - digits)
        if _are_multiples(numbers[known], step[known], eps * numbers[known].abs()):
            steps = step.where(known, 0).float().clamp(min=torch.finfo(torch.float32).tiny)
            return Stored(values, steps, f"{digits} digits")
    return None


def _eps(kind: torch.dtype) -> float:
    """The distance of 1 from the next number of a format."""
    return 0.25 if kind == torch.float8_e5m2fnuz else torch.finfo(kind).eps  # torch says half


def _steps(values: Tensor, kind: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of a floating-point format, at each value."""
    eps = _eps(kind)
    least = max(torch.finfo(kind).smallest_normal * eps, torch.finfo(values.dtype).tiny)
    finite = values.nan_to_num(0.0, 0.0, 0.0)
    steps = torch.ldexp(torch.full_like(values, eps / 2), torch.frexp(finite).exponent)
    return steps.masked_fill(finite == 0, least).clamp(min=least)
