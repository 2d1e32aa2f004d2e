"""What a row of bits holds, and its figures one by one. Nothing here needs torch."""

from collections.abc import Iterator
from typing import Any

Kinds = dict[str, list[float | None]]
"""`alone` and `cumulative`: a figure at each reported distance."""
Figures = dict[str, Kinds]
"""By precision, or by the number of channels."""
UNITS = ("rms", "effect")
QUANTISERS = ("bf16", "fp8", "int8", "int6", "int4", "int2")


def figure_lines(row: dict[str, Any], **wanted: Any) -> Iterator[dict[str, Any]]:
    """A row's figures, one a line.

    Each has `quantity` (bits, margin_bits, effect, effect_sampled, rms), `distance`, `value`, and
    where they apply `shown` (alone or cumulative), `precision`, `prior` and `channels`.

    Args:
        row: of bits.
        wanted: only the lines that hold these, for example `quantity="bits", distance=8`.
    """

    at = row["distances"]
    for quantity in ("rms", "effect", "effect_sampled"):
        for distance, value in zip(at, row[quantity], strict=True):
            line = {"quantity": quantity, "distance": distance, "value": value}
            if wanted.items() <= line.items():
                yield line

    def each(kinds: Kinds, **place: Any) -> Iterator[dict[str, Any]]:
        if any(place[key] != wanted[key] for key in place.keys() & wanted.keys()):
            return
        for shown, values in kinds.items():
            for distance, value in zip(at, values, strict=True):
                line = {"distance": distance, "shown": shown, "value": value, **place}
                if wanted.items() <= line.items():
                    yield line

    yield from each(row["margin_bits"], quantity="margin_bits")
    for prior, precisions in row["bits"].items():
        for precision, kinds in precisions.items():
            yield from each(kinds, quantity="bits", prior=prior, precision=precision)
    for precision, counts in row["channels"].items():
        for channels, kinds in counts.items():
            place = {"quantity": "bits", "prior": "uniform", "channels": int(channels)}
            yield from each(kinds, precision=precision, **place)
