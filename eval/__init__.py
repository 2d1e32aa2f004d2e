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
    from eval.information.command import bits as bits
    from eval.inversion.invert import invert as invert
    from eval.inversion.listing import list_solvers as list_solvers
    from eval.inversion.recover import recover as recover
    from eval.language import generate as generate
    from eval.language import loss as loss
    from eval.lenses.command import lens as lens
    from eval.lenses.command import list_lenses as list_lenses
    from eval.messages import RequestError as RequestError
    from eval.models import open_model as open_model
    from eval.probes.command import geometry as geometry
    from eval.probes.command import probe as probe
    from eval.tasks import watching as watching
    from eval.views import compare as compare

_MODULES = {
    "RequestError": "messages",
    "open_model": "models",
    "activations": "captures",
    "bits": "information.command",
    "compare": "views",
    "generate": "language",
    "geometry": "probes.command",
    "invert": "inversion.invert",
    "lens": "lenses.command",
    "list_lenses": "lenses.command",
    "list_solvers": "inversion.listing",
    "loss": "language",
    "probe": "probes.command",
    "recover": "inversion.recover",
    "watching": "tasks",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"eval.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
