"""What rows say of themselves, with the defaults of what older rows do not mention.

Everything that pools or joins rows (tables, verdicts, the page, W&B) asks here, so that all of them
mean the same by a model, a site or a family of methods.
"""

import os
import re
from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from eval.errors import RequestError
from eval.inversion.slices import Slice
from eval.results import Row

FAMILIES = {"descent": "gradient", "adam": "gradient", "sweep": "search", "alternating": "search"}
"""Of methods whose rows do not name their family."""
ARCHITECTURE = ("mixers", "d_model", "n_layers", "context", "parameters", "init", "embedding_std")
"""Fields of a row's checkpoint; where all are equal, and nothing was done to the models for a
control, they are seeds of one another."""
SHUFFLED = "shuffled"
"""The control whose target belongs to another prompt, so that its truth explains nothing."""

SEED = re.compile(r"(?:^|[-_. ])s(?:eed)?[-_.= ]?\d+(?= \[|$)")
"""The training seed at the end of a model's name: `flat-s0`, `mixers=flat_seed=1`."""


def recoveries(rows: Iterable[Row]) -> list[Row]:
    """The rows that recover a prompt, as a directory may hold others; of equal keys the last."""
    return [row for row in {row["key"]: row for row in rows}.values() if "found" in row]


def family(row: Row) -> str:
    """`gradient`, `search` or another family of methods; `other` if nothing says."""
    return row.get("family") or FAMILIES.get(row["method"], "other")


def architecture(row: Row) -> tuple[Hashable, ...]:
    """Equal for models that differ in their seed and training step only."""
    control = row.get("control")
    fields = [row["checkpoint"].get(field) for field in ARCHITECTURE]
    return (*map(_frozen, fields), None if control == SHUFFLED else control)


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


def labels(rows: Iterable[Row]) -> dict[tuple[Hashable, ...], str]:
    """A name for every architecture, told apart from the others.

    The checkpoints' own name where they share one, its seed left out (`flat-s0`, `flat-s1`);
    otherwise the mixers and sizes.
    """
    named: dict[tuple[Hashable, ...], set[str]] = {}
    checkpoints = {}
    for row in rows:
        key = architecture(row)
        named.setdefault(key, set()).add(row["checkpoint"]["name"])
        checkpoints.setdefault(key, row["checkpoint"])
    found = {key: _common(names) or _sizes(checkpoints[key]) for key, names in named.items()}
    for label in {label for label in found.values() if list(found.values()).count(label) > 1}:
        alike = [key for key in found if found[key] == label]
        for key in alike:
            found[key] = f"{label} ({_differences(key, alike)})"
    return found


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


def _common(names: set[str]) -> str | None:
    if len(names) == 1:
        return next(iter(names))
    bare = {SEED.sub("", name) for name in names}
    return bare.pop() if len(bare) == 1 else None


def _sizes(checkpoint: dict[str, Any]) -> str:
    mixers = ", ".join(checkpoint["mixers"])
    return f"{mixers}, {checkpoint['d_model']} x {checkpoint['n_layers']}"


def _differences(key: tuple[Hashable, ...], alike: list[tuple[Hashable, ...]]) -> str:
    """The values of an architecture that others of the same name do not share."""
    told = [
        f"{field} {', '.join(value) if isinstance(value, tuple) else value}"
        for i, (field, value) in enumerate(zip((*ARCHITECTURE, "control"), key, strict=True))
        if len({other[i] for other in alike}) > 1
    ]
    return ", ".join(told)


def _frozen(value: object) -> Hashable:
    return tuple(value) if isinstance(value, list) else value  # pyright: ignore
