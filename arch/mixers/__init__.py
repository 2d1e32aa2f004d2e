"""The family of token mixers: a name for each, and how a pattern becomes modules."""

from arch.mixers.attention import Attention
from arch.mixers.base import TokenMixer
from arch.mixers.flat import Flat
from arch.mixers.side_by_side import SideBySide
from arch.mixers.triangle import Triangle
from arch.pattern import parse

MIXERS: dict[str, type[TokenMixer]] = {
    "attention": Attention,
    "flat": Flat,
}

__all__ = ["MIXERS", "TokenMixer", "Triangle", "build_mixer"]


def build_mixer(entry: str, d_model: int, context: int) -> TokenMixer:
    """Builds one entry of a pattern, such as `flat` or `attention(heads=4)+flat`.

    Raises:
        ModelError: unknown name or argument, or values that do not fit d_model.
    """
    built = [cls(d_model, context, **arguments) for cls, arguments in parse(entry, MIXERS, "mixer")]
    return built[0] if len(built) == 1 else SideBySide(built)
