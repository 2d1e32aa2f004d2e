"""Gradient solvers, one interface: a batch and each row's chance to an answer for each row.

    adam(batch, chance, steps=300)

The rows of a batch do not touch each other: their losses are summed, so each one's gradient is its
own. Rows that are solved leave. Settings may be numbers or one for each row where they say so.
"""

from eval.inversion.gradient.adam import adam
from eval.inversion.gradient.arca import arca
from eval.inversion.gradient.descent import descent
from eval.inversion.gradient.gcg import gcg
from eval.inversion.gradient.gumbel import gumbel
from eval.inversion.gradient.lbfgs import lbfgs
from eval.inversion.gradient.levenberg import levenberg
from eval.inversion.gradient.pez import pez
from eval.inversion.gradient.pia import pia
from eval.inversion.gradient.soda import soda

__all__ = [
    "adam",
    "arca",
    "descent",
    "gcg",
    "gumbel",
    "lbfgs",
    "levenberg",
    "pez",
    "pia",
    "soda",
]
