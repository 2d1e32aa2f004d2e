"""Models: one contract, many token mixers. Imports nothing else of this project.

A name that needs torch is imported when it is first used: `--help` has no use for it, and a machine
without transformers or tokenizers can still run models.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from arch.config import ModelConfig
from arch.errors import ModelError

if TYPE_CHECKING:
    from arch.causality import check_causal
    from arch.convert import export_transformers, import_transformers
    from arch.costs import Cost, Description, describe
    from arch.directory import LoadedModel, add_to_meta, check_model, load_model, save_model
    from arch.mixers import MIXERS, TokenMixer
    from arch.model import Block, LanguageModel, State, count_parameters, embedding_scale
    from arch.pretrained import load_pretrained
    from arch.reference import import_reference
    from arch.sampling import check_generates, generate

__all__ = [
    "MIXERS", "Block", "Cost", "Description", "LanguageModel", "LoadedModel", "ModelConfig",
    "ModelError", "State", "TokenMixer", "add_to_meta", "check_causal", "check_generates",
    "check_model", "count_parameters", "describe", "embedding_scale", "export_transformers",
    "generate", "import_reference", "import_transformers", "load_model", "load_pretrained",
    "save_model",
]  # fmt: skip
LATE = (
    "model", "mixers", "causality", "directory", "sampling", "costs", "convert", "reference",
    "pretrained",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    for module in LATE if name in __all__ else ():
        if name in vars(import_module(f"arch.{module}")):
            return getattr(import_module(f"arch.{module}"), name)
    raise AttributeError(f"module 'arch' has no attribute {name!r}")
