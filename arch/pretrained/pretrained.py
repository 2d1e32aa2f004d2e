"""Pretrained transformers models behind our contract.

    loaded = load_pretrained("gpt2")
    loaded.model.hidden(loaded.model.embed(tokens), 3)

`embed` is a row of the embedding for each token and nothing else, so that a search over tokens is a
search over its rows; GPT-2's learnt positions are added by `with_positions`, on the way
into the first block. Rotary positions are inside attention. Needs the extra `pretrained`.

Of GPT-2, Llama and Mistral the parts of a block are known (`PretrainedModel`); of any
other causal model a block is a whole layer (`arch.pretrained.decoder.Decoder`).
"""

import importlib.util
import io
import os
import re
import sys
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer

from arch.errors import ModelError
from arch.formats.foreign import (
    HARMLESS,
    common_prefix,
    describe_other_layout,
    read_layout,
    read_settings,
    refuse_dangling,
    say_own_code,
    weight_files,
)
from arch.formats.hub.card import download
from arch.formats.hub.reader import MODEL_TYPE, import_hub, is_hub_export, read_provenance
from arch.formats.llama import from_transformers
from arch.formats.rotations import (
    check_frequencies,
    check_turned,
    frequencies_of,
    is_plain,
    read_frequencies,
)
from arch.model import LanguageModel
from arch.pretrained.decoder import Decoder, is_whole
from arch.pretrained.families import PretrainedModel, find_changes
from arch.pretrained.gguf.model import check_gguf_is_whole, refuse_factors, scale_rotation
from arch.pretrained.gguf.reader import GGUF, check_gguf
from arch.pretrained.gguf.tokens import read_own_tokenizer
from arch.pretrained.settings import (
    bounded,
    check_config,
    read_config,
    refusals,
    say_unread_settings,
)
from arch.pretrained.tokenizers import (
    fit_tokenizer,
    largest_id,
    open_tokenizer,
    read_ends_of_text,
    read_tokenizer,
    say_wrong_split,
)
from arch.storage.directory import LoadedModel
from arch.storage.weights import Shapes, check_finite, drop_padding, misfit, say_zeros


