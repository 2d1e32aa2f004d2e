"""Models: one contract, many token mixers. Imports nothing else of this project.

Of its names, all that need torch are imported once the first of them is used: `--help` has no use
for them.
"""

# ruff: noqa: F403, F405

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from arch.config import ModelConfig
from arch.errors import ModelError

if TYPE_CHECKING:
    from arch.public import *

__all__ = [
    "MIXERS",
    "Block",
    "Cost",
    "Description",
    "LanguageModel",
    "LoadedModel",
    "ModelConfig",
    "ModelError",
    "State",
    "TokenMixer",
    "add_to_meta",
    "check_model",
    "count_parameters",
    "describe",
    "embedding_scale",
    "export_transformers",
    "generate",
    "import_reference",
    "import_transformers",
    "load_model",
    "load_pretrained",
    "save_model",
]


class _Package(ModuleType):
    """Keeps `arch.describe` and `arch.generate` from becoming the modules of these names."""

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'arch' has no attribute {name!r}")
        public = import_module("arch.public")
        vars(self).update({each: getattr(public, each) for each in __all__})
        return vars(self)[name]

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("describe", "generate"):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
