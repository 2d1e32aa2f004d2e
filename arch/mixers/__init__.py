"""The family of token mixers: a name for each, and how a pattern becomes modules."""

from arch.mixers.attention import Attention
from arch.mixers.base import TokenMixer
from arch.mixers.expanded import Expanded
from arch.mixers.flat import Flat
from arch.mixers.headed import Headed
from arch.mixers.identity import Identity
from arch.mixers.kernel import Kernel
from arch.mixers.parallel import Parallel
from arch.mixers.rectangular import Rectangular
from arch.mixers.side_by_side import SideBySide
from arch.mixers.softmax import Softmax
from arch.mixers.toeplitz import Toeplitz
from arch.mixers.triangle import Diagonals, Triangle
from arch.pattern import parse

MIXERS: dict[str, type[TokenMixer]] = {
    "attention": Attention,
    "expanded": Expanded,
    "flat": Flat,
    "headed": Headed,
    "identity": Identity,
    "kernel": Kernel,
    "parallel": Parallel,
    "rectangular": Rectangular,
    "softmax": Softmax,
    "toeplitz": Toeplitz,
}

__all__ = ["MIXERS", "Diagonals", "TokenMixer", "Triangle", "build_mixer"]


def build_mixer(entry: str, d_model: int, context: int) -> TokenMixer:
    """Builds one entry of a pattern, such as `flat` or `attention(heads=4)+flat`.

    Raises:
        ModelError: unknown name or argument, or values that do not fit d_model.
    """
    built = [cls(d_model, context, **arguments) for cls, arguments in parse(entry, MIXERS, "mixer")]
    return built[0] if len(built) == 1 else SideBySide(built)
