"""Several layers of one request: stacks in one tensor, or a tensor for each.

A stack of layers has the shape of prompts, and the model itself tells the two apart: a block turns
one layer of a stack into the next, and never one prompt into another.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from arch import LanguageModel
from eval.captured.files.stored import EIGHT_BITS, FLOAT_NAMES, ORDERS, dtype_name, spread_units
from eval.captured.files.tensors import Outputs, Raw, name_site
from eval.messages import ArgumentError, RequestError, say_once
from eval.sites.circuit import CACHED, Circuit
from eval.sites.site import list_circuits

NEAR = 0.5
"""A block explains the step from one layer to the next if its error is below this fraction of the
step."""
SAME = 1e-3  # of that step: so near the right block alone comes, as in float32
FINAL = "final"
ENDS = 4  # times as many numbers at the end of a format as scales, or as numbers beside the end
CACHE_ORDERS = {3: ("BTC", "HTd", "THd"), 4: ("BHTd", "BTHd")}
"""Orders of a cache's axes, as labelled in `ORDERS`; the first counts where it fits."""
UNITS = ("outputs", "scale", "zero_point")
"""Of a tensor: its numbers, and what may say a number for each of them."""


def take_layer(
    model: LanguageModel, raw: Raw, layer: int | Sequence[int] | None, part: str | None
) -> Raw:
    """The outputs of the layers asked for, where a tensor is a stack of layers; else the tensor.

    Args:
        raw: outputs of 2 to 4 axes, the last one that of channels. One of the others may count
            layers, in order: `(layers, T, D)`, `(T, layers, D)`, `(layers, B, T, D)`,
            `(B, T, layers, D)`. A scale and a zero point are taken alike.
        layer: asked for; several are joined along the channels.
        part: asked for; None: block.

    Raises:
        RequestError: a stack, and no layer is asked for, or one that is not in it; or a scale or
            zero point that does not fit.
    """
    D, n_layers = model.config.d_model, len(model.blocks)
    shape = tuple(raw.outputs.shape)
    if len(shape) not in ORDERS or shape[-1] != D or not raw.outputs.numel():
        return raw
    if (kind := dtype_name(raw.outputs.dtype)) in FLOAT_NAMES:
        full, numbers = raw, raw.outputs
    elif kind in EIGHT_BITS:
        full = spread(raw)
        numbers = _multiply(full)
    else:
        return raw
    for axis in range(len(shape) - 1):
        entries = numbers.movedim(axis, 0)
        if 2 <= len(entries) <= n_layers + 2 and (names := _name_entries(model, entries)):
            break
    else:
        return raw
    held = ", ".join(map(str, names))
    wanted = [FINAL] if part == FINAL else [layer] if isinstance(layer, int) else list(layer or [])
    missing = [name for name in wanted if name not in names]
    if not wanted or missing or part not in (None, "block", FINAL):
        lacking = f"; {missing[0]} is not among them" if missing else ""
        raise ArgumentError(
            "outputs",
            f"{shape}: axis {axis} holds no prompts, but the layers {held}{lacking}; give one of "
            "them (--layer, --part block or final)",
        )
    taken = "+".join(map(str, wanted))
    say_once(f"outputs: {shape}: axis {axis} holds the layers {held}; {taken} is taken")

    def take(units: Tensor) -> Tensor:
        entries = units.movedim(axis, 0)
        return torch.cat([entries[names.index(name)] for name in wanted], dim=-1)

    whole = {name: getattr(full, name) for name in UNITS}
    return raw._replace(**{name: take(x) for name, x in whole.items() if x is not None})


def find_order(
    model: LanguageModel,
    shape: Sequence[int],
    layer: int | Sequence[int] | None,
    part: str | None,
) -> str | None:
    """The order of a cache's axes, where the site's width tells it; None: that of `ORDERS`.

    Of four axes without a site, the widths of all keys and values tell it.

    Raises:
        RequestError: two orders give that width, or the model has no such site.
    """
    if layer is None and len(shape) == 4:
        cached = [kind for kind in CACHED if part in (None, kind)]
        widths = {circuit.width for circuit in list_circuits(model, cached)}
    elif part in CACHED and isinstance(layer, int):
        widths = {Circuit(model, layer, part).width}
    else:
        return None
    known = CACHE_ORDERS.get(len(shape), ())
    fits = [
        order
        for order in known
        if math.prod(n for n, axis in zip(shape, order, strict=True) if axis not in "BT") in widths
    ]
    if not fits or fits[0] == known[0]:
        if len(fits) > 1 and len(shape) == 4 and max(shape[1:3]) > 1:
            say_once(
                f"outputs: {tuple(shape)}: read as (B, heads, T, width), though the width allows "
                "(B, T, heads, width) too; of these give .transpose(1, 2)"
            )
        return None
    if len(fits) > 1:
        raise ArgumentError(
            "outputs", f"{tuple(shape)} may be (heads, T, width) or (T, heads, width); add B before"
        )
    names = {"B": "B", "T": "T", "H": "heads", "d": "width"}
    say_once(f"outputs: {tuple(shape)}: read as ({', '.join(names[axis] for axis in fits[0])})")
    return fits[0]


