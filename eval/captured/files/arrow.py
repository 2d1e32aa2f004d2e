"""Folders of `datasets`: their columns of arrays, and of token ids, by name."""

import json
from pathlib import Path
from typing import Any

import torch

from eval.captured.files.tensors import Entry
from eval.messages import RequestError

STATE = "state.json"
WIDTHS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def list_columns(folder: Path) -> tuple[dict[str, Entry], dict[str, list[list[int]]]]:
    """The columns of arrays `(rows, T, width)`, and those of whole numbers `(rows, T)`.

    Args:
        folder: that `datasets.Dataset.save_to_disk` wrote.

    Raises:
        RequestError: a damaged folder.
    """
    import pyarrow

    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        names = [Path(entry["filename"]).name for entry in state["_data_files"]]
        tables = [pyarrow.ipc.open_stream(folder / name).read_all() for name in names]
        table = pyarrow.concat_tables(tables)
        table.validate(full=True)
        if not table.num_rows:
            raise ValueError("no rows")
        columns = {name: _read_column(table[name]) for name in table.column_names}
    except Exception as error:  # of many kinds, by what is damaged
        line = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise RequestError(f"{folder}: not a folder of datasets ({line})") from None
    entries = {name: entry for name, entry in columns.items() if isinstance(entry, Entry)}
    return entries, {name: ids for name, ids in columns.items() if isinstance(ids, list)}


def _read_column(column: Any) -> Entry | list[list[int]] | None:
    """A column of arrays, or of lists of whole numbers; None of any other.

    Raises:
        ValueError: its rows are not of one length.
    """
    import pyarrow
    from pyarrow import compute

    held, shape = column.combine_chunks(), [len(column)]
    if isinstance(held, pyarrow.ChunkedArray):
        held = held.chunk(0)
    held = getattr(held, "storage", held)
    whole = held
    while pyarrow.types.is_list(held.type) or pyarrow.types.is_fixed_size_list(held.type):
        lengths = compute.call_function("list_value_length", [held]).unique().to_pylist()
        if len(lengths) != 1 or not lengths[0]:
            raise ValueError(f"rows of {lengths[:5]} entries; give them of one length")
        shape.append(lengths[0])
        held = held.flatten()
    if held.null_count or len(shape) < 2:
        return None
    if pyarrow.types.is_integer(held.type) and len(shape) == 2:
        return whole.to_pylist()
    kind = WIDTHS.get(str(held.type))
    if kind is None:
        return None
    values = torch.from_numpy(held.to_numpy(zero_copy_only=False).copy()).view(shape)
    return Entry(tuple(shape), kind, lambda: values)
