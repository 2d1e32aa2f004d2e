"""Arrays of numbers in files of numpy, alone or in an archive, and in folders of `datasets`.

Nothing in a file is run, and an array of numpy is read only when it is asked for.
"""

import json
import math
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

import torch
from torch import Tensor, nn

from eval.captured.files.stored import BITS, EIGHT_BITS, dtype_name
from eval.messages import RequestError, say_once

FILES = "a .safetensors, .npy or .npz file"
UNPACKED = 3, 16 << 20  # times an archive's bytes, and more, that it may unpack to
STATE = "state.json"
MASK = "attention_mask"
"""The name of a tensor that says which rows of each prompt are no padding."""
WIDTHS = {"halffloat": "float16", "float": "float32", "double": "float64"}
CODE_NAMES = frozenset(map(dtype_name, BITS))
"""Integers that may be codes, or the bits of floats, in a column of arrays."""
SCALES = ("scale", "scales")
ZERO_POINTS = ("zero_point", "zero_points", "zp", "zeros")
"""Names of companions: after that of a tensor and a dot or underscore, or alone in the file."""
TORCH_SAVED = (b"PK", b"\x80\x02\x8a\x0a", b"\x80\x03\x8a\x0a")
"""First bytes of what torch.save writes, now and before version 1.6."""


@dataclass(frozen=True)
class Entry:
    """A tensor in a file, not read yet.

    Attributes:
        shape: of the tensor.
        kind: the name of its type, as float32.
        read: reads it.
    """

    shape: tuple[int, ...]
    kind: str
    read: Callable[[], Tensor]

    @classmethod
    def of(cls, tensor: Tensor) -> "Entry":
        """One that is read already."""
        return cls(tuple(tensor.shape), dtype_name(tensor.dtype), lambda: tensor)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Entry":
        """The same with a change of its axes, which is made when it is read."""
        shape = change(torch.empty(self.shape, device="meta")).shape
        return Entry(tuple(shape), self.kind, lambda: change(self.read()))

    def __str__(self) -> str:
        return f"{self.shape} {self.kind}"


def mask_prompts(lengths: Sequence[int]) -> Tensor:
    """1 at the tokens of each prompt, `(B, T)`."""
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def list_archive(path: Path) -> dict[str, Entry]:
    """The arrays of a .npz file; any other archive is refused.

    Raises:
        RequestError: an archive of torch.save, one of a sparse matrix, another one, one that
            unpacks to very much, or one that holds arrays of which a reader sees one alone.
    """
    members = list_members(path)
    if any(name.endswith(".pkl") for name in members):
        refuse_pickle(path, b"PK")
    for name in members:
        if not name.endswith(".npy"):
            raise RequestError(f"{path}: an archive with {name}, which is no array; give {FILES}")
    if members.keys() >= {"data.npy", "format.npy", "shape.npy"}:
        raise RequestError(f"{path}: a sparse matrix of scipy; save its .toarray()")
    return {name.removesuffix(".npy"): list_array(path, name) for name in members}


