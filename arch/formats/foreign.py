"""A model directory in the layout of transformers, checked before anything is built of it.

What is compared: the configuration's values with their types, and its sizes with the shapes in the
weights' headers. Imports and `hf:` both read by it, so that one file is one model whichever way it
is opened.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from arch.errors import ModelError, printable, say, show_value
from arch.storage.files import read_json
from arch.storage.weights import FLOATS, Shapes, read_header, say_newer_pickles

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PREFIXES = ("_orig_mod.", "module.", "_fsdp_wrapped_module.", "base_model.model.",
            "language_model.")  # fmt: skip
"""What compiling, training in parallel, a merged adapter or a model of pictures puts before."""
HARMLESS = re.compile(
    r"rotary_emb\.inv_freq$|\.(attn|attention)\.((masked_)?bias|causal_mask)$|position_ids$"
)
"""Tensors of old files that can be computed, and that no model reads."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
SIZES = (
    "hidden_size", "n_embd", "d_model", "intermediate_size", "ffn_dim", "n_inner", "vocab_size",
    "num_attention_heads", "n_head", "num_key_value_heads", "head_dim",
)  # fmt: skip
"""Sizes that some tensor of the model has at least, but for intermediate_size."""
WIDEST = 2**16
"""The most that intermediate_size may be where experts have a width of their own: unless some layer
has no experts, no tensor shows it."""
WINDOWS = ("sliding_window", "attention_chunk_size")
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
LEARNT = re.compile(
    r"^(?!.*(?:vision|visual|audio)).*(?:wpe|embed_positions|position_embeddings?)\.weight$"
)
"""Tensors with a row for each position of a text."""
NUMBERS = (
    "rope_theta", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "partial_rotary_factor",
    "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    "beta_fast", "beta_slow", "attention_factor",
)  # fmt: skip
SWITCHES = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window")
OBJECTS = ("rope_parameters", "rope_scaling", "text_config", "quantization_config")
NAMES = ("hidden_act", "activation_function", "rope_type")
WITHOUT_EFFECT = {
    "architectures", "auto_map", "transformers_version", "torch_dtype", "dtype", "use_cache",
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
    "initializer_range", "attention_dropout", "pretraining_tp", "chunk_size_feed_forward",
    "output_attentions", "output_hidden_states", "return_dict", "torchscript", "id2label",
    "label2id", "problem_type", "task_specific_params", "is_llama_config",
    "max_length", "min_length", "num_beams", "num_beam_groups", "num_return_sequences",
    "length_penalty", "diversity_penalty", "repetition_penalty", "temperature", "top_k", "top_p",
    "typical_p", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "unsloth_fixed",
    "unsloth_version", "_name_or_path", "name_or_path", "_model_name_or_path",
    "_attn_implementation", "_commit_hash", "transformers.js_config",
    "attn_implementation", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
}  # fmt: skip
"""Settings that change nothing of what a model computes in evaluation."""
ROTATION = ("rope_parameters", "rope_scaling")
ADAPTER = "adapter_config.json"
PARTS = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors$")
"""Files by which transformers knows a checkpoint of several processes."""
SCALES = "_scale_inv"
ACTIVATIONS = ("hidden_act", "activation_function", "hidden_activation", "activation")
GREATEST, LONGEST = 2**31, 2**24
"""Of a size, and of positions: some families hold a table of them."""


def read_settings(path: Path) -> dict[str, Any]:
    """The configuration of a model of transformers, its values of the types that they must have.

    Raises:
        ModelError: not JSON, a setting of another type or beyond what a model can have, two
            rotations of which one is not read, or another file in its place.
    """
    config = read_json(path)
    if not isinstance(config.get("model_type", ""), str):
        raise ModelError(
            f"{path}: model_type is {show_value(config['model_type'])}; expected a text"
        )
    if others := config.get("configuration_files"):
        raise ModelError(
            f"{path}: configuration_files is {show_value(others)}, of which each version of "
            "transformers reads another; give the one that is meant as config.json, without it"
        )
    check_settings(config, path)
    for section in sections(config):
        rope, scaling = (section.get(name) or {} for name in ROTATION)
        for name in rope if scaling else ():
            if name not in (*scaling, "rope_type", "type") and section.get(name) != rope[name]:
                raise ModelError(
                    f"{path}: rope_scaling stands beside rope_parameters, whose "
                    f"{printable(name, 80)} {show_value(rope[name])} transformers then drops in "
                    "most families; move what rope_scaling says into rope_parameters, and take "
                    "rope_scaling out"
                )
        outer, inner = section.get("rope_theta"), rope.get("rope_theta")
        if None not in (outer, inner) and outer != inner and not scaling:
            say(f"{path}: rope_theta is {outer:g}, and in rope_parameters {inner:g}, which alone is"
                " read")  # fmt: skip
    return config


