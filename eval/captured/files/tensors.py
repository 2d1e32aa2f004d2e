"""Files of captured tensors: what they hold, and which tensors belong to which.

Nothing in a file is run, and a tensor is read only when it is asked for.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from eval.captured.files.arrays import (
    FILES,
    MASK,
    Entry,
    first_line,
    list_archive,
    list_array,
    refuse_pickle,
    split_companion,
)
from eval.captured.files.stored import EIGHT_BITS
from eval.messages import RequestError, say_once
from eval.rows.misfits import parse_json
from eval.sites.circuit import PARTS

TEXTS = ("token_ids", "input_ids", "tokens", "ids", "sequences", "prompt_token_ids")
NO_OUTPUTS = re.compile(r"masks?(_\d+)?(\.|$)|(^|[._])pool(ed|er|ing)?([._]|$)|sentence_embedding")
"""Names of masks, and of states that are pooled over a prompt."""
WORDS = ("bf16", "fp16")
"""Formats of 16 bits, which may stand as integers."""
SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8",
    "U8": "uint8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "BOOL": "bool",
    "I16": "int16", "I32": "int32", "I64": "int64", "U16": "uint16", "U32": "uint32",
    "U64": "uint64",
}  # fmt: skip
"""The names that numpy and torch have for its types."""
OTHERS = {
    b"\x89HDF": "HDF5", b"PAR1": "Parquet", b"ARROW1": "Arrow", b"GGUF": "GGUF",
    b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2",
    b"<": "HTML or XML", b"{": "JSON", b"[": "JSON",
    b"\xff\xff\xff\xff": "an Arrow stream, as of datasets, whose folder is read",
    b"version https://git-lfs": "a pointer of Git LFS, not the file itself",
}  # fmt: skip
"""Files of other kinds by their first bytes."""
COMPRESSED = ("gzip", "zstd", "xz", "bzip2")
CACHES = (
    r"(?:.*[._])?(?P<kind>key|value|k|v)_cache[._](?P<layer>\d+)",
    r"(?:.*[._])?(?:layers?|cache|past_key_values|past|present)[._](?P<layer>\d+)[._]"
    r"(?P<kind>keys?|values?|k|v)(?:_cache)?",
    r"(?:.*[._])?past_key_values[._](?P<layer>\d+)[._](?P<kind>[01])",
)
"""Names of a cache's tensors, whose layers count from 0; the last of pairs of keys and values."""


class Raw(NamedTuple):
    """A tensor as a file holds it, with its companions."""

    outputs: Tensor
    scale: Tensor | float | None = None
    zero_point: Tensor | float | None = None
    mask: Tensor | None = None
    ids: Tensor | None = None


@dataclass(frozen=True)
class Outputs:
    """A tensor in a file that may be recovered, with its companions, not read yet.

    `ids` are of tokens, where the numbers are scores of these.
    """

    outputs: Entry
    scale: Entry | None = None
    zero_point: Entry | None = None
    mask: Entry | None = None
    ids: Entry | None = None

    @property
    def scaled(self) -> bool:
        """Whether its numbers are of 8 bits, so that a scale may belong to them."""
        return self.outputs.kind in EIGHT_BITS

    def read(self) -> Raw:
        """Reads it."""
        others = self.scale, self.zero_point, self.mask, self.ids
        return Raw(self.outputs.read(), *(entry and entry.read() for entry in others))


