"""The weights of models: read from safetensors files, and made into models of a configuration."""

import dataclasses
import re
import struct
import threading
from collections.abc import Container, Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from arch.config import ModelConfig
from arch.errors import ModelError, is_out_of_memory, printable, say
from arch.mixers import Triangle, has_foreign, without_numbers
from arch.model import LanguageModel
from arch.storage.files import refuse_pointer

Shapes = dict[str, tuple[int, ...]]
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types of weights that a model computes with, by their names in a safetensors file."""
BLOCK = re.compile(r"blocks\.\d{1,6}\.")
COMPILED = "_orig_mod."
"""What `torch.compile` adds to the names of a module's weights."""


def weights_of(model: LanguageModel) -> dict[str, Tensor]:
    """The model's weights on the CPU, in their own precision, none in the memory of another.

    Raises:
        ModelError: with built-in mixers, others than the configuration builds, as of a pruned part;
            a head of its own beside a configuration that is tied.
    """
    weights, addresses = {}, set()
    for written, tensor in model.state_dict().items():
        name = written.replace(COMPILED, "")
        if model.config.tied and name == "head.weight":
            continue
        held = tensor.detach().cpu().contiguous()
        if (address := held.untyped_storage().data_ptr()) in addresses:  # safetensors refuses it
            held = held.clone()
        addresses.add(address)
        weights[name] = held
    _refuse_changed(model, weights)
    return {**weights, **_lower(model, weights)}


def _refuse_changed(model: LanguageModel, weights: Mapping[str, Tensor]) -> None:
    """Refuses weights that `build_model` would not make the same model of.

    Those of somebody else's mixers are not looked at: their names may be of parametrizations.
    """
    config = model.config
    if not has_foreign(config.mixers):
        shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        kinds = {name: tensor.dtype for name, tensor in weights.items()}
        try:
            with torch.device("meta"), Undrawn():
                _build_like(config, shapes, kinds, "model")
        except ModelError as error:
            raise ModelError(
                f"{error}; where its parts were changed, call merge_and_unload, prune.remove or "
                "remove_parametrizations first"
            ) from None
    head, embedding = model.head.weight, model.embedding.weight
    if config.tied and head is not embedding and not head.cpu().equal(embedding.cpu()):
        raise ModelError(
            "model: its configuration says tied, but its head is not its embedding and would be "
            "lost; fix: model.config = dataclasses.replace(model.config, tied=False)"
        )


def is_tied(weights: Mapping[str, Tensor]) -> bool:
    """Whether weights have no head, or one that is the embedding again."""
    head, embedding = weights.get("head.weight"), weights.get("embedding.weight")
    return head is None or (embedding is not None and head.equal(embedding))


class Undrawn(TorchFunctionMode):
    """Draws no initial weights.

    On the meta device torch would draw them by its compiler's references, whose import takes a
    second.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in ("normal_", "uniform_", "tril_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def build_model(config: ModelConfig, weights: dict[str, Tensor], source: str) -> LanguageModel:
    """A model made of `weights`, in their precision, in evaluation mode.

    Weights are those that `weights_of` gives: what is above a diagonal is dropped, the rest becomes
    the model's own without a copy. `source` is for errors.

    Raises:
        ModelError: names or shapes that the configuration does not have, or lacks; numbers that
            are not finite.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    kinds = {name: tensor.dtype for name, tensor in weights.items()}
    _check_sizes(config, shapes, source)
    model = None
    if not has_foreign(config.mixers):
        with torch.device("meta"), Undrawn():  # its weights are replaced
            model = _build_like(config, shapes, kinds, source)
    if model is None or any(buffer.is_meta for buffer in model.buffers()):
        with torch.random.fork_rng(devices=[]):
            model = _build_like(config, shapes, kinds, source)
    if config.tied:
        if not is_tied(weights):
            raise ModelError(
                f"{source}: the weights do not fit the configuration: tied is True, the weights "
                "have a head of their own; set it to false"
            )
        weights = {**weights, "head.weight": weights["embedding.weight"]}
    weights = _alike(weights | _lower(model, weights), config)
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    check_finite(weights, source, buffers)
    model.load_state_dict(weights, assign=True)
    if config.tied:
        model.head.weight = model.embedding.weight
    return model.eval()


