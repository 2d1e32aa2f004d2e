"""The family of token mixers: a name for each, and how a pattern becomes modules."""

from typing import Any

from arch.mixers.attention import Attention, CausalAttention, rotate, share_rotary
from arch.mixers.base import Identity, SideBySide, TokenMixer
from arch.mixers.masked import (
    Expanded,
    Flat,
    Headed,
    Kernel,
    Parallel,
    Rectangular,
    Triangle,
)
from arch.patterns import parse

__all__ = [
    "MIXERS", "CausalAttention", "Rectangular", "TokenMixer", "Triangle", "build_mixer",
    "parse_mixer", "rotate", "share_rotary",
]  # fmt: skip
MIXERS: dict[str, type[TokenMixer]] = {
    "attention": Attention,
    "expanded": Expanded,
    "flat": Flat,
    "headed": Headed,
    "identity": Identity,
    "kernel": Kernel,
    "parallel": Parallel,
    "rectangular": Rectangular,
}


def parse_mixer(entry: str) -> list[tuple[type[TokenMixer], dict[str, Any]]]:
    """Reads one entry of a pattern, such as `flat` or `attention(heads=4)+my_mixers.Recurrent`.

    Raises:
        ModelError: unknown name or argument, or a module that cannot be imported.
    """
    return parse(entry, MIXERS, "mixer", TokenMixer)


def build_mixer(entry: str, d_model: int, context: int) -> TokenMixer:
    """Builds one entry of a pattern.

    Raises:
        ModelError: as `parse_mixer`, or values that do not fit d_model.
    """
    built = [cls(d_model, context, **arguments) for cls, arguments in parse_mixer(entry)]
    return built[0] if len(built) == 1 else SideBySide(built)
