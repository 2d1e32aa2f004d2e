"""Threads that wait give up their core soon: imported first by every command that computes.

Torch's OpenMP library (libgomp) lets a thread that waits for others spin for milliseconds, and on a
core that another process needs, everybody waits for it. The library reads its variable when torch
is imported; processes that a command starts inherit it. What a user has set is left alone.
"""

import os
import sys

SPINS = "10000"
"""Turns of waiting after which a thread sleeps; libgomp's own default is 300,000."""
CHOSEN = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"}
"""Variables by which a user says how threads wait."""

if "torch" not in sys.modules and not CHOSEN & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = SPINS
