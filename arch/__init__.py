"""Models: one contract, many token mixers. Imports nothing else of this project.

Of its names, all that need torch are imported once the first of them is used: `--help` has no use
for them.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from arch.config import ModelConfig as ModelConfig
from arch.errors import ModelError as ModelError

if TYPE_CHECKING:
    from arch.public import *  # noqa: F403


class _Package(ModuleType):
    """Keeps `arch.describe` and `arch.generate` from becoming the modules of these names."""

    def __getattr__(self, name: str) -> Any:
        public = import_module("arch.public")
        if name not in public.__all__:
            raise AttributeError(f"module 'arch' has no attribute {name!r}")
        vars(self).update({each: getattr(public, each) for each in public.__all__})
        return vars(self)[name]

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("describe", "generate"):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
