"""Models from and to the layout of transformers; `python -m arch` is the command.

Llama-style models, as transformers' `save_pretrained` writes them: `config.json, model.safetensors,
tokenizer.json, tokenizer_config.json`. Nothing here needs transformers itself: our attention keeps
its conventions, so only names differ. With norms of queries and keys the layout is that of Qwen3.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from arch.config import ModelConfig
from arch.errors import ModelError, printable, say, show_value
from arch.formats.foreign import (
    HARMLESS,
    WITHOUT_EFFECT,
    common_prefix,
    describe_other_layout,
    is_off,
    read_layout,
    read_settings,
    refuse_dangling,
    say_own_code,
    say_unused_window,
)
from arch.formats.hub.reader import (
    HELD_OUT,
    PROVENANCE,
    import_hub,
    is_hub_export,
    read_provenance,
)
from arch.formats.named_tokens import read_ends, say_left_out_tokens
from arch.formats.rotations import check_frequencies, say_completed, say_missing_base
from arch.mixers import Attention
from arch.mixers.attention import QK_EPS
from arch.model import LanguageModel, SwiGLU
from arch.storage.directory import (
    MULTIPLES,
    LoadedModel,
    as_json,
    check_vocabulary,
    drop_rowless,
    load_model,
)
from arch.storage.files import read_text, write_directory
from arch.storage.weights import (
    build_model,
    drop_padding,
    is_tied,
    read_all_weights,
    renamed,
    translate,
    weights_of,
)

SPECIAL = {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}  # where a tokenizer has them

_NAMES = {  # ours and theirs, see renamed
    "embedding": "model.embed_tokens",
    "blocks.#.norm_token": "model.layers.#.input_layernorm",
    "blocks.#.token_mixer.q_proj": "model.layers.#.self_attn.q_proj",
    "blocks.#.token_mixer.k_proj": "model.layers.#.self_attn.k_proj",
    "blocks.#.token_mixer.v_proj": "model.layers.#.self_attn.v_proj",
    "blocks.#.token_mixer.o_proj": "model.layers.#.self_attn.o_proj",
    "blocks.#.token_mixer.q_norm": "model.layers.#.self_attn.q_norm",
    "blocks.#.token_mixer.k_norm": "model.layers.#.self_attn.k_norm",
    "blocks.#.norm_channel": "model.layers.#.post_attention_layernorm",
    "blocks.#.channel_mixer.gate": "model.layers.#.mlp.gate_proj",
    "blocks.#.channel_mixer.up": "model.layers.#.mlp.up_proj",
    "blocks.#.channel_mixer.down": "model.layers.#.mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}
_HONOURED = {
    "model_type", "num_key_value_heads", "rope_theta", "rope_parameters", "rope_scaling",
    "attention_bias", "mlp_bias", "rms_norm_eps", "tie_word_embeddings", "hidden_act", "head_dim",
}  # fmt: skip
_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


def export_transformers(
    directory: str | Path,
    model: LanguageModel,
    tokenizer_json: str,
    meta: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Writes a Llama-style model in the layout of transformers, into `directory`; atomic.

    Its blocks have attention of one form, swiglu and rmsnorm, and a final norm. An export in this
    layout that is there is replaced. `meta` is the model's meta.json, of which the ends of a text
    and `HELD_OUT` are used.

    Raises:
        ModelError: the model is not Llama-style, or something else is there.
        OSError: the disk is full or the place cannot be written; all is as it was.
    """
    directory = Path(directory)
    ids, tokenizer_files = describe_tokenizer(tokenizer_json, model.config.context, meta)
    config = {**_llama_config(model), **ids}
    if held_out := {name: meta[name] for name in HELD_OUT if meta.get(name) is not None}:
        config[PROVENANCE] = held_out
    weights = {renamed(name, _NAMES): tensor for name, tensor in weights_of(model).items()}

    files = {
        "model.safetensors": save(weights, {"format": "pt"}),
        "config.json": as_json(config),
        **tokenizer_files,
    }
    write_directory(directory, files)
    return directory


