"""The names of `arch`, all of them; they need torch."""

# ruff: noqa: F401

from arch.config import ModelConfig
from arch.convert import export_transformers, import_transformers
from arch.describe import Cost, Description, describe
from arch.directory import LoadedModel, add_to_meta, check_model, load_model, save_model
from arch.errors import ModelError
from arch.generate import generate
from arch.mixers import MIXERS, TokenMixer
from arch.model import Block, LanguageModel, State, count_parameters, embedding_scale
from arch.pretrained import load_pretrained
from arch.reference import import_reference
