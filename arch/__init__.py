"""Models: one contract, many token mixers. Imports nothing else of this project.

A name that needs torch is imported when it is first used: `--help` has no use for it, and a machine
without transformers or tokenizers can still run models.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from arch.config import ModelConfig
from arch.errors import ModelError

if TYPE_CHECKING:
    from arch.check import check_causal
    from arch.costs import Cost, Description, count_parameters, describe
    from arch.formats.checkpoints import import_reference
    from arch.formats.hub.export import export_hub
    from arch.formats.hub.reader import import_hub
    from arch.formats.llama import export_transformers, import_transformers
    from arch.mixers import MIXERS, TokenMixer
    from arch.model import Block, LanguageModel, State, embedding_scale
    from arch.pretrained.pretrained import load_pretrained
    from arch.sampling import generate
    from arch.storage.directory import LoadedModel, add_to_meta, check_model, load_model, save_model

__all__ = [
    "MIXERS", "Block", "Cost", "Description", "LanguageModel", "LoadedModel", "ModelConfig",
    "ModelError", "State", "TokenMixer", "add_to_meta", "check_causal", "check_model",
    "count_parameters", "describe", "embedding_scale", "export_hub", "export_transformers",
    "generate", "import_hub", "import_reference", "import_transformers", "load_model",
    "load_pretrained", "save_model",
]  # fmt: skip
NAMES = {
    "check": "check_causal",
    "formats.hub.export": "export_hub",
    "formats.hub.reader": "import_hub",
    "formats.llama": "export_transformers import_transformers",
    "costs": "Cost Description count_parameters describe",
    "storage.directory": "LoadedModel add_to_meta check_model load_model save_model",
    "mixers": "MIXERS TokenMixer",
    "model": "Block LanguageModel State embedding_scale",
    "pretrained.pretrained": "load_pretrained",
    "formats.checkpoints": "import_reference",
    "sampling": "generate",
}
"""What is imported late, by the module that has it."""
MODULES = {name: module for module, names in NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'arch' has no attribute {name!r}")
    return getattr(import_module(f"arch.{MODULES[name]}"), name)
