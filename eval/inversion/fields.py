"""What rows say of themselves, with the defaults of what older rows do not mention.

Everything that pools or joins rows (tables, verdicts, the page, W&B) asks here, so that all of them
mean the same by a model, a site or a family of methods.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from eval.errors import RequestError
from eval.identity import identified
from eval.inversion.slices import Slice
from eval.results import Row

FAMILIES = {"descent": "gradient", "adam": "gradient", "sweep": "search", "alternating": "search"}
"""Of methods whose rows do not name their family."""
SHUFFLED = "shuffled"
"""The control whose target belongs to another prompt, so that its truth explains nothing."""


def recoveries(rows: Iterable[Row]) -> list[Row]:
    """The rows that recover a prompt, as a directory may hold others; of equal keys the last.

    Each says which model it is about, those of earlier versions too.
    """
    kept = [row for row in {row["key"]: row for row in rows}.values() if "found" in row]
    return identified(kept)


def family(row: Row) -> str:
    """`gradient`, `search` or another family of methods; `other` if nothing says."""
    return row.get("family") or FAMILIES.get(row["method"], "other")


def model(row: Row) -> str:
    """Equal for the training steps and seeds of one model (`eval.identity`)."""
    return row["checkpoint"]["model_id"]


def weights(row: Row) -> str:
    """One model at one training step."""
    return row["checkpoint"]["weights_sha256"]


def prompt(row: Row) -> tuple[str, tuple[int, ...]]:
    """What was to be recovered: equal for all models that share a tokenizer."""
    return (row["prompts"], tuple(row["truth"]))


def layers(row: Row) -> tuple[int, ...]:
    """The layers shown together; most often one."""
    layer = row["site"]["layer"]
    return tuple(layer) if isinstance(layer, list) else (layer,)


def part(row: Row) -> str:
    """The part of the layer, with the layers below it that are shown too: `block`, `block 1+3`."""
    name = row["site"].get("part", "block")
    return name if len(layers(row)) == 1 else f"{name} {'+'.join(map(str, layers(row)))}"


def variation(row: Row) -> dict[str, Any]:
    """In what a row departs from the plain question: channels, ablations, noise, control, padding.

    Empty when in nothing. `channels` is the range of those that are shown.
    """
    fields = {
        "channels": _read(row["slice"])[1],
        "without": ", ".join(row["site"].get("without") or ()),
        "noise": row.get("noise") or 0.0,
        "control": row.get("control"),
        "padded": bool(row.get("padded")),
    }
    return {name: value for name, value in fields.items() if value}


def positions(row: Row) -> str:
    """The row's slice, all channels taken as shown."""
    return _read(row["slice"])[0]


def channel_count(row: Row) -> int | None:
    """How many channels are shown, where they are the first ones; None for others."""
    try:
        shown = Slice.parse(row["slice"])
    except RequestError:
        return None
    return None if shown.low else shown.channels(row["checkpoint"]["d_model"])


def hidden_positions(row: Row) -> set[int]:
    """The positions of the prompt that the row's slice does not show."""
    length, count = row["length"], row["hidden"]
    try:
        hidden = set(range(length)) - set(Slice.parse(row["slice"]).positions(length))
    except RequestError:  # a slice of another form
        hidden = set()
    # where the padding moved the slice, it hides leading positions only
    return hidden if len(hidden) == count else set(range(count))


def arrived(row: Row) -> bool:
    """Whether every token was found, so that the row knows the surroundings of the answer."""
    return bool(row["verdict"]) and "not found" not in row["verdict"]


def accepted(row: Row) -> bool:
    """Whether the answer explains the evidence, of a model whose answers can be proved at all."""
    return bool(row["at_floor"]) and not row.get("uncertified")


def margin_bits(row: Row) -> float | None:
    """The row's `margin_bits`; None where it did not arrive, as nothing is known around it then."""
    return row.get("margin_bits") if arrived(row) else None


def folder(row: Row) -> str:
    """The directory that holds a row's model directory."""
    return os.path.dirname(os.path.normpath(row["checkpoint"]["path"]))


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[str, str]:
    """A slice's positions, as a slice, and its channels, "" for all of them."""
    try:
        shown = Slice.parse(text)
    except RequestError:
        return text, ""
    if (shown.low, shown.high) == (0, None):
        return text, ""
    bounds = f"{shown.low or ''}:{'' if shown.high is None else shown.high}"
    return str(replace(shown, low=0, high=None)), bounds