def check_settings(config: dict[str, Any], path: Path) -> None:
    """Compares a configuration's values with the types and the sizes that they may have.

    Raises:
        ModelError: naming a setting and its value.
    """
    for section in sections(config):
        _check_section(section, path)


def say_unused_window(config: dict[str, Any], family: str, source: object) -> None:
    """Says on stderr that a window is stated, of a model that computes none in any layer.

    Nothing is said of one that is turned off, or that is no shorter than the context.
    """
    window, context = config.get("sliding_window"), config.get("max_position_embeddings")
    off = config.get("use_sliding_window") is False
    if window and not off and window < (context or math.inf):
        say(
            f"{source}: config.json says sliding_window {window}, and transformers' {family} "
            "computes no window in any layer; each token is read behind its whole text"
        )


def say_own_code(config: dict[str, Any], source: object, names: Callable[[str], bool]) -> None:
    """Says on stderr that a model's own class, which may compute otherwise, does not compute it.

    So where `auto_map` names code of a model's own, or `architectures` a class that is none of the
    family's, as `names` tells.
    """
    named, listed = config.get("auto_map"), config.get("architectures")
    classes = named.items() if isinstance(named, dict) else ()
    own = [f"code of its own ({show_value(v)})" for n, v in classes if n.startswith("AutoModel")]
    others = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    if not own and not any(map(names, others)):
        own = [f"the class {printable(name, 80)}" for name in others]
    if own:
        say(
            f"{source}: config.json names {own[0]}, which is not run; the model is computed as "
            f"transformers computes a {config.get('model_type')}"
        )


def describe_other_layout(directory: Path) -> str:
    """What a directory without config.json is, as the end of a line; nothing where that is open."""
    if (directory / ADAPTER).is_file():
        return "; it holds an adapter: merge it into its model, and save that"
    if (directory / "params.json").is_file():
        return "; params.json is of the layout before transformers': convert it"
    deep = "snapshots/*/config.json"  # of a model in the cache of the hub
    inside = [path.parent for path in (*directory.glob("*/config.json"), *directory.glob(deep))]
    latest = max(inside, key=lambda path: _split_numbers(path.name), default=None)
    return f"; give {latest}, which has one" if latest else ""


