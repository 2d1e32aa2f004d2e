"""A model directory in the layout of transformers, checked before anything is built of it.

What is compared: the configuration's values with their types, its sizes with the shapes in the
weights' headers, and an index of shards with the shards. Imports and `hf:` both read by it, so that
one file is one model whichever way it is opened.
"""

import math
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from arch.errors import ModelError, printable, show_value
from arch.storage.files import read_json
from arch.storage.weights import FLOATS, Shapes, read_header

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PREFIXES = ("_orig_mod.", "module.", "_fsdp_wrapped_module.", "base_model.model.",
            "language_model.")  # fmt: skip
"""What compiling, training in parallel, a merged adapter or a model of pictures puts before."""
HARMLESS = re.compile(r"rotary_emb\.inv_freq$|\.(attn|attention)\.(masked_)?bias$|position_ids$")
"""Tensors of old files that can be computed, and that no model reads."""
FREQUENCIES = re.compile(r"rotary_emb\.inv_freq$")
ROUNDING: Any = {"rtol": 0.02, "atol": 1e-6}  # of frequencies that are kept in 16 bits
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
SIZES = (
    "hidden_size", "n_embd", "d_model", "intermediate_size", "ffn_dim", "n_inner", "vocab_size",
    "num_attention_heads", "n_head", "num_key_value_heads", "head_dim",
)  # fmt: skip
"""Sizes that no tensor of the model can be smaller than."""
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
    "_attn_implementation", "_commit_hash",
    "attn_implementation", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
    "original_max_position_embeddings",
}  # fmt: skip
"""Settings that change nothing of what a model computes in evaluation."""
SCALING = re.compile(
    r"^(?!.*init).*(?:soft_?cap|multiplier|(?:^|_)scal(?:e|ing)|clip_qkv|alibi|interleaved|qk_norm|dim_model_base)"
)
"""Names of settings that change what a model computes, where its family has them."""
ROTATION = ("rope_parameters", "rope_scaling")
ADAPTER = "adapter_config.json"
GREATEST, LONGEST = 2**31, 2**24
"""Of a size, and of positions: some families hold a table of them."""


def read_settings(path: Path) -> dict[str, Any]:
    """The configuration of a model of transformers, its values of the types that they must have.

    Raises:
        ModelError: not JSON, or a setting of another type or beyond what a model can have.
    """
    config = read_json(path)
    if not isinstance(config.get("model_type", ""), str):
        raise ModelError(
            f"{path}: model_type is {show_value(config['model_type'])}; expected a text"
        )
    check_settings(config, path)
    for section in sections(config):
        rope = section.get("rope_parameters") or {}
        outer, inner = section.get("rope_theta"), rope.get("rope_theta")
        if None not in (outer, inner) and outer != inner and not section.get("rope_scaling"):
            print(f"{path}: rope_theta is {outer:g}, and in rope_parameters {inner:g}, which alone"
                  " is read", file=sys.stderr)  # fmt: skip
    return config


def check_settings(config: dict[str, Any], path: Path) -> None:
    """Compares a configuration's values with the types and the sizes that they may have.

    Raises:
        ModelError: naming a setting and its value.
    """
    for section in sections(config):
        _check_section(section, path)


def say_unread_settings(config: dict[str, Any], known: Iterable[str], source: object) -> None:
    """Says on stderr which settings that change what a model computes its family does not read."""
    unread = [
        f"{name} {show_value(value)}"
        for name, value in config.items()
        if SCALING.search(name)
        and name not in (*known, *ROTATION)
        and (value is True or value not in (None, 0, 1))
    ]
    if unread:
        print(
            f"{source}: config.json says {printable(', '.join(unread), 300)}, which transformers' "
            f"{config.get('model_type')} does not read; the model is computed without it",
            file=sys.stderr,
        )


def describe_other_layout(directory: Path) -> str:
    """What a directory without config.json is, as the end of a line; nothing where that is open."""
    if (directory / ADAPTER).is_file():
        return "; it holds an adapter: merge it into its model, and save that"
    if (directory / "params.json").is_file():
        return "; params.json is of the layout before transformers': convert it"
    inside = [path.parent.name for path in directory.glob("*/config.json")]
    latest = max(inside, key=_split_numbers, default="")
    return f"; give {directory / latest}, which has one" if inside else ""


