"""Modules in memory: a copy to ask, and what tells a module from others and from what it was."""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
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
from arch.pretrained.families import (
    find_changes,
    find_global_hooks,
    has_own_attention,
    is_changed,
)
from arch.storage.weights import Undrawn
from eval.models.identity import KNOWN, bytes_of, weights_hash

WITHOUT_EFFECT = (
    "training", "gradient_checkpointing", "name_or_path", "warnings_issued", "padding_idx",
    "layerdrop",
)  # fmt: skip
"""Attributes of a module that, as dropouts, change nothing of what it computes in evaluation."""
PARTS = {
    FunctionType: ("__qualname__", "__code__", "__defaults__", "__kwdefaults__", "__closure__"),
    CodeType: ("co_code", "co_consts", "co_names"),  # not its text, in which addresses stand
    CellType: ("cell_contents",),
    MethodType: ("__func__", "__self__"),
    partial: ("func", "args", "keywords"),
}
"""The attributes that tell values of these types apart."""
UNTOLD = (TypeError, RuntimeError, ValueError)
"""What `_describe` raises of a value that it cannot tell from others."""
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
    kept = [t for part in module.modules() for t in vars(part).values() if isinstance(t, Tensor)]
    tensors = [*module.parameters(), *module.buffers(), *kept]  # a pruned weight is no parameter
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
    """What stands for a module: the hash of its weights, and of what else was changed in it.

    A hash that no other has, where something changes what it computes in a way that none tells.

    Args:
        module: as it was given.
        model: made of it.
    """
    if is_steered(module):
        return uuid4().hex
    try:
        changed = _changed_settings(module)
    except UNTOLD:
        return uuid4().hex
    weights = weights_hash(model)
    if not changed:
        return weights
    return hashlib.sha256(json.dumps([weights, changed]).encode()).hexdigest()


def is_steered(module: nn.Module) -> bool:
    """Whether something changes what a module computes, in a way no hash tells.

    Hooks or another forward may, see `is_changed`; hooks that torch runs for every module; an
    attention of its user's own; an adapter of PEFT, which can be switched off, merged or scaled;
    and a rotation whose frequencies are no longer those that it was made with.
    """
    return (
        bool(find_global_hooks())
        or has_own_attention(module)
        or any(
            is_changed(part)
            or type(getattr(part, "disable_adapters", None))
            is bool  # of any model it is a function
            or _turns_otherwise(dict(part.named_buffers(recurse=False)))
            for part in module.modules()
        )
    )


def _turns_otherwise(tables: Mapping[str, Tensor]) -> bool:
    """Whether frequencies among a part's tables differ from the copy that was made with them."""
    copies = {name.replace("original_", ""): t for name, t in tables.items() if "original_" in name}
    return any(n in tables and not tables[n].equal(t.to(tables[n])) for n, t in copies.items())


def _changed_settings(module: nn.Module) -> list[Any]:
    """The attributes of a module's parts that its configuration does not build, by their names.

    Of a model around one of transformers, which no configuration builds, those of its user's parts.

    Raises:
        TypeError, RuntimeError, ValueError: one of them cannot be told.
    """
    is_wrapper = isinstance(module.config, PretrainedConfig)
    built, changed = {} if is_wrapper else _build_like(module), []
    for name, part in module.named_modules():
        if is_wrapper and _is_known(part):
            continue
        held = _settings_of(part)
        if type(like := built.get(name)) is type(part):
            same = vars(like)  # what a class is not built with, it does not read
            held = {n: v for n, v in held.items() if n in same and not _are_alike(v, same[n])}
        else:
            buffers = {n: part._buffers[n] for n in sorted(part._non_persistent_buffers_set)}
            held |= {"class": type(part), "buffers": buffers}
        if held:
            changed.append([name, _describe(held)])
    return changed


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


def _are_alike(value: Any, built: Any) -> bool:
    """Whether an attribute is as it was built; one that cannot be told is not compared."""
    try:
        expected = _describe(built)
    except UNTOLD:
        return True
    return _describe(value) == expected


def _describe(value: Any) -> Any:
    """A value as JSON has it, equal for equal ones.

    Raises:
        TypeError, ValueError: it cannot be told: it has no attributes, or no numbers.
        RuntimeError: it holds itself, or numbers that cannot be read.
    """
    plain = str | bytes | int | float | complex | torch.dtype | torch.device
    if value is None or isinstance(value, plain):
        return repr(value)
    if isinstance(value, Mapping):
        return [[repr(name), _describe(held)] for name, held in value.items()]
    if isinstance(value, Sequence):
        return [_describe(held) for held in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_describe(held)) for held in value)
    if isinstance(value, Tensor):
        if value.is_meta:
            raise TypeError
        told = bytes_of(value.detach())
        return [repr((value.dtype, value.shape)), hashlib.sha256(told).hexdigest()]
    if isinstance(value, nn.Module):
        return [_describe(type(value)), weights_hash(value)]
    for kind, names in PARTS.items():
        if isinstance(value, kind):
            return [_describe(getattr(value, name)) for name in names]
    if isinstance(value, type | BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if _is_known(value):
        return _describe(type(value))  # as a configuration, which stands in the settings
    return [_describe(type(value)), _describe(vars(value))]