def _alike(weights: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Weights of several types in the widest of them, which holds all their numbers.

    A mixer of somebody else's may compute in a type of its own.
    """
    kinds = {weight.dtype for weight in weights.values() if weight.is_floating_point()}
    if len(kinds) < 2 or has_foreign(config.mixers):
        return weights
    widest = reduce(torch.promote_types, kinds)
    return {name: tensor.to(widest) for name, tensor in weights.items()}


def _check_sizes(config: ModelConfig, shapes: Shapes, source: str) -> None:
    """Compares the sizes of a configuration with those of the weights, before a model is built.

    Raises:
        ModelError: it has other sizes.
    """
    blocks = 1 + max((int(n.split(".")[1]) for n in shapes if BLOCK.match(n)), default=-1)
    rows, width = (*shapes.get("embedding.weight", ()), 0, 0)[:2]
    for name, given, held in (
        ("n_layers", config.n_layers, blocks),
        ("d_model", config.d_model, width),
        ("vocab_size", config.vocab_rows, rows),
    ):
        if given != held:
            raise ModelError(
                f"{source}: the weights do not fit the configuration: {name} is {given}, the "
                f"weights have {held}"
            )


def _build_like(
    config: ModelConfig, shapes: Shapes, kinds: Mapping[str, torch.dtype | None], source: str
) -> LanguageModel:
    """The model of a configuration; building ends at more tensors than there are weights.

    Raises:
        ModelError: it cannot be built, or has other names, shapes or types than the weights.
    """
    count, most, thread = 0, 2 * len(shapes) + 64, threading.get_ident()

    def count_parameters(*_: Any) -> None:
        nonlocal count
        count += threading.get_ident() == thread
        if count > most:
            raise ModelError(
                f"{source}: the weights do not fit the configuration: it builds more than {most} "
                f"tensors, the weights are {len(shapes)}"
            )

    hook = register_module_parameter_registration_hook(count_parameters)
    try:
        model = LanguageModel(config)
    except ModelError as error:
        said = str(error)
        raise ModelError(said if said.startswith(source) else f"{source}: {said}") from error
    except (RuntimeError, TypeError, OverflowError) as error:
        if is_out_of_memory(error):
            raise
        said = printable(str(error).partition("\n")[0], 200)
        raise ModelError(f"{source}: its model cannot be built ({said})") from error
    finally:
        hook.remove()
    _check_shapes(model, shapes, kinds, source)
    return model


@torch.no_grad()
def check_finite(
    weights: Mapping[str, Tensor], source: object, buffers: Container[str] = ()
) -> None:
    """Refuses weights that are infinite or no numbers, and floats of 8 bits, which have no scale.

    Those named in `buffers` may be infinite, as the mask of an attention is.

    Raises:
        ModelError: naming the first tensor that has one.
    """
    for name, tensor in weights.items():
        if tensor.is_meta:
            raise ModelError(f"{source}: {name} is on the device meta, without numbers; load it")
        if tensor.is_floating_point() and tensor.element_size() == 1:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(
                f"{source}: {name} is of type {kind}, without a scale; allowed: {', '.join(FLOATS)}"
            )
        wrong = tensor.isnan() if name in buffers else ~tensor.isfinite()
        if wrong.any():
            raise ModelError(f"{source}: {name} has numbers that are not finite")


def say_zeros(weights: Mapping[str, Tensor], source: object) -> None:
    """Says on stderr which matrices are zeros alone, as where a file was not downloaded whole."""
    zero = [name for name, tensor in weights.items() if tensor.dim() > 1 and not tensor.any()]
    if zero:
        say(
            f"{source}: {len(zero)} of {len(weights)} weights are all zeros "
            f"({printable(', '.join(zero[:3]))}); unless they were pruned, the file is damaged: "
            "download it again"
        )


def say_newer_pickles(directory: Path, files: list[Path]) -> None:
    """Says on stderr that a pickle was written after the files that are read.

    So where training went on without safetensors, or DeepSpeed's parts were joined.
    """
    last = max(file.stat().st_mtime_ns for file in files)
    for pickle in sorted(directory.glob("pytorch_model*.bin")):
        if pickle.is_file() and pickle.stat().st_mtime_ns > last:
            say(
                f"{directory}: {printable(pickle.name, 120)} is newer than {files[0].name}, which "
                "is read; if it has the weights that are meant, save them as safetensors"
            )
            return


def drop_padding(model: LanguageModel, size: int) -> LanguageModel:
    """Takes the rows beyond `size`, that no token has, from the embedding and the head, in place.

    Readers of the model then list tokens alone: no search may answer with an id beyond them, and
    none is drawn. The probabilities of the tokens sum to one.
    """
    rows = model.embedding.num_embeddings
    model.config = dataclasses.replace(
        model.config, vocab_size=min(size, model.config.vocab_size), vocab_multiple=1
    )
    if rows <= size:
        return model
    model.padding_rows = rows - size
    head = model.head.weight
    tied = [part for part in model.modules() if getattr(part, "weight", None) is head]
    _cut(model.embedding, "weight", size)
    held = [name for name in ("weight", "bias") if getattr(model.head, name, None) is not None]
    model.padding_head = {name: _cut(model.head, name, size) for name in held}
    for part in tied:  # the embedding, or that of a model that scales it
        part.weight = model.head.weight
    model.embedding.num_embeddings = model.head.out_features = size
    if (model.embedding.padding_idx or 0) >= size:  # of training; torch refuses one beyond the rows
        model.embedding.padding_idx = None
    return model


def check_weights(path: Path, config: ModelConfig, source: str) -> None:
    """Whether a safetensors file is whole and holds what `config` builds; reads its header alone.

    Raises:
        ModelError: missing, cut short, another kind of file, or other names or shapes.
    """
    shapes, kinds = read_header(path)
    _check_sizes(config, shapes, source)
    with without_numbers(config.mixers):
        _build_like(config, shapes, {n: FLOATS.get(kind) for n, kind in kinds.items()}, source)


def read_header(path: Path) -> tuple[Shapes, dict[str, str]]:
    """The shapes of the tensors of a safetensors file and the names of their types.

    Raises:
        ModelError: missing, cut short or another kind of file.
    """
    try:
        refuse_pointer(path)
        with safe_open(path, "pt", backend="pread") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            return shapes, {name: part.get_dtype() for name, part in slices.items()}
    except (SafetensorError, OSError, struct.error) as error:
        raise ModelError(f"{path} cannot be read: {printable(error, 160)}") from None


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, copied: a file written in place changes no open model.

    Raises:
        ModelError: missing, truncated or another kind of file.
    """
    try:
        refuse_pointer(path)
        return load_file(path, backend="pread")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {printable(error, 160)}") from None


def read_all_weights(files: Iterable[Path]) -> dict[str, Tensor]:
    """The tensors of all shards of a model, by their names."""
    return {name: tensor for file in files for name, tensor in read_weights(file).items()}


def renamed(name: str, names: dict[str, str]) -> str:
    """A tensor's name in another layout; one that has none there keeps its own.

    `names` are from module to module, `#` for the first number: `blocks.#.norm_token` to ...
    """
    number = re.search(r"\d+", name)
    module, _, parameter = re.sub(r"\d+", "#", name, count=1).rpartition(".")
    full = f"{names.get(module, module)}.{parameter}"
    return full.replace("#", number[0]) if number else full


def translate(
    weights: Mapping[str, Tensor], names: dict[str, str], source: object
) -> dict[str, Tensor]:
    """Weights of another layout by their names in ours, see `renamed`.

    Raises:
        ModelError: names that the other layout has not, or two that are one of ours.
    """
    found: dict[str, Tensor] = {}
    wrong = []
    for name, tensor in weights.items():
        ours = renamed(name, names)
        if ours == name or ours in found:
            wrong.append(f"{'unknown' if ours == name else 'twice'} {printable(name, 120)}")
        found[ours] = tensor
    if wrong:
        raise ModelError(misfit(source, wrong))
    return found


def _check_shapes(
    model: LanguageModel, shapes: Shapes, kinds: Mapping[str, torch.dtype | None], source: str
) -> None:
    tensors = model.state_dict()
    expected = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if model.config.tied:
        shapes = {k: shape for k, shape in shapes.items() if k != "head.weight"}
        del expected["head.weight"]
    wrong = [f"no {name}" for name in sorted(expected.keys() - shapes.keys())]
    wrong += [f"unknown {name}" for name in sorted(shapes.keys() - expected.keys())]
    wrong += [
        f"{name} is {shapes[name]}, the configuration says {shape}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    wrong += [
        f"{name} is of a type other than {', '.join(FLOATS)}"
        for name in expected.keys() & shapes.keys()
        if tensors[name].is_floating_point() and kinds[name] not in FLOATS.values()
    ]
    if wrong:
        raise ModelError(misfit(source, wrong))


def misfit(source: object, wrong: list[str]) -> str:
    """What is wrong with weights, the first three of it."""
    more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
    shown = printable("; ".join(wrong[:3]))
    return f"{source}: the weights do not fit the configuration: {shown}{more}"


def _cut(module: nn.Module, name: str, rows: int) -> Tensor:
    parameter = getattr(module, name)
    cut = parameter.detach()[:rows].clone()
    setattr(module, name, nn.Parameter(cut, requires_grad=parameter.requires_grad))
    return parameter.detach()[rows:].clone()


def _lower(model: LanguageModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    triangles = [name for name, part in model.named_modules() if isinstance(part, Triangle)]
    names = [f"{name}.weight".replace(COMPILED, "") for name in triangles]
    return {name: weights[name].tril() for name in names}
