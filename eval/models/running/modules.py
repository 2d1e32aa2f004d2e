"""Modules in memory: a copy to ask, and what tells a module from others and from what it was."""

import copy
import json
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any
from uuid import uuid4

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from arch import LanguageModel, ModelError
from arch.errors import is_out_of_memory, reason
from arch.formats.named_tokens import ends_of_text, read_stops
from arch.mixers import has_foreign
from arch.pretrained.decoder import PretrainedConfig
from arch.pretrained.families import find_changes, find_global_hooks, has_own_attention
from arch.storage.weights import Undrawn
from eval.models.identity import KNOWN, weights_hash

WITHOUT_EFFECT = (
    "training", "gradient_checkpointing", "name_or_path", "warnings_issued", "padding_idx",
    "layerdrop",
)  # fmt: skip
"""Attributes of a module that, as dropouts, change nothing of what it computes in evaluation."""
PLAIN = (str, bytes, int, float, complex, set, frozenset, type, torch.dtype, BuiltinFunctionType)
PARTIAL = ("func", "args", "keywords")
WRAPPERS = ("torch", "lightning", "accelerate", "deepspeed")  # whose modules may hold a model


def unwrap(module: Any) -> Any:
    """The model within what compiling it and training it in parallel put around it."""
    for around in ("_orig_mod", "module", "_orig_mod"):  # of compiling, and of training
        if type(module).__module__.partition(".")[0] in WRAPPERS:
            module = getattr(module, around, module)
    return module


def read_facts(
    module: Any, model: LanguageModel, tokenizer: Any, backend: Tokenizer
) -> dict[str, Any]:
    """The settings of a module, and the tokens that end its texts, as `Checkpoint.meta` has them.

    Args:
        module: as it was given.
        model: made of it.
        tokenizer: as it was given.
        backend: made of it.
    """
    roles = {role: getattr(tokenizer, role, None) for role in ("bos_token", "eos_token")}
    named = getattr(module, "generation_config", None), module.config
    ids = [found for about in named if (found := getattr(about, "eos_token_id", None)) is not None]
    ends = read_stops(ids[0] if ids else None, backend.to_str()) | ends_of_text(roles)
    theirs = {} if isinstance(module, LanguageModel) else module.config.to_diff_dict()
    return {**ends, "settings": json.loads(model.config.to_json()) | theirs}


def copy_module(module: nn.Module, name: str) -> nn.Module:
    """A copy in evaluation mode that shares the weights, without gradients.

    An rwkv, which divides its weights as it runs, has copies of them.

    Raises:
        ModelError: it holds what cannot be copied.
    """
    divides = getattr(module.config, "rescale_every", 0)
    plain = [t for part in module.modules() for t in vars(part).values() if isinstance(t, Tensor)]
    tensors = [*module.parameters(), *module.buffers(), *plain]  # a pruned weight is no parameter
    held = {t: t.clone() if divides or t.is_inference() else t for t in tensors}
    shared = {id(t): held[t].detach() for t in tensors} | {
        id(p): nn.Parameter(held[p].detach(), requires_grad=False) if p.is_floating_point() else p
        for p in module.parameters()
    }
    try:
        return copy.deepcopy(module, shared).eval()
    except (RuntimeError, TypeError) as error:  # as an output of it that it keeps
        if is_out_of_memory(error):
            raise
        raise ModelError(
            f"{name}: cannot be copied ({reason(error)}); delete what it keeps beside its weights"
        ) from None


def sample_parts(*modules: nn.Module | None) -> list[list[tuple[Any, ...]]]:
    """What tells beside their weights that modules have changed: classes, hooks and numbers.

    Of somebody else's classes numbers are not compared, as running may change them.
    """
    sampled = []
    for module in filter(None, modules):
        found: list[tuple[Any, ...]] = [(find_global_hooks(),)]
        for name, part in module.named_modules():
            held = _settings_of(part).items() if _is_known(part) else ()
            numbers = [(n, v) for n, v in held if type(v) is float]
            found.append((name, type(part), find_changes(part), numbers))
        sampled.append(found)
    return sampled