def _split_numbers(name: str) -> list[Any]:
    """A name by its texts and numbers in turn, so that checkpoint-500 is before checkpoint-1000."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def refuse_dangling(directory: Path) -> None:
    """Refuses links to files that are not there, as in a copy of the cache of the hub.

    Raises:
        ModelError: naming one.
    """
    for path in sorted(directory.glob("*")):
        if path.suffix in (".json", ".safetensors", ".model") and not path.exists():
            raise ModelError(
                f"{path} is a link to {path.readlink()}, which is not there; copy the directory "
                "with the files that its links name (cp -L)"
            )


def read_layout(config: dict[str, Any], directory: Path) -> tuple[list[Path], Shapes]:
    """The weights' files of a directory and the shapes in them, compared with its configuration.

    Raises:
        ModelError: files that are missing or do not belong together, an adapter beside them, sizes
            that no tensor has, or weights that are no floating-point numbers.
    """
    if (directory / ADAPTER).is_file():
        raise ModelError(
            f"{directory} has an adapter ({ADAPTER}); merge it into the weights and save those, or "
            "take the file away"
        )
    if (named := config.get("transformers_weights")) not in (None, WEIGHTS, INDEX):
        raise ModelError(
            f"{directory / 'config.json'}: transformers_weights is {show_value(named)}; allowed: "
            f"{WEIGHTS}; give the weights that are meant this name, and take the setting out"
        )
    if parts := sorted(path.name for path in directory.iterdir() if PARTS.match(path.name)):
        raise ModelError(
            f"{directory} has {printable(parts[0], 120)}, a part of a checkpoint of several "
            f"processes, which transformers mixes with {WEIGHTS}; take away the weights that are "
            "not meant"
        )
    files = weight_files(directory)
    say_newer_pickles(directory, files)
    shapes = read_shapes(files, quantised=config.get("quantization_config") is not None)
    check_sizes(config, shapes, directory / "config.json")
    _check_blocks(config, shapes, directory)
    return files, shapes


def _check_blocks(config: dict[str, Any], shapes: Shapes, directory: Path) -> None:
    """Refuses weights in fp8 whose last block is cut short.

    Transformers divides a weight evenly by the number of its scales.

    Raises:
        ModelError: naming such a weight's scales.
    """
    blocks = (config.get("quantization_config") or {}).get("weight_block_size")
    if not isinstance(blocks, list) or not all(type(size) is int and size > 0 for size in blocks):
        return
    for name, scales in shapes.items():
        weight = shapes.get(name.removesuffix(SCALES), ())
        if not name.endswith(SCALES) or len(scales) < 2:
            continue
        sizes = zip(weight[-2:], scales[-2:], blocks, strict=False)
        if any(count > 1 and n % size and count == -(-n // size) for n, count, size in sizes):
            raise ModelError(
                f"{directory}: {printable(name, 120)} is of blocks of {blocks}, which do not "
                f"divide the weight's {weight}; transformers would scale other blocks; give the "
                "weights as floats"
            )


def check_sizes(config: dict[str, Any], shapes: Shapes, path: Path) -> None:
    """Compares a configuration's sizes with the shapes of the weights.

    Raises:
        ModelError: naming a size that no tensor has, or more layers than there are tensors.
    """
    learnt = [shape[0] for name, shape in shapes.items() if LEARNT.search(name) and shape]
    largest = max((size for shape in shapes.values() for size in shape), default=0)
    for section in sections(config):
        for name in LAYERS:
            if section.get(name, 0) and section[name] > len(shapes):
                raise ModelError(
                    f"{path}: {name} is {section[name]}; the weights are {len(shapes)}"
                )
        for name in POSITIONS[:2] if learnt else ():  # no family with learnt ones reads n_ctx
            if section.get(name, 0) and section[name] > max(learnt):
                raise ModelError(
                    f"{path}: {name} is {section[name]}; the weights have {max(learnt)} positions"
                )
        for name in SIZES:
            most = largest
            if name == "intermediate_size":
                # A RecurrentGemma has half of it, an LFM2 two thirds, and experts may have none.
                most = max(2 * largest, WIDEST if section.get("moe_intermediate_size") else 0)
            if section.get(name, 0) and section[name] > most:
                raise ModelError(
                    f"{path}: {name} is {section[name]}; no dimension of the weights is above "
                    f"{largest}"
                )


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a directory: one, or the shards that an index lists.

    Raises:
        ModelError: none, a shard that is not there, or an index that is none.
    """
    index, known = directory / INDEX, directory / WEIGHTS
    if known.is_file():
        shards = read_json(index).get("weight_map") if index.is_file() else None
        listed = set(map(str, shards.values())) if isinstance(shards, dict) else set()
        if others := sorted(n for n in listed - {WEIGHTS} if (directory / n).is_file()):
            raise ModelError(
                f"{directory} has {WEIGHTS} and, by its index, {printable(others[0], 120)}; take "
                "away the weights that are not meant"
            )
        return [known]
    if not index.is_file():
        pickles = ", ".join(path.name for path in sorted(directory.glob("*.bin")))
        hint = f"; {pickles} could run code when it is read, and is not" if pickles else ""
        if others := ", ".join(path.name for path in sorted(directory.glob("*.safetensors"))):
            raise ModelError(
                f"{directory} has no {WEIGHTS}, but {printable(others, 120)}; give all weights in "
                f"one file of that name, or parts with their index, {INDEX}"
            )
        raise ModelError(f"{directory} has no {WEIGHTS}{hint}; save the weights as safetensors")
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(f"{index} has no weight_map; download the model again")
    files = []
    for name in sorted({str(name) for name in names.values()}):
        path = directory / name
        if "/" in name or "\\" in name or not path.is_file():
            raise ModelError(f"{index} lists {printable(name, 120)}, which is not there")
        files.append(path)
    return files


