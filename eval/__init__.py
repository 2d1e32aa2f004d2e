"""Questions asked of model directories; every answer is rows of evidence.

    from eval import compare, invert, lens, loss, open_model, probe

These are the commands of `python -m eval` as functions. Each returns a result that prints itself,
has its rows as a data frame (`.frame`), and writes a page (`.page(path)`). A function is loaded
when it is first named, so that `import eval` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eval.captured.recover import recover as recover
    from eval.captured.search.scores import recover_scores as recover_scores
    from eval.commands.bits import bits as bits
    from eval.commands.capture import capture as capture
    from eval.commands.invert import invert as invert
    from eval.commands.language import generate as generate
    from eval.commands.language import loss as loss
    from eval.commands.lens import lens as lens
    from eval.commands.lists import list_lenses as list_lenses
    from eval.commands.lists import list_solvers as list_solvers
    from eval.commands.probe import geometry as geometry
    from eval.commands.probe import probe as probe
    from eval.commands.views import compare as compare
    from eval.messages import RequestError as RequestError
    from eval.models.checkpoint import open_model as open_model
    from eval.rows.progress import watching as watching
    from eval.sites.activations import activations as activations

_MODULES = {
    "RequestError": "messages",
    "open_model": "models.checkpoint",
    "activations": "sites.activations",
    "bits": "commands.bits",
    "capture": "commands.capture",
    "compare": "commands.views",
    "generate": "commands.language",
    "geometry": "commands.probe",
    "invert": "commands.invert",
    "lens": "commands.lens",
    "list_lenses": "commands.lists",
    "list_solvers": "commands.lists",
    "loss": "commands.language",
    "probe": "commands.probe",
    "recover": "captured.recover",
    "recover_scores": "captured.search.scores",
    "watching": "rows.progress",
}
__all__ = [*_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"eval.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