def describe_tokenizer(
    tokenizer_json: str, context: int, meta: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The ids of special tokens as a configuration names them, and the tokenizer's two files.

    An imported model's `meta` says what begins and ends a text (`ends_of_text`). Each token at
    which `eval generate` stops is an EOS.
    """
    added = {entry["content"]: entry["id"] for entry in json.loads(tokenizer_json)["added_tokens"]}
    begin, end = meta.get("begin"), meta.get("end")
    named = {"bos_token": begin if begin != end else None, "eos_token": end}
    roles = *SPECIAL.items(), *named.items()  # of which the later ones hold
    special = {role: token for role, token in roles if token in added}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,  # else transformers before 4.45 drops blanks
        **special,
    }
    ids: dict[str, Any] = {f"{r}_id": added.get(special.get(r)) for r in ("bos_token", *SPECIAL)}
    ends = special.get("eos_token"), SPECIAL["eos_token"], *(meta.get("stops") or ())
    if len(stops := dict.fromkeys(added[token] for token in ends if token in added)) > 1:
        ids["eos_token_id"] = [*stops]
    files = {
        "tokenizer.json": tokenizer_json.encode(),
        "tokenizer_config.json": as_json(config),
    }
    return ids, files


def import_transformers(directory: str | Path) -> LoadedModel:
    """Reads a Llama in the layout of transformers; `save_model` makes it a model directory.

    An embedding may have more rows than the tokenizer has entries, up to the next of `MULTIPLES`;
    the rows that no token has are left out.

    Raises:
        ModelError: not such a directory, not a Llama, a Llama with what ours has not (scaled
            rotation, another activation or head width), or a tokenizer of another size.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ModelError(f"{directory}: no such model directory")
    refuse_dangling(directory)
    if missing := [f for f in ("config.json", "tokenizer.json") if not (directory / f).is_file()]:
        hint = describe_other_layout(directory) if missing[0] == "config.json" else ""
        hint = hint or "; save model and tokenizer there"
        raise ModelError(f"{directory} has no {', '.join(missing)}{hint}")
    tokenizer_json = read_text(directory / "tokenizer.json")
    config = read_settings(directory / "config.json")

    def read_all() -> dict[str, Tensor]:
        files, _ = read_layout(config, directory)
        return read_all_weights(files)

    loaded = from_transformers(config, read_all, tokenizer_json, directory)
    say_left_out_tokens(directory, tokenizer_json)
    known = read_ends(directory, loaded.tokenizer_json)
    known |= read_provenance(config, directory / "config.json")
    kind = config["model_type"]
    say_own_code(config, directory, lambda n: n.lower().startswith((f"{kind}for", f"{kind}model")))
    say_unused_window(config, kind, directory)
    return dataclasses.replace(loaded, meta=loaded.meta | known)


def from_transformers(
    config_json: dict[str, Any],
    weights: Callable[[], dict[str, Tensor]],
    tokenizer_json: str,
    source: Path,
) -> LoadedModel:
    """A Llama of transformers as a model of ours.

    `weights` gives its tensors by their names, once the configuration is checked; `source` is the
    directory or file that errors name.

    Raises:
        ModelError: as `import_transformers`.
    """
    config = _our_config(config_json, source)
    file = source / "tokenizer.json"
    tokenizer_json = drop_rowless(file, tokenizer_json, config.vocab_size)
    size = check_vocabulary(file, tokenizer_json, config.vocab_size, MULTIPLES)
    ours = {foreign: name for name, foreign in _NAMES.items()}
    held = weights()
    prefix = common_prefix(held, source)
    plain = {n.removeprefix(prefix): t for n, t in held.items() if not HARMLESS.search(n)}
    if "model.model.embed_tokens.weight" in plain:  # saved inside of a module of training
        plain = {name.removeprefix("model."): tensor for name, tensor in plain.items()}
    if "embed_tokens.weight" in plain:  # saved without the head
        plain = {n if "lm_head" in n else f"model.{n}": tensor for n, tensor in plain.items()}
    tensors = translate(plain, ours, source)
    if config.tied and "head.weight" in tensors:  # safetensors keeps one of two names
        tensors.setdefault("embedding.weight", tensors["head.weight"])
    if config.tied and not is_tied(tensors):
        say(f"{source}: tie_word_embeddings is true, but it has a head of its own, which is kept")
        config = dataclasses.replace(config, tied=False)
    model = drop_padding(build_model(config, tensors, str(source)), size)
    attention: Any = model.blocks[0].token_mixer
    turned = torch.arange(0, attention.head_width, 2) / attention.head_width
    check_frequencies(held, [attention.rope_base**-turned], source)
    say_missing_base(config_json, attention.rope_base, source)
    if "rms_norm_eps" not in config_json:
        say_completed("rms_norm_eps", config.norm_eps, source)
    meta = {"name": source.absolute().name, "source": "transformers"}
    return LoadedModel(model, model.config, tokenizer_json, meta, source)


def open_directory(path: str | Path, *, trust_code: bool = False) -> LoadedModel:
    """Reads a model directory, a Llama in the layout of transformers, or an export for the hub.

    `trust_code` is as for `load_model`.

    Raises:
        ModelError: as `load_model`, `import_transformers` and `import_hub`.
    """
    if not Path(path, "config.json").is_file() or Path(path, "meta.json").is_file():
        return load_model(path, trust_code=trust_code)
    return import_hub(path) if is_hub_export(path) else import_transformers(path)


def check_importable(directory: Path) -> None:
    """Refuses a model that `open_directory` would refuse by its configuration, before its weights.

    Raises:
        ModelError: as there.
    """
    if not (directory / "meta.json").is_file() and not is_hub_export(directory):
        _our_config(read_settings(directory / "config.json"), directory)


def _llama_config(model: LanguageModel) -> dict[str, Any]:
    """The model's configuration in the words of transformers."""
    config = model.config
    blocks: list[Any] = list(model.blocks)
    attention, channel = blocks[0].token_mixer, blocks[0].channel_mixer
    checks = {
        f"mixers={list(config.mixers)}": len({_form(block.token_mixer) for block in blocks}) == 1
        and type(attention) is Attention,
        f"channel_mixer={config.channel_mixer}": isinstance(channel, SwiGLU),
        f"norm={config.norm}": config.norm == "rmsnorm",
        f"final_norm={config.final_norm}": config.final_norm,
    }
    qwen = type(attention) is Attention and attention.qk_norm
    if qwen:  # Qwen3 has one epsilon for all norms, and no biases in the channel mixer
        checks[f"norm_eps={config.norm_eps} beside qk_norm"] = config.norm_eps == QK_EPS
        checks[f"channel_mixer={config.channel_mixer}"] &= channel.up.bias is None
    if wrong := [setting for setting, fits in checks.items() if not fits]:
        raise ModelError(
            f"transformers has no layout for a model that is not Llama-style: {', '.join(wrong)}; "
            "fix: --layout hub, for built-in mixers; allowed here: one form of attention, swiglu, "
            f"rmsnorm, a final norm, with qk_norm a norm_eps of {QK_EPS} and swiglu without biases"
        )
    return {
        "architectures": ["Qwen3ForCausalLM" if qwen else "LlamaForCausalLM"],
        "model_type": "qwen3" if qwen else "llama",
        "vocab_size": config.vocab_rows,
        "hidden_size": config.d_model,
        "intermediate_size": config.hidden_width,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_width,
        "max_position_embeddings": config.context,
        "rope_parameters": {"rope_type": "default", "rope_theta": attention.rope_base},
        "rope_theta": attention.rope_base,  # where transformers before 5 looks for it
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "attention_bias": attention.q_proj.bias is not None,
        "mlp_bias": channel.up.bias is not None,
        "tie_word_embeddings": config.tied,
        "dtype": str(model.head.weight.dtype).removeprefix("torch."),
    }


def _form(mixer: Any) -> tuple[object, ...]:
    """What every attention of a Llama has in common."""
    if type(mixer) is not Attention:  # a subclass may compute something else
        return (type(mixer),)
    return mixer.heads, mixer.kv_heads, mixer.rope_base, mixer.q_proj.bias is None, mixer.qk_norm


def _our_config(given: dict[str, Any], directory: Path) -> ModelConfig:
    """The configuration of a Llama in our words; names and defaults are those of LlamaConfig."""
    path = directory / "config.json"
    rope = given.get("rope_scaling") or given.get("rope_parameters") or {}  # as transformers does
    _refuse_other(given, rope, path)
    _refuse_unknown(given, rope, path)
    attention = {
        "heads": given["num_attention_heads"],
        "kv_heads": given.get("num_key_value_heads") or given["num_attention_heads"],
        "rope_base": float(rope.get("rope_theta", given.get("rope_theta", 10000.0))),
        "bias": given.get("attention_bias", False),
        **({"qk_norm": True} if given["model_type"] == "qwen3" else {}),
    }
    mixer = f"attention({', '.join(f'{key}={value}' for key, value in attention.items())})"
    try:
        return ModelConfig(
            vocab_size=given["vocab_size"],
            context=given["max_position_embeddings"],
            d_model=given["hidden_size"],
            n_layers=given["num_hidden_layers"],
            mixers=(mixer,),
            channel_mixer=f"swiglu(bias={given.get('mlp_bias', False)})",
            d_ff=given["intermediate_size"],
            norm="rmsnorm",
            norm_eps=given.get("rms_norm_eps", 1e-6),
            tied=given.get("tie_word_embeddings", False),
        )
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _refuse_other(given: dict[str, Any], rope: dict[str, Any], path: Path) -> None:
    """Refuses another family, a setting that is missing, and values that are no Llama's of ours."""
    if given.get("model_type") not in ("llama", "qwen3"):
        raise ModelError(
            f"{path}: model_type is {given.get('model_type')!r}; allowed for an import: 'llama', "
            "'qwen3'; other families can be wrapped: arch.load_pretrained"
        )
    qwen = given["model_type"] == "qwen3"
    if missing := [key for key in _REQUIRED if given.get(key) is None]:
        raise ModelError(f"{path} lacks {', '.join(missing)}")
    for name in ("rms_norm_eps", "hidden_act", "attention_bias", "mlp_bias", "tie_word_embeddings"):
        if name in given and given[name] is None:  # no default: transformers refuses it too
            raise ModelError(f"{path}: {name} is null; leave it out, or give a value")
    width, heads = given["hidden_size"], given["num_attention_heads"]
    kv_heads = given.get("num_key_value_heads") or heads
    if width % heads or heads % kv_heads:
        raise ModelError(
            f"{path}: num_attention_heads, num_key_value_heads: heads={heads} must divide "
            f"d_model={width}, kv_heads={kv_heads} must divide heads"
        )
    for name, seen, allowed in (
        ("hidden_act", given.get("hidden_act", "silu").replace("swish", "silu"), "silu"),
        ("rope_type", rope.get("rope_type", rope.get("type", "default")), "default"),
        ("head_dim", given.get("head_dim", 128 * qwen) or width // heads, width // heads),
        *([("rms_norm_eps", given.get("rms_norm_eps", 1e-6), QK_EPS)] if qwen else []),
    ):
        if seen != allowed:
            raise ModelError(
                f"{path}: {name} is {seen!r}; allowed for an import: {allowed!r}; "
                "any such model can be wrapped: arch.load_pretrained"
            )


def _refuse_unknown(given: dict[str, Any], rope: dict[str, Any], path: Path) -> None:
    """Refuses a setting that is not known, unless it is off.

    `is_causal` is not off where it is false.

    A Llama of transformers has no windows, whatever its configuration says of them; a Qwen3 has.
    """
    known = {*_REQUIRED, *_HONOURED, *WITHOUT_EFFECT, PROVENANCE}
    known.add("original_max_position_embeddings")  # of a scaled rotation, which is refused
    windows = given["model_type"] == "qwen3" and given.get("use_sliding_window")
    known |= set() if windows else {"sliding_window", "max_window_layers", "use_sliding_window"}
    unknown = {name: value for name, value in given.items() if name not in known}
    kinds = set(given.get("layer_types") or ())
    if kinds <= {"full_attention"}:
        unknown.pop("layer_types", None)
    unknown |= {n: v for n, v in rope.items() if n not in ("rope_theta", "rope_type", "type")}
    for name in ("partial_rotary_factor", "is_causal"):
        if unknown.get(name) == 1:
            del unknown[name]
    for name, value in unknown.items():
        if name == "is_causal" or not is_off(value):
            raise ModelError(
                f"{path}: {printable(name, 80)} is {show_value(value)}, which an import "
                f"does not know; take it out if it changes nothing, or open hf:{path.parent}"
            )