def list_members(path: Path) -> dict[str, int]:
    """The members of an archive, and their sizes in bytes.

    Raises:
        RequestError: no archive, one that unpacks to very much, or one with a name that stands
            twice or another archive before it, of which a reader would see the last alone.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.infolist()
    except Exception as error:  # of many kinds, by what is damaged
        raise RequestError(f"{path}: not {FILES} ({first_line(error)})") from None
    members = {member.filename: member.file_size for member in found}
    if len(members) < len(found) or min((member.header_offset for member in found), default=0):
        raise RequestError(
            f"{path}: a name stands twice in the archive, or another archive before it; save each "
            "array once, in a file of its own"
        )
    check_size(path, sum(members.values()))
    return members


def check_size(path: Path, size: int) -> None:
    """Whether what a file says that it holds is not very much more than the file.

    Raises:
        RequestError: it is, so that to read it could take all memory.
    """
    times, more = UNPACKED
    if size > times * path.stat().st_size + more:
        raise RequestError(
            f"{path}: would unpack to {size:,} bytes, its own size {path.stat().st_size:,}; save "
            "the arrays whole and not compressed, as numpy.savez does"
        )


@contextmanager
def _opened(path: Path, member: str | None) -> Iterator[tuple[IO[bytes], int]]:
    """A file, or a member of an archive, with its size in bytes.

    What goes wrong in reading an array of it, which is of many kinds, is one line.
    """
    try:
        if member is None:
            with path.open("rb") as file:
                yield file, path.stat().st_size
        else:
            with zipfile.ZipFile(path) as archive, archive.open(member) as file:
                yield file, archive.getinfo(member).file_size
    except Exception as error:
        where = f"{path}: {member}" if member else str(path)
        fix = "; save array.view(numpy.uint8), and give --stored fp8_e5m2" * ("'<f1'" in str(error))
        line = f"{where}: not an array of numbers ({first_line(error)}){fix}"
        raise RequestError(line) from None


def list_array(path: Path, member: str | None = None) -> Entry:
    """An array of numpy by its header, in a file of its own or as a member of an archive."""
    with _opened(path, member) as (file, size):
        shape, _, kind = _read_header(file, size)
    name = {"O": "object", "S": "str", "U": "str"}.get(kind.kind) or str(kind.name)
    name = "uint8" if name == "void8" else name
    return Entry(shape, name, partial(_read_array, path, member))


def _read_header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, Any]:
    """The shape, whether the first axis runs fastest, and the type of an array.

    Raises:
        ValueError: another number of bytes follows.
        Exception: of any kind, by what stands in a damaged header.
    """
    from numpy.lib import format

    readers = {(1, 0): format.read_array_header_1_0, (2, 0): format.read_array_header_2_0}
    version = format.read_magic(file)
    if version not in readers:
        raise ValueError(f"version {version} of the format; known are 1.0 and 2.0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shape, fortran, kind = readers[version](file)
    held, said = size - file.tell(), math.prod(shape) * kind.itemsize
    if min(shape, default=0) < 0 or (said != held and not kind.hasobject):
        raise ValueError(f"{shape} of {kind} takes {said:,} bytes, {held:,} follow")
    return shape, fortran, kind


def _read_array(path: Path, member: str | None) -> Tensor:
    """An array of either byte order as a tensor."""
    import numpy as np

    with _opened(path, member) as (file, size):
        shape, fortran, kind = _read_header(file, size)
        if kind.hasobject:
            raise ValueError("pickled objects, which could run code when they are read")
        if kind.kind == "V" and kind.itemsize <= 2 and not kind.names:  # as of fp8 and bfloat16
            kind = np.dtype(f"u{kind.itemsize}")
        elif kind.kind == "V":
            raise ValueError(f"{kind.itemsize}-byte numbers without a type; save them as float32")
        held = np.empty(size - file.tell(), np.uint8)
        if file.readinto(held) != len(held):  # type: ignore[attr-defined]
            raise ValueError("the file ends before them")
        array = held.view(kind).reshape(shape, order="F" if fortran else "C")
        native = array.astype(kind.newbyteorder("="), copy=False)
        return torch.from_numpy(np.ascontiguousarray(native).reshape(shape))


def list_columns(folder: Path) -> tuple[dict[str, Entry], dict[str, list[list[int]]]]:
    """The columns of arrays `(rows, T, width)`, and those of whole numbers `(rows, T)`.

    Floats of unlike T are padded with zeros, and have a mask, unless one is given. A column of
    other unlike rows is named in a line.

    Args:
        folder: that `datasets.Dataset.save_to_disk` wrote.

    Raises:
        RequestError: a damaged folder, or unlike rows alone.
    """
    import pyarrow

    entries, ids, unlike = dict[str, Entry](), dict[str, list[list[int]]](), list[str]()
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if state.get("_indices_data_files"):  # as datasets before 1.12 chose rows
            raise ValueError("its rows are chosen by a file of indices; load it, and save it anew")
        names = [Path(entry["filename"]).name for entry in state["_data_files"]]
        tables = [pyarrow.ipc.open_stream(folder / name).read_all() for name in names]
        table = pyarrow.concat_tables(tables)
        table.validate(full=True)
        if not table.num_rows:
            raise ValueError("no rows")
        for name in table.column_names:
            column = _read_column(table[name], split_companion(name) is not None)
            if isinstance(column, str) and name == MASK:
                column = _pad(table[name].to_pylist())
            if isinstance(column, list):
                ids[name] = column
            elif isinstance(column, str):
                unlike.append(f"{name}, {column}")
            elif column:
                entries |= {f"{name}{end}": entry for end, entry in column.items()}
        entries = _lay_numbers(entries)
        if unlike and not (entries or ids):
            raise ValueError(f"{unlike[0]}; give arrays of one length, and without nulls")
        if given := ids.get(MASK):  # which may leave out rows that are padding
            told = torch.tensor(given).bool()
            for name in [name for name in entries if name.endswith(f".{MASK}")]:
                made = entries[name]
                if made.shape == told.shape and not (told & ~made.read().bool()).any():
                    del entries[name]
    except Exception as error:  # of many kinds, by what is damaged
        raise RequestError(f"{folder}: not a folder of datasets ({first_line(error)})") from None
    for line in unlike:
        say_once(f"{folder}: not read: {line}"[:1000])
    return entries, ids


def _pad(rows: list[list[int]]) -> list[list[int]]:
    """Rows of a mask of one length, with zeros behind.

    Raises:
        ValueError: nulls stand in it.
    """
    if None in rows or any(None in row for row in rows):
        raise ValueError(f"{MASK} has nulls; give 0 in their place")
    longest = max(map(len, rows))
    return [[*row, *[0] * (longest - len(row))] for row in rows]


def _lay_numbers(entries: dict[str, Entry]) -> dict[str, Entry]:
    """The arrays, and scales and zero points of one number a row with all axes of their array.

    The first axis is that of rows; with fewer axes they might be read as a number for each token.
    Other numbers of rows are left out, as a score named scale beside floats.
    """
    arrays = {name: entry for name, entry in entries.items() if len(entry.shape) > 1}
    most = max((len(entry.shape) for entry in arrays.values()), default=0)
    eight_bits = any(entry.kind in EIGHT_BITS for entry in arrays.values())
    for name, entry in entries.items():
        base = (split_companion(name) or (None,))[0]
        belongs = base in arrays or (base == "" and eight_bits)
        if belongs and set(entry.shape[1:]) <= {1}:
            axes = len(arrays[base].shape) if base in arrays else most
            shape = (*entry.shape, *[1] * (axes - len(entry.shape)))
            arrays[name] = entry.map(partial(torch.reshape, shape=shape))
    return arrays


def split_companion(name: str) -> tuple[str, str] | None:
    """The tensor that a scale or a zero point belongs to by its name, or "", and which it is.

    Of tensors in a list, `states_scales.3` belongs to `states.3`.
    """
    companions = "|".join((*SCALES, *ZERO_POINTS))
    match = re.fullmatch(rf"(?:(.+)[._])?({companions})((?:\.\d+)*)", name)
    if match is None:
        return None
    return (match[1] or "") + match[3], "scale" if match[2] in SCALES else "zero_point"


def _read_column(column: Any, companion: bool) -> dict[str, Entry] | list[list[int]] | str | None:
    """Arrays and their mask, if any, by what ends their names; or lists of whole numbers.

    A companion of one number a row is an array of one axis. None stands for any other column, words
    for one that cannot be read: of unlike lengths, with nulls, or of numbers too large.
    """
    import pyarrow
    from pyarrow import compute

    held, shape = column.combine_chunks(), [len(column)]
    if isinstance(held, pyarrow.ChunkedArray):
        held = held.chunk(0)
    held = getattr(held, "storage", held)
    whole, leaf, depth = held, held.type, 0
    kinds, tokens = pyarrow.types, list[int]()
    while kinds.is_list(leaf) or kinds.is_large_list(leaf) or kinds.is_fixed_size_list(leaf):
        leaf, depth = leaf.value_type, depth + 1
    integers = str(leaf) in CODE_NAMES if depth > 1 else not depth and kinds.is_integer(leaf)
    kind = str(leaf) if integers else WIDTHS.get(str(leaf))
    ids = depth == 1 and (kinds.is_integer(leaf) or kinds.is_boolean(leaf))
    if not (ids or (kind and (depth or companion))):
        return None
    while held.type != leaf:
        lengths = compute.call_function("list_value_length", [held])
        each = lengths.unique().to_pylist()
        if each in ([0], [None]):  # nothing stands in it
            return None
        prompts = held is whole and depth > 1 and not (kinds.is_integer(leaf) or None in each)
        if len(each) > 1 and prompts:
            tokens = lengths.to_pylist()
            shape = [sum(tokens)]
        elif len(each) != 1:  # as of ids before they are padded
            return f"rows of {each[:5]} entries"
        else:
            shape.append(each[0])
        held = held.flatten()
    if held.null_count:
        return f"has {held.null_count} nulls"
    if kind is None:
        fits = compute.call_function("max", [held]).as_py() < 1 << 63  # in int64, as all ids do
        return whole.to_pylist() if fits else "numbers beyond int64"
    values = torch.from_numpy(held.to_numpy(zero_copy_only=False).copy()).view(shape)
    if not tokens:
        return {"": Entry.of(values)}
    padded = nn.utils.rnn.pad_sequence(list(values.split(tokens)), batch_first=True)
    return {"": Entry.of(padded), f".{MASK}": Entry.of(mask_prompts(tokens))}


def refuse_pickle(path: Path, start: bytes) -> NoReturn:
    """Refuses a file of objects, which begins with these bytes.

    Raises:
        RequestError: always.
    """
    flag = "give --torch-file, which reads tensors alone, or " * start.startswith(TORCH_SAVED)
    raise RequestError(
        f"{path}: a pickle, which could run code when it is read; {flag}save its tensors by "
        "safetensors.torch.save_file({name: tensor, ...}, FILE)"
    )


def first_line(error: Exception) -> str:
    """What an error of a library says, without what follows in other lines.

    Torch's advice to run what a file holds is left out.
    """
    said = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
    return (said.splitlines() or [type(error).__name__])[0][:200]