def read_shapes(files: list[Path], quantised: bool) -> Shapes:
    """The shapes of the tensors of safetensors files, from their headers alone.

    Raises:
        ModelError: a file that is cut short or of another kind, or a name in two files; a tensor
            of integers or of 8 bits, where the configuration does not say that it is `quantised`.
    """
    shapes: Shapes = {}
    for path in files:
        found, kinds = read_header(path)
        odd = [n for n, kind in kinds.items() if kind not in FLOATS and not HARMLESS.search(n)]
        if odd and not quantised:
            raise ModelError(
                f"{path}: {printable(odd[0], 120)} is of type {kinds[odd[0]]}, and the "
                f"configuration has no quantization_config; allowed: {', '.join(FLOATS)}"
            )
        empty = [name for name, shape in found.items() if 0 in shape]
        if empty and not quantised:
            raise ModelError(
                f"{path}: {printable(empty[0], 120)} is empty, as DeepSpeed's ZeRO-3 saves its "
                "parts; join them, by its zero_to_fp32.py, and save the model again"
            )
        if twice := shapes.keys() & found.keys():
            raise ModelError(f"{path} has {printable(min(twice), 120)}, which another file has too")
        shapes |= found
    return shapes


def common_prefix(names: Iterable[str], source: object) -> str:
    """What `PREFIXES` put before all names; said on stderr, as it is left out."""
    rest, prefix = list(names), ""
    while found := next((p for p in PREFIXES if rest and all(n.startswith(p) for n in rest)), ""):
        prefix, rest = prefix + found, [name.removeprefix(found) for name in rest]
    if prefix:
        say(f"{source}: {prefix} is left out of the names of its weights")
    return prefix


def is_off(value: object) -> bool:
    """Whether a setting says that there is nothing: null, false or empty."""
    return value is None or value is False or value in ("", [], {})


def sections(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The configuration, and those inside it: of the text part, and of the rotation by layers."""
    yield config
    for name in ("text_config", *ROTATION):
        if isinstance(inner := config.get(name), dict):
            yield from sections(inner)
            parts = inner.values() if name in ROTATION else ()
            yield from (part for part in parts if isinstance(part, dict))


def _check_section(section: dict[str, Any], path: Path) -> None:
    for name, value in section.items():
        if value is None and name not in ("rope_theta", "rope_type"):
            continue
        if name in POSITIONS:
            fits, words = type(value) is int and 0 < value <= LONGEST, f"1 to {LONGEST}"
        elif name in (*LAYERS, *SIZES):
            fits, words = type(value) is int and 0 < value < GREATEST, "a whole number above 0"
        elif name in WINDOWS:
            off = value == 0 and section.get("use_sliding_window") is False  # as of a Qwen2 MoE
            fits = value is False or off or (type(value) is int and value > 0)
            words = "null, or 1 or more"
        elif name in NUMBERS:
            number: Any = value if type(value) in (int, float) else math.nan
            fits, words = 0 < number < 1e300, "a number above 0"
        elif name in SWITCHES:
            fits, words = type(value) is bool, "true or false"
        elif name in OBJECTS:
            fits, words = isinstance(value, dict), "an object"
        elif name in ("dtype", "torch_dtype"):
            kind = getattr(torch, str(value).removeprefix("torch."), None)
            fits, words = isinstance(kind, torch.dtype), "a type of torch, as float32"
        elif name in NAMES:
            fits, words = isinstance(value, str), "a name"
        elif name == "layer_types":
            fits = isinstance(value, list) and all(isinstance(kind, str) for kind in value)
            words = "a list of names"
        else:
            large = type(value) is int and abs(value) >= GREATEST
            fits = not large and not (type(value) is float and not math.isfinite(value))
            words = "a finite number, of ordinary size"
        if not fits:
            raise ModelError(
                f"{path}: {printable(name, 80)} is {show_value(value)}; expected {words}"
            )
