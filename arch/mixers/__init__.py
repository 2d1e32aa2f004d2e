"""The family of token mixers: a name for each, and how a pattern becomes modules."""

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
    "MIXERS", "CausalAttention", "TokenMixer", "Triangle", "build_mixer", "rotate", "share_rotary",
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


def build_mixer(entry: str, d_model: int, context: int) -> TokenMixer:
    """Builds one entry of a pattern: `flat`, or `attention(heads=4)+my_mixers.Recurrent`.

    Raises:
        ModelError: an unknown name or argument, a module that cannot be imported, or values that do
            not fit d_model.
    """
    terms = parse(entry, MIXERS, "mixer", TokenMixer)
    built = [cls(d_model, context, **arguments) for cls, arguments in terms]
    return built[0] if len(built) == 1 else SideBySide(built)