def read_tensors(
    path: str | Path,
    names: Sequence[str] | None = None,
    scale: str | None = None,
    stored: str | None = None,
    held: Mapping[str, Entry] | None = None,
) -> dict[str, Outputs]:
    """The tensors of a file that may be outputs of a model, by name, with their companions.

    What else the file holds is named in a line.

    Args:
        path: a .safetensors file, a .npz file of arrays, or a .npy file, named after the file.
        names: of those wanted; None: all.
        scale: the name of a tensor in the file that is the scale of all that have 8 bits.
        stored: the format of numbers whose bits may stand as integers of 16 bits.
        held: its tensors, where they are listed already.

    Raises:
        RequestError: no such file, another kind, a pickle, a damaged file, one without such
            tensors or without those wanted, or a companion that does not belong to a tensor.
    """
    path = Path(path)
    held = dict(sorted((held or list_tensors(path)).items()))
    if scale is not None and scale not in held:
        raise RequestError(f"--scale {scale}: no number, and {path} has {', '.join(held)}")
    companions = {name: split for name in held if (split := split_companion(name))}
    known = {
        name: entry
        for name, entry in held.items()
        if name not in companions and name != scale and _may_be_outputs(name, entry, stored)
    }
    for name in names or ():
        if name not in known:
            raise RequestError(f"--tensor {name}: {path} has {', '.join(known) or 'none'}")
    if not known:
        listed = ", ".join(f"{name} {entry}" for name, entry in held.items()) or "nothing"
        pickled = any(entry.kind == "object" for entry in held.values())
        fix = "; objects are pickles: numpy.savez(FILE, **arrays) saves arrays" * pickled
        raise RequestError(
            f"{path}: holds {listed}; give tensors of the shape (T, width) or (B, T, width), not "
            f"pooled, and --stored where bits of bf16 or fp16 stand as integers{fix}"
        )
    masks = {name: _mask_of(name, held) for name in known}
    found: dict[str, Outputs] = {}
    for name in names or known:
        own = {"mask": masks[name]} | _companions_of(path, name, held, companions, scale)
        roles = {role: held[other] for role, other in own.items() if other}
        found[name] = Outputs(held[name], **roles)
    used = {*known, scale, *masks.values()}
    rest = {name: entry for name, entry in held.items() if name not in used}
    eight_bits = any(entry.kind in EIGHT_BITS for entry in known.values())
    for name, (base, _) in companions.items():
        if not base and not eight_bits:
            raise RequestError(
                f"{path}: {name}: no tensor of 8 bits, which alone need one; multiply the others "
                "by it first, or leave it out of the file"
            )
        if not base or base in known:
            rest.pop(name, None)
    if rest:
        listed = ", ".join(f"{name} {entry}" for name, entry in rest.items())
        say_once(f"{path}: not read: {listed}"[:1000])
    if texts := [name for name in rest if name.rpartition(".")[2] in TEXTS]:
        say_once(f"{path}: {', '.join(texts)}: by name the tokens themselves, in clear; not used")
    return found


def list_tensors(path: Path) -> dict[str, Entry]:
    """All tensors of a file by name; see `read_tensors`."""
    if not path.is_file():
        raise RequestError(f"{path}: no such file; give {FILES}")
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}; give {FILES}") from None
    if not start:
        raise RequestError(f"{path}: the file is empty; give {FILES}")
    if start.startswith(b"\x93NUMPY"):
        return {path.stem: list_array(path)}
    # the ninth byte of safetensors opens their header
    if start.startswith(b"PK") and not start.endswith(b"{"):
        return list_archive(path)
    if start.startswith(b"\x80") and not start.endswith(b"{"):
        refuse_pickle(path, start)
    return _list_safetensors(path)


def read_metadata(path: Path) -> dict[str, str]:
    """What the header of a safetensors file says beside its tensors; of another file, nothing."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np", backend="pread") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError):
        return {}


def name_site(name: str) -> tuple[int, str] | None:
    """The layer and part that a tensor's name says: `block.3`, or as caches have it, `keys.3`."""
    part, _, layer = name.rpartition(".")
    if part in PARTS and layer.isdecimal():
        return int(layer), part
    for pattern in CACHES:
        if match := re.fullmatch(pattern, name):
            part = "rotated_key" if match["kind"][0] in "k0" else "value"
            layer = int(match["layer"]) + 1
            say_once(f"{name}: read as {part}.{layer}, as layers of a cache count from 0")
            return layer, part
    return None


def _may_be_outputs(name: str, entry: Entry, stored: str | None) -> bool:
    """Whether a tensor may be a site's outputs; ids, masks, texts and pooled states may not."""
    is_other = NO_OUTPUTS.search(name.lower())
    if len(entry.shape) < 2 or entry.kind in ("object", "str") or is_other:
        return False
    numbers = entry.kind in EIGHT_BITS or not entry.kind.startswith(("int", "uint", "bool"))
    bits = stored in WORDS and entry.kind in ("int16", "uint16")
    return numbers or bits or len(entry.shape) > 2 or name.rpartition(".")[0] in PARTS


def _mask_of(name: str, held: dict[str, Entry]) -> str | None:
    """The name of the mask of a tensor's prompts, `(B, T)`; see `find_mask`.

    Of one prompt also `(T,)`. Of a stack of layers, which the model tells, B and T may be other
    axes than of prompts. A mask of another shape, as of the scores of attention, says nothing of
    rows.
    """
    axes = held[name].shape[:-1]
    shapes = {axes[:2], *((n,) for n in axes), *((1, n) for n in axes)}
    if len(axes) > 1:
        shapes |= {(axes[0], axes[-1]), axes[1:]}
    return find_mask(name, held, shapes)