@dataclass(frozen=True)
class JoinedOutputs:
    """Tensors of several layers of one request, which are recovered as one along the channels."""

    tensors: Mapping[str, Outputs]

    @property
    def scaled(self) -> bool:
        """Whether their numbers are of 8 bits, so that a scale may belong to them."""
        return any(tensor.scaled for tensor in self.tensors.values())

    def read(self) -> Raw:
        """Reads them as one tensor, whose scale says one for each number.

        Raises:
            RequestError: tensors of different shapes, types or masks, or a scale that does not fit.
        """
        raws = {name: spread(tensor.read()) for name, tensor in self.tensors.items()}
        first = next(iter(raws.values()))
        for name, raw in raws.items():
            kinds = [(tuple(x.outputs.shape), x.outputs.dtype) for x in (first, raw)]
            masks = [x.mask if x.mask is None else x.mask.tolist() for x in (first, raw)]
            if kinds[0] != kinds[1] or masks[0] != masks[1]:
                raise RequestError(
                    f"--layer: {name} is {kinds[1]}, the first tensor {kinds[0]}: layers of one "
                    "shape, type and mask are joined; give one layer"
                )
        axis = -3 if first.outputs.dim() == 4 else -1  # heads of a cache, or channels
        joined = first
        for companion in UNITS:
            units = {name: getattr(raw, companion) for name, raw in raws.items()}
            lacking = [name for name, unit in units.items() if unit is None]
            if lacking and len(lacking) < len(units):
                raise RequestError(
                    f"--layer: {lacking[0]} has no {companion}, and others have; give one layer, "
                    f"or {lacking[0]}.{companion}"
                )
            if not lacking:
                joined = joined._replace(**{companion: torch.cat([*units.values()], dim=axis)})
        return joined


def choose_tensors(
    held: Mapping[str, Outputs], layers: Sequence[int], part: str | None
) -> Mapping[str, "Outputs | JoinedOutputs"]:
    """The tensors of the layers and the part that are asked for, where a file names sites.

    Those of several layers are joined. Where no name says a site, all are what is asked for, and
    so is a tensor that stands alone.

    Raises:
        RequestError: names say sites, and what is asked for is not among them, or one layer of
            several twice.
    """
    sites = {name: site for name in held if (site := name_site(name))}
    if not sites or not (layers or part):
        return held
    if len(layers) < 2:
        chosen = {
            name: held[name]
            for name, (layer, kind) in sites.items()
            if layer in (layers or [layer]) and part in (None, kind)
        }
        if chosen or len(held) == 1:
            return chosen or held
        given = [f"--layer {number}" for number in layers] + [f"--part {part}"] * bool(part)
        raise RequestError(
            f"{' '.join(given)}: no tensor's name says that site, but {', '.join(sites)}"[:800]
            + "; give one of theirs, or --tensor NAME as well"
        )
    by_site = {site: name for name, site in sites.items()}
    wanted = [(layer, part or "block") for layer in layers]
    if missing := [f"{kind}.{layer}" for layer, kind in wanted if (layer, kind) not in by_site]:
        raise RequestError(
            f"--layer: {missing[0]} is not among {', '.join(sites)}; layers are joined where each "
            "has a tensor; give others, or --part"
        )
    if twice := [n for n, site in sites.items() if site in wanted and by_site[site] != n]:
        raise RequestError(
            f"--layer: {twice[0]} and {by_site[sites[twice[0]]]} are of one site; layers of one "
            "request are joined; give its tensors in a file of their own"
        )
    names = [by_site[site] for site in wanted]
    return {"+".join(names): JoinedOutputs({name: held[name] for name in names})}


