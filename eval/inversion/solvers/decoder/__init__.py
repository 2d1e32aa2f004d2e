"""The solver `decoder`: a trained guess of the whole prompt, and an exact search around it."""

from eval.inversion.solvers.decoder.search import decoder as decoder