def _split_numbers(name: str) -> list[Any]:
    """A name by its texts and numbers in turn, so that checkpoint-500 is before checkpoint-1000."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


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
    files = weight_files(directory)
    shapes = read_shapes(files, quantised=config.get("quantization_config") is not None)
    _check_sizes(config, shapes, directory / "config.json")
    return files, shapes


def _check_sizes(config: dict[str, Any], shapes: Shapes, path: Path) -> None:
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
        for name in POSITIONS if learnt else ():
            if section.get(name, 0) and section[name] > max(learnt):
                raise ModelError(
                    f"{path}: {name} is {section[name]}; the weights have {max(learnt)} positions"
                )
        for name in SIZES:
            if section.get(name, 0) and section[name] > largest:
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
    held = read_shapes(files)
    if wrong := sorted(map(str, held.keys() ^ names.keys())):
        raise ModelError(
            f"{index} does not list the tensors of its files: {printable(', '.join(wrong[:3]))}"
        )
    return files


def read_shapes(files: list[Path], quantised: bool = True) -> Shapes:
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


def read_frequencies(files: list[Path]) -> dict[str, Tensor]:
    """The frequencies of a rotation that weights' files hold beside the weights."""
    held: dict[str, Tensor] = {}
    for path in files:
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if FREQUENCIES.search(name)]  # noqa: SIM118
            held |= {name: file.get_tensor(name) for name in names}
    return held


def check_frequencies(held: dict[str, Tensor], own: list[Tensor], source: object) -> None:
    """Compares frequencies of a rotation that a file holds with those of the model made of it.

    Models read them once, and compute them now.

    Raises:
        ModelError: they differ.
    """
    for name, found in held.items():
        if not FREQUENCIES.search(name) or not own:
            continue
        if not any(
            found.shape == turn.shape and torch.allclose(found.float(), turn.float(), **ROUNDING)
            for turn in own
        ):
            raise ModelError(
                f"{source}: {printable(name, 120)} turns keys otherwise than the configuration "
                "says, which alone is read; correct rope_theta, or take the tensor out"
            )


def check_turned(config: dict[str, Any], own: list[Tensor], made: Any, source: object) -> None:
    """Refuses settings of a rotation that the model does not read, or reads otherwise.

    They are settings for all layers beside those for kinds of layers, of which a family reads one
    form, and a part of each head, where the model turns all of it. `own` are its frequencies,
    `made` is the configuration that it was made by.

    Raises:
        ModelError: naming them.
    """
    rope = getattr(made, "rope_parameters", None) or {}
    kinds = [name for name, part in rope.items() if isinstance(part, dict)]
    others = [name for name, part in rope.items() if part is not None and name not in kinds]
    if kinds and others:
        raise ModelError(
            f"{source}: in rope_parameters transformers' {made.model_type} finds "
            f"{printable(', '.join(kinds), 120)}, of kinds of layers, beside "
            f"{printable(', '.join(others), 120)}, of all layers, and does not read both; write "
            "the one form that this family's own models have"
        )
    whole = [config, *(config.get(name) or {} for name in ROTATION)]  # and not by kinds of layers
    parts = [part for s in whole if (part := s.get("partial_rotary_factor")) is not None]
    if not own or min(parts, default=1) >= 1:
        return
    width = getattr(made, "head_dim", None) or made.hidden_size // made.num_attention_heads
    if all(2 * int(frequencies.count_nonzero()) >= width for frequencies in own):
        raise ModelError(
            f"{source}: partial_rotary_factor is {min(parts)}, and transformers' "
            f"{made.model_type} turns whole heads; take it out if it changes nothing"
        )


def common_prefix(names: Iterator[str] | list[str], source: object) -> str:
    """What `PREFIXES` put before all names; said on stderr, as it is left out."""
    rest, prefix = list(names), ""
    while found := next((p for p in PREFIXES if rest and all(n.startswith(p) for n in rest)), ""):
        prefix, rest = prefix + found, [name.removeprefix(found) for name in rest]
    if prefix:
        print(f"{source}: {prefix} is left out of the names of its weights", file=sys.stderr)
    return prefix


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
            off = (
                value == 0 and section.get("use_sliding_window") is False
            )  # as a Qwen2 MoE is saved
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
