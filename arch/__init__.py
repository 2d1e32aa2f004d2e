"""Models: one contract, many token mixers. Imports nothing else of this project."""

from arch.config import ModelConfig
from arch.cost import Cost
from arch.describe import Description, describe
from arch.directory import LoadedModel, load_model, save_model
from arch.errors import ModelError
from arch.files import write_directory
from arch.generate import generate
from arch.mixers import MIXERS, TokenMixer
from arch.model import Block, LanguageModel, State, count_parameters, embedding_scale

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
    "count_parameters",
    "describe",
    "embedding_scale",
    "generate",
    "load_model",
    "save_model",
    "write_directory",
]