def check_numbers(held: Mapping[str, Outputs], layers: Sequence[int]) -> None:
    """Whether tensors of one shape whose names differ by numbers are of other layers than asked.

    Such numbers may count the layers from 0 or from 1, with the embedding or without it.

    Raises:
        RequestError: the number of a layer that is asked for is among them.
    """
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, entry in held.items():
        alike.setdefault((re.sub(r"\d+", "#", name), entry.outputs.shape), []).append(name)
    for names in alike.values():
        columns = zip(*(map(int, re.findall(r"\d+", name)) for name in names), strict=True)
        differing = {number for column in columns if len({*column}) > 1 for number in column}
        if differing & {*layers}:
            raise RequestError(
                f"--layer {' '.join(map(str, layers))}: {names[0]} to {names[-1]} have numbers, "
                "which may count layers from 0 or from 1; give --tensor NAME as well, of those that"
                " are of that layer, or name tensors block.N"
            )


def spread(raw: Raw, order: str | None = None) -> Raw:
    """The same with a scale and a zero point for each number, where it has any.

    `order` is that of the axes, if not that of `ORDERS`; a tensor of more axes stays as it is.
    """
    shape, order = raw.outputs.shape, order or ORDERS.get(raw.outputs.dim())
    if order is None:
        return raw
    units = {
        name: spread_units(unit, shape, order, name, raw.outputs.device)
        for name in UNITS[1:]
        if (unit := getattr(raw, name)) is not None
    }
    return raw._replace(**units)


def say_what_is_clipped(raw: Raw) -> None:
    """Says where numbers pile up at the end of 8 bits, beside their next number and their scales.

    A scale by the largest number leaves that one at the end, and others that are rounded to it.
    """
    outputs, kind = raw.outputs, dtype_name(raw.outputs.dtype)
    if kind not in EIGHT_BITS:
        return
    about = (torch.finfo if outputs.is_floating_point() else torch.iinfo)(outputs.dtype)
    sizes = outputs.float().abs()
    ends, below = sizes >= about.max, sizes == sizes.masked_fill(sizes >= about.max, 0).max()
    if ends.dim() > 2:  # prompts may begin with one token
        ends, below = ends.any(dim=0), below.any(dim=0)
    scales = 1 if raw.scale is None else torch.as_tensor(raw.scale).float().unique().numel()
    if (count := int(ends.sum())) > ENDS * max(scales, int(below.sum())):
        say_once(
            f"outputs: {count:,} numbers of {ends.numel():,} stand at the end of {kind}: were "
            "larger ones clipped? Rows with clipped numbers may fit no token; give them with a "
            "scale that covers all"
        )


def _multiply(raw: Raw) -> Tensor:
    """The numbers that codes of 8 bits stand for."""
    codes: Any = raw.outputs.float()
    if raw.zero_point is not None:
        codes = codes - raw.zero_point
    return codes if raw.scale is None else codes * raw.scale


@torch.no_grad()
def _name_entries(model: LanguageModel, entries: Tensor) -> list[int | str]:
    """The layer of each of `(N, ..., D)` entries; none where the first two are no two layers."""
    entries = entries.to(model.embedding.weight).nan_to_num()
    if entries.dim() == 2:  # of one position
        entries = entries[:, None]
    entries = entries.reshape(len(entries), -1, *entries.shape[-2:])
    if entries.shape[2] > model.config.context:
        return []
    least, found = NEAR, list[int | str]()
    for start in range(len(model.blocks)):
        names, misses = list[int | str]([start]), list[float]()
        for before, after in pairwise(entries):
            miss, name = _find_next(model, before, after, names[-1])
            names.append(name)
            misses.append(miss)
            if miss >= NEAR:
                break
        if max(misses) < least:
            least, found = max(misses), names
        if least < SAME:
            break
    return found


def _find_next(
    model: LanguageModel, before: Tensor, after: Tensor, layer: int | str
) -> tuple[float, int | str]:
    """Which later layer `(B, T, D)` outputs come nearest to, given those of a layer; how near.

    Blocks before the right one come near too, as each changes a stream less than all together.
    """
    if isinstance(layer, str):
        return math.inf, layer
    x, made = before, list[tuple[float, int | str]]()
    for number in range(layer, len(model.blocks)):
        x = model.blocks[number](x)
        made.append((_miss(x, before, after), number + 1))
        if made[-1][0] < SAME:
            return made[-1]
    made.append((_miss(model.norm(x), before, after), FINAL))
    return min(made, key=lambda entry: entry[0])


def _miss(made: Tensor, before: Tensor, after: Tensor) -> float:
    """How far outputs made from those before are from those after, of the change, at the median.

    Zeros are padding, which says nothing: less of an output is nearer to them than it itself.
    """
    missed, changed = (made - after).norm(dim=-1), (after - before).norm(dim=-1)
    filled = before.any(dim=-1) & after.any(dim=-1)
    ratios = (missed / changed)[filled].nan_to_num(torch.inf).sort().values
    return float(ratios[len(ratios) // 2]) if len(ratios) else math.inf