def _is_known(value: Any) -> bool:
    """Whether a value is of a class of this project, of torch or of transformers."""
    return type(value).__module__.partition(".")[0] in KNOWN


def _settings_of(part: nn.Module) -> dict[str, Any]:
    """The attributes of a part that may change what it computes in evaluation."""
    idle = (*WITHOUT_EFFECT, "p") if isinstance(part, _DropoutNd) else WITHOUT_EFFECT
    return {
        name: value
        for name, value in vars(part).items()
        if name[0] != "_"
        and name not in idle
        and not ("dropout" in name and isinstance(value, int | float))
    }


def hash_module(module: nn.Module, model: nn.Module) -> str:
    """The hash of a model's weights; one that no other has, where they do not tell it from others.

    Args:
        module: as it was given.
        model: made of it.
    """
    return uuid4().hex if is_steered(module) or _has_other_parts(module) else weights_hash(model)


def is_steered(module: nn.Module) -> bool:
    """Whether something changes what a module computes, in a way no hash tells.

    Hooks or another forward may, see `find_changes`; hooks that torch runs for every module; an
    attention of its user's own; an adapter of PEFT, which can be switched off, merged or scaled;
    and a rotation whose frequencies are no longer those that it was made with.
    """
    return (
        bool(find_global_hooks())
        or has_own_attention(module)
        or any(
            find_changes(part)
            or isinstance(getattr(part, "disable_adapters", None), bool)  # else a function
            or _turns_otherwise(dict(part.named_buffers(recurse=False)))
            for part in module.modules()
        )
    )


def _turns_otherwise(tables: Mapping[str, Tensor]) -> bool:
    """Whether frequencies among a part's tables differ from the copy that was made with them."""
    copies = {name.replace("original_", ""): t for name, t in tables.items() if "original_" in name}
    return any(n in tables and not tables[n].equal(t.to(tables[n])) for n, t in copies.items())


def _has_other_parts(module: nn.Module) -> bool:
    """Whether parts or attributes of a module are others than its configuration builds.

    Of a model around one of transformers, which no configuration builds, its user's parts are.
    """
    if isinstance(module.config, PretrainedConfig):
        return not all(map(_is_known, module.modules()))
    built = _build_like(module)
    return bool(built) and not all(
        _is_as_built(part, built.get(name)) for name, part in module.named_modules()
    )


def _build_like(module: Any) -> dict[str, nn.Module]:
    """The parts by name of a module built of the same configuration; none where it cannot be."""
    try:
        foreign = isinstance(module, LanguageModel) and has_foreign(module.config.mixers)
        device, undrawn = ("cpu", nullcontext()) if foreign else ("meta", Undrawn())
        with torch.random.fork_rng(devices=[]), torch.device(device), undrawn:
            return dict(type(module)(copy.deepcopy(module.config)).named_modules())
    except Exception as error:  # of a class that takes more than its configuration
        if is_out_of_memory(error):
            raise
        return {}


def _is_as_built(part: nn.Module, built: nn.Module | None) -> bool:
    """Whether a part has the class and the attributes that it was built with."""
    if type(part) is not type(built):
        return False
    same = vars(built)  # what a class is not built with, it does not read
    return all(
        _are_alike(value, same[name]) for name, value in _settings_of(part).items() if name in same
    )


def _are_alike(value: Any, built: Any) -> bool:
    """Whether an attribute is as it was built.

    Not compared are configurations, and tensors, among them the states that running leaves.
    """
    if isinstance(value, Tensor) or type(value) is not type(built):
        return isinstance(value, Tensor)
    if isinstance(value, Mapping):
        return value.keys() == built.keys() and all(_are_alike(value[n], built[n]) for n in value)
    if isinstance(value, list | tuple):
        return len(value) == len(built) and all(map(_are_alike, value, built))
    if isinstance(value, FunctionType):
        return value.__code__ is built.__code__
    if isinstance(value, partial):
        return all(_are_alike(getattr(value, n), getattr(built, n)) for n in PARTIAL)
    return not isinstance(value, PLAIN) or value == built
