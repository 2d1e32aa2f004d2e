"""The solver `alternating`: hidden tokens by turns of reading and searching."""

from eval.inversion.solvers.alternating.search import alternating as alternating
