"""Which side of the fence a story stands on: `train`, or `valid` (never trained on)."""

from __future__ import annotations

import hashlib

SPLITS = ("train", "valid")


def held_out(story: str, share: float) -> bool:
    """Say whether a story belongs to the `share` set aside for validation.

    The answer depends on the text alone, so that two copies of it are always on the same side,
    whatever the order, the seed or the machine.
    """
    return int.from_bytes(digest(story), "big") < share * 2**64


def digest(story: str) -> bytes:
    """Return eight bytes that stand for a story: equal exactly for equal ones, for all purposes."""
    return hashlib.blake2b(story.encode(), digest_size=8).digest()
