"""What a row of bits holds, and its figures one by one. Nothing here needs torch."""

from collections.abc import Iterator
from typing import Any

Kinds = dict[str, list[float | None]]
"""`alone` and `cumulative`: a figure at each reported distance."""
Figures = dict[str, Kinds]
"""By precision, or by the number of channels."""
UNITS = ("rms", "effect")
QUANTISERS = ("bf16", "fp8", "int8", "int6", "int4", "int2")


def figure_lines(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The figures of a row of bits, one a line.

    Each has `quantity` (bits, margin_bits, effect, effect_sampled, rms), `distance`, `value`, and
    where they apply `shown` (alone or cumulative), `precision`, `prior` and `channels`.
    """
    several = [
        ({"quantity": name}, {None: row[name]}) for name in ("rms", "effect", "effect_sampled")
    ]
    several.append(({"quantity": "margin_bits"}, row["margin_bits"]))
    for prior, precisions in row["bits"].items():
        place = {"quantity": "bits", "prior": prior}
        several += [(place | {"precision": name}, kinds) for name, kinds in precisions.items()]
    for precision, counts in row["channels"].items():
        place = {"quantity": "bits", "prior": "uniform", "precision": precision}
        several += [(place | {"channels": int(n)}, kinds) for n, kinds in counts.items()]
    for place, kinds in several:
        for shown, values in kinds.items():
            kind = {"shown": shown} if shown else {}
            for distance, value in zip(row["distances"], values, strict=True):
                yield place | kind | {"distance": distance, "value": value}
