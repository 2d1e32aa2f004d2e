"""Questions asked of model directories; every answer is rows of evidence.

    from eval import compare, invert, lens, loss, open_model, probe

These are the commands of `python -m eval` as functions. Each returns a result that prints itself,
has its rows as a data frame (`.frame`), and writes a page (`.page(path)`). A function is loaded
when it is first named, so that `import eval` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eval.captures import activations as activations
    from eval.commands.bits import bits as bits
    from eval.commands.inversion import invert as invert
    from eval.commands.language import generate as generate
    from eval.commands.language import loss as loss
    from eval.commands.lenses import lens as lens
    from eval.commands.probes import geometry as geometry
    from eval.commands.probes import probe as probe
    from eval.commands.tables import compare as compare
    from eval.inversion.recover import recover as recover
    from eval.models import open_model as open_model
    from eval.tasks import watching as watching

_MODULES = {
    "open_model": "models",
    "activations": "captures",
    "bits": "commands.bits",
    "compare": "commands.tables",
    "generate": "commands.language",
    "geometry": "commands.probes",
    "invert": "commands.inversion",
    "lens": "commands.lenses",
    "loss": "commands.language",
    "probe": "commands.probes",
    "recover": "inversion.recover",
    "watching": "tasks",
}


class RequestError(ValueError):
    """A request that cannot be answered; the message is one line that says why."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"eval.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