def find_mask(
    name: str, held: Mapping[str, Entry | Tensor], shapes: Collection[tuple[int, ...]]
) -> str | None:
    """The name of the mask nearest to a tensor by its name, of one of the shapes; None: no mask.

    That of the tensor itself, of the list or dictionary that it lies in, or at its place in a list
    of masks; else the only one in a dictionary, where it lies among tensors of its own shape alone,
    as beside token ids.
    """
    path = name.split(".")
    masks = [
        ".".join([*path[:i], MASK, *behind])
        for i in range(len(path), -1, -1)
        for behind in ([], path[i + 1 :])
    ]
    inner = [other for other in held if other.endswith(f".{MASK}")]
    if len(inner) == 1:
        start = inner[0].removesuffix(MASK)
        beside = {tuple(x.shape) for other, x in held.items() if f"{other}.".startswith(start)}
        masks += inner if len(beside) == 1 else []
    fits = (mask for mask in masks if mask in held and tuple(held[mask].shape) in shapes)
    return next(fits, None)


def _companions_of(
    path: Path,
    name: str,
    held: dict[str, Entry],
    companions: dict[str, tuple[str, str]],
    scale: str | None,
) -> dict[str, str]:
    """The names of the scale and the zero point that belong to a tensor, by role.

    `scale` is the name of a tensor that is said to be the scale of all that have 8 bits.

    Raises:
        RequestError: two of one role, one beside numbers that need none, or one that is not known.
    """
    entry, own = held[name], dict[str, str]()
    eight_bits = entry.kind in EIGHT_BITS
    for base in (name, ""):
        for other, (of, role) in companions.items():
            if of != base or (not base and (role in own or not eight_bits)):
                continue
            if role in own:
                raise RequestError(f"{path}: {own[role]}, {other}: keep one {role} of {name}")
            own[role] = other
    if own and not eight_bits:
        raise RequestError(
            f"{path}: {', '.join(own.values())}: {name} of {entry.kind} needs none; multiply by it "
            "first, or leave it out of the file"
        )
    for other, about in held.items():
        follows = eight_bits and other.startswith((f"{name}.", f"{name}_"))
        is_alike = (  # a tensor itself, and no row of units for its channels
            len(about.shape) > 1
            and about.shape[-1] == entry.shape[-1]
            and (about.shape[-2] > 1 or entry.shape[-2] == 1)
        )
        known = other in companions or other in (scale, f"{name}.{MASK}") or is_alike
        if follows and not known:
            raise RequestError(
                f"{path}: {other}: what it says of {name} is not known (known are {name}.scale and "
                f"{name}.zero_point); apply it first"
            )
    if scale is not None and eight_bits:
        if own.get("scale", scale) != scale:
            raise RequestError(
                f"--scale {scale}: {path} holds {own['scale']} for {name}; leave it out, or name "
                "others by --tensor"
            )
        own["scale"] = scale
    return own


def _list_safetensors(path: Path) -> dict[str, Entry]:
    from safetensors import SafetensorError, safe_open

    def read(name: str) -> Tensor:
        try:
            with safe_open(path, "pt", backend="pread") as file:  # no view of what may be rewritten
                return file.get_tensor(name)
        except (SafetensorError, ValueError, TypeError, RuntimeError, OSError) as error:
            raise RequestError(f"{path}: {name}: {first_line(error)}") from None

    found = {}
    try:
        with safe_open(path, "pt", backend="pread") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                about = file.get_slice(name)
                kind = str(about.get_dtype())
                shape = tuple(about.get_shape())
                found[name] = Entry(shape, SAFETENSORS.get(kind, kind), partial(read, name))
        with path.open("rb") as file:  # once more: of two tensors of one name it gives the last
            parse_json(file.read(int.from_bytes(file.read(8), "little")))
    except (SafetensorError, ValueError, OSError) as error:
        with path.open("rb") as file:
            start = file.read(32)
        kinds = (kind for first, kind in OTHERS.items() if start.lstrip().startswith(first))
        seen = next(kinds, "")
        other = seen or start[8:9] != b"{"  # which opens the header of safetensors
        fix = "; save its numbers as one, by numpy.save" if other else ""
        fix = "; decompress it first" if seen in COMPRESSED else fix
        raise RequestError(f"{path}: not {FILES} ({seen or first_line(error)}){fix}") from None
    return found