def load_pretrained(
    name: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> LoadedModel:
    """Loads a model of the hub, or a directory in transformers' layout, with its tokenizer.

    `name` is a directory, a name on the hub, which is downloaded or lies in its cache, or a GGUF
    file, whose weights are dequantised (needs the package gguf). A directory that `export_hub`
    wrote is opened as the model that it is, in the precision of its weights.

    Raises:
        ModelError: transformers is missing, the model cannot be found, or it is no causal decoder.
    """
    name = os.path.expanduser(name)
    if is_hub_export(name):
        loaded = import_hub(name)
        return replace(loaded, model=loaded.model.to(device))
    model, tokenizer, config, ends = _read(name, dtype)
    with refusals(name):
        wrapped = wrap_model(model)
    tokenizer = fit_tokenizer(tokenizer, wrapped.embedding.num_embeddings, name)
    # Ids may have gaps, but none is beyond the last token's.
    wrapped = drop_padding(wrapped, 1 + largest_id(tokenizer))
    if torch.device(device).type == "cpu":  # transformers gives views of the file
        for tensor in (*wrapped.parameters(), *wrapped.buffers()):
            tensor.data = tensor.data.clone()
    meta = {
        "name": Path(os.path.abspath(name)).name,
        "source": "transformers",
        "family": model.config.model_type,
        "precision": str(dtype).removeprefix("torch."),
        "settings": config,
    } | ends
    return LoadedModel(wrapped.to(device), wrapped.config, tokenizer.to_str(), meta, Path(name))


def import_gguf(file: Path) -> LoadedModel:
    """A Llama in a GGUF file as a model of ours, its weights dequantised to float32.

    Raises:
        ModelError: as `load_pretrained` and `import_transformers`; factors scale its rotation.
    """
    check_gguf(file)
    refuse_factors(file)
    source, tokenizer, _, ends = _read(str(file), torch.float32)
    config = source.config.to_dict()
    config.pop("quantization_config", None)  # the weights are dequantised
    loaded = from_transformers(config, source.state_dict, tokenizer.to_str(), file)
    return replace(loaded, meta=loaded.meta | ends)


def wrap_model(model: Any) -> LanguageModel:
    """A transformers causal model in memory as a `LanguageModel`, around the same weights.

    Its outputs are read by their names, and hold no scores of experts, which an auxiliary loss
    reads. An rwkv no longer divides its weights, and its stream, where it is evaluated.

    Raises:
        ModelError: it is no causal decoder, an rwkv whose weights are divided already, or an export
            of ours.
    """
    if model.config.model_type == MODEL_TYPE:
        raise ModelError(
            "it is a model that arch export wrote; save it and its tokenizer (save_pretrained), "
            "and give hf:DIR"
        )
    if every := getattr(model.config, "rescale_every", 0):  # against overflow in half precision
        ran = any(getattr(part, "layers_are_rescaled", False) for part in model.modules())
        if ran and model.config.num_hidden_layers > every:
            raise ModelError(
                f"its weights are divided, as a run leaves them where rescale_every is {every}; "
                "load it anew, and open it before it runs"
            )
        model.config.rescale_every = 0
    for config in (model.config, model.config.get_text_config()):
        config.return_dict = True
        if getattr(config, "output_router_logits", False):
            config.output_router_logits = False
    try:
        parts = PretrainedModel(model)
    except (ModelError, AttributeError):  # a family, or a variant of one, of unknown parts
        return Decoder(model)
    skipped = {*model.modules()} - {*parts.modules()}  # whose hooks the parts would leave out
    if any(map(find_changes, skipped)) or not is_whole(parts, model):  # as where no mask is causal
        return Decoder(model)
    return parts


def _read(name: str, dtype: torch.dtype) -> tuple[Any, Tokenizer, dict[str, Any], dict[str, Any]]:
    """A model of transformers, its tokenizer, its configuration and what is known of texts.

    The configuration is as its files have it. No code of the model is run.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ModelError(
            "pretrained models need transformers; fix, in the checkout: pip install -e "
            "'.[pretrained]'"
        )
    from transformers import GenerationConfig

    with TemporaryDirectory() as empty:
        directory, more, shapes = _locate(name, empty)
        prefix = common_prefix(shapes, name)
        config, settings, family = read_config(name, directory, more)
        with refusals(name):
            safe: dict[str, Any] = {**more, "trust_remote_code": False}
            if more:
                held = read_own_tokenizer(Path(name))
                tokenizer = read_tokenizer(held.to_str(), f"the tokenizer of {name}")
            else:
                tokenizer = open_tokenizer(Path(directory))
                say_wrong_split(config, tokenizer, name)
            known = read_ends_of_text(Path(name if more else directory), tokenizer)
            known |= read_provenance(config, Path(directory, "config.json"))
            options: dict[str, Any] = {"ignore_mismatched_sizes": True, "output_loading_info": True}
            options |= {"dtype": dtype, "use_safetensors": True} if not more else {"dtype": dtype}
            options |= {"key_mapping": {f"^{re.escape(prefix)}": ""}} if prefix else {}
            options["generation_config"] = GenerationConfig()  # so that no file is read for it
            options["config"] = settings
            # Attention and experts may name a kernel of the hub, which would be run.
            settings._attn_implementation = settings._experts_implementation = None
            is_packed = config.get("quantization_config") is not None
            # The reader of GGUF files has a progress bar that no setting turns off.
            quiet = redirect_stderr(io.StringIO()) if more else bounded(name, shapes, is_packed)
            with quiet:
                loaded: Any = family.from_pretrained(directory, **options, **safe)
    model, found = loaded
    _check_loaded(name, found)
    _check_computed(name, model, config, None if more else Path(directory))
    return model, tokenizer, config, known


def _check_computed(name: str, model: Any, config: dict[str, Any], directory: Path | None) -> None:
    """Compares what a model computes with what its directory says, or its GGUF file.

    Raises:
        ModelError: they differ, or a weight is no finite number.
    """
    weights = dict(model.named_parameters())
    check_finite(weights, name)
    say_zeros(weights, name)
    if directory is None:
        check_gguf_is_whole(Path(name), model)
        scale_rotation(Path(name), model)
        return
    turned = frequencies_of(model)
    if is_plain(config):
        check_frequencies(read_frequencies(weight_files(directory)), turned, name)
    with refusals(name):
        check_turned(config, turned, model.config.get_text_config(), name)
    say_unread_settings(config, model.config, name)
    classes = {known.lower() for known in vars(sys.modules[type(model).__module__])}
    classes.add(f"{config.get('model_type')}forcausallm")  # an internlm3 is computed as a Llama
    say_own_code(config, name, lambda named: named.lower() in classes)


def _locate(name: str, empty: str) -> tuple[str, dict[str, Any], Shapes]:
    """The directory of a model, with the name of a GGUF file, else with the shapes of its weights.

    That of a model of the hub is in its cache, that of a GGUF file `empty`. What lies there is
    checked before transformers looks at it.
    """
    path = Path(name)
    if path.suffix.lower() == GGUF:
        check_gguf(path)
        # Transformers would add an adapter that lies beside the file.
        return empty, {"gguf_file": str(path.absolute())}, {}
    if not path.is_dir():
        if path.exists():
            raise ModelError(f"{name} is a file; give its directory, or a file ending in {GGUF}")
        if name.startswith((".", "/", "~")):  # no name of the hub
            raise ModelError(f"{name} cannot be loaded: there is no such directory")
        path = download(f"hf:{name}", partial(check_config, name))
    refuse_dangling(path)
    if not (path / "config.json").is_file():
        inside = [file.name for file in path.glob("*") if file.suffix.lower() == GGUF]
        hint = f"; give the file, {path / inside[0]}" if len(inside) == 1 else ""
        hint = hint or describe_other_layout(path)
        raise ModelError(f"{name} cannot be loaded: it has no config.json{hint}")
    _, shapes = read_layout(read_settings(path / "config.json"), path)
    return str(path), {}, shapes


def _check_loaded(name: str, found: dict[str, Any]) -> None:
    """Refuses weights that do not fit: transformers draws what is missing at random."""
    lacking = [f"no {tensor}" for tensor in sorted(found["missing_keys"])]
    extra = sorted(tensor for tensor in found["unexpected_keys"] if not HARMLESS.search(tensor))
    unknown = [f"unknown {tensor}" for tensor in extra]
    wrong = [*lacking[:1], *unknown[:1], *lacking[1:], *unknown[1:]]  # one beside the other
    for tensor, held, expected in found["mismatched_keys"]:
        shapes = tuple(held), tuple(expected)
        wrong.append(f"{tensor} is {shapes[0]}, the configuration says {shapes[1]}")
    wrong += map(str, found.get("error_msgs") or ())
    if wrong:
        raise ModelError(misfit(name, wrong))
