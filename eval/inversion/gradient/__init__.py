"""Gradient solvers, one interface: a batch and each row's chance to an answer for each row.

    adam(batch, chance, steps=300)

The rows of a batch do not touch each other: their losses are summed, so each one's gradient is its
own. Rows that are solved leave. Settings may be numbers or one for each row where they say so.
"""

from eval.inversion.gradient.adam import adam
from eval.inversion.gradient.descent import descent

__all__ = ["adam", "descent"]
