"""What the configuration of a model of transformers says, checked before anything is made of it."""

import inspect
import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.nn.modules.module import register_module_parameter_registration_hook

from arch.errors import ModelError, is_out_of_memory, printable, reason, say, show_value
from arch.formats.foreign import (
    ACTIVATIONS,
    ROTATION,
    check_settings,
    check_sizes,
    read_settings,
    say_unused_window,
    sections,
)
from arch.formats.hub.reader import MODEL_TYPE
from arch.formats.rotations import ROTATIONS, say_completed
from arch.pretrained.gguf.model import complete_settings, refuse_missing
from arch.pretrained.gguf.reader import is_kept_packed, read_gguf_shapes
from arch.pretrained.tokenizers import CODE
from arch.storage.weights import Shapes

COMPUTING = re.compile(
    r"^(?!.*init).*(?:soft_?cap|multiplier|(?:^|_)scal(?:e|ing)|clip_qkv|alibi|interleaved|qk_norm"
    r"|dim_model_base|parallel_residual|^layer_types$|attention_chunk_size|no_?(?:ro)?pe_layer)"
)
"""Names of settings that change what a model computes, where its family has them."""
ALIBI = ("position_embedding_type", "alibi")
COMPLETED = ("rms_norm_eps", "sliding_window", "num_experts_per_tok", "attn_logit_softcapping",
             "final_logit_softcapping", "query_pre_attn_scalar")  # fmt: skip
"""Settings that no shape tells, and in which the models of a family differ."""
FREE_TENSORS, FREE_NUMBERS = 2**10, 2**26
"""What a model may have beside eight times that of its files, as layers that share weights have."""
QUANTISATION = "quantization_config: quant_method"
BITS = ("load_in_8bit", "load_in_4bit")  # without which transformers takes codes for weights
KERNELS = ("rwkv", "eetq", "fbgemm_fp8", "fp8", "metal", "mxfp4", "mxfp8", "nvfp4")
"""Families and quantisations that transformers computes by code of the hub, where it can."""
OF_MPT: dict[str, tuple[Any, ...]] = {
    "alibi": (True,), "alibi_bias_max": (8,), "rope": (False, None), "prefix_lm": (False,),
    "sliding_window_size": (-1, None), "logit_scale": (None,),
    "norm_type": ("low_precision_layernorm", "layernorm"),
}  # fmt: skip
"""Settings that transformers does not read of an MPT, and the values as which it computes them."""


def check_config(name: str, directory: Path) -> None:
    """Refuses a model by the configuration alone that lies in its directory.

    Raises:
        ModelError: as `read_settings` and `read_config`.
    """
    read_settings(directory / "config.json")
    read_config(name, str(directory), {})


def read_config(name: str, directory: str, more: dict[str, Any]) -> tuple[dict[str, Any], Any, Any]:
    """The configuration of a model, checked before anything is made of it.

    As its files have it, as transformers reads it, and the class by which transformers loads it.

    Raises:
        ModelError: naming what is not known, or not opened.
    """
    from transformers import AutoConfig, PreTrainedConfig

    safe: dict[str, Any] = {**more, "trust_remote_code": False}
    with refusals(name):
        config, _ = PreTrainedConfig.get_config_dict(directory, **safe)
        if more:
            refuse_missing(Path(name))
    if more:
        check_settings(config, Path(name))
        check_sizes(config, read_gguf_shapes(Path(name)), Path(name))
    _check_names(name, config)
    _check_mpt(name, config)
    _refuse_kernels(name, config, bool(more))
    if config.get("model_type") == MODEL_TYPE:
        raise ModelError(f"{name} is a model of remnant; fix: python -m arch import hub:{name} DIR")
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{name} is an encoder and a decoder; give a decoder-only model")
    with refusals(name):
        settings = AutoConfig.from_pretrained(directory, **safe)
        if more:
            complete_settings(Path(name), settings)
        _check_rotations(name, settings.get_text_config())
        family = _find_class(settings)
        _check_heads(name, config, settings)
    return config, settings, family


def _check_heads(name: str, config: dict[str, Any], made: Any) -> None:
    """Refuses a configuration without its number of heads, which no shape of a weight tells.

    Of a model that reads pictures, the part that reads text may leave out what its family has.
    """
    ours = "num_attention_heads"
    theirs = made.attribute_map.get(ours, ours)
    names = [ours, *(alias for alias, of in made.attribute_map.items() if of == theirs), theirs]
    fields = inspect.signature(type(made).__init__).parameters  # a JetMoe computes its number
    taken = vars(made).get(theirs) if theirs in fields and made.get_text_config() is made else None
    if taken is not None and not any(alias in config for alias in names):
        raise ModelError(
            f"{name} cannot be loaded: config.json lacks {theirs}, for which transformers would "
            f"take {show_value(taken)}; write the model's own"
        )


def say_unread_settings(config: dict[str, Any], made: Any, source: object) -> None:
    """Says on stderr which settings that change what a model computes its family does not read.

    And which of those in `COMPLETED` the configuration lacks. `made` is the configuration that the
    model was made by; a part that reads text has its own, or is the whole model.
    """
    text, inner = config.get("text_config") or {}, made.get_text_config()
    if inner is made:
        config = config | text
    else:
        _say_unread(text, inner, source)
    _say_unread(config, made, source)
    for name in COMPLETED if inner is made else ():
        usual = getattr(type(made), name, None)  # a Qwen3 takes its own only where a switch is on
        stated = not config.keys().isdisjoint((name, made.attribute_map.get(name)))
        if usual is not None and not stated and getattr(made, name) == usual:
            say_completed(name, usual, source)


def _say_unread(config: dict[str, Any], made: Any, source: object) -> None:
    """Says on stderr what one part of a configuration says that its family does not read."""
    known = {*inspect.signature(type(made).__init__).parameters, *made.attribute_map}
    activations = [getattr(made, name, None) for name in ACTIVATIONS if name in known]
    other = [name for name in ACTIVATIONS if activations and config.get(name) not in activations]
    unread = [
        f"{name} {show_value(value)}"
        for name, value in config.items()
        if (COMPUTING.search(name) or name in other or (name, value) == ALIBI)
        and name not in (*known, *ROTATION)
        and not _changes_nothing(value)
    ]
    if unread:
        say(
            f"{source}: config.json says {printable(', '.join(unread), 300)}, which transformers' "
            f"{made.model_type} does not read; it is computed as every {made.model_type} is"
        )
    kinds = getattr(made, "layer_types", None) if "layer_types" in known else None
    read = "sliding_window" in known and made.sliding_window == config.get("sliding_window")
    if set(kinds) == {"full_attention"} if kinds else not read:
        say_unused_window(config, made.model_type, source)


def _changes_nothing(value: object) -> bool:
    """Whether a setting, or each layer's part of it, says what a model computes without it."""
    if isinstance(value, list):
        return all(part in (1, "full_attention") for part in value)
    return value is not True and value in (None, 0, 1)


@contextmanager
def bounded(name: str, shapes: Shapes, is_packed: bool) -> Iterator[None]:
    """Ends the building of a model that is far larger than its files say.

    Transformers builds it without numbers, and then draws those of a wrong shape: all memory would
    be taken, or hours, before a wrong size is told. Weights that are packed stand for more numbers.

    Raises:
        ModelError: naming a weight.
    """
    stored, thread = sum(map(math.prod, shapes.values())), threading.get_ident()
    most = FREE_NUMBERS + (64 if is_packed else 8) * stored
    made: dict[int, Any] = {}  # a tied one is registered again
    numbers = 0

    def add(_: Any, parameter: str, tensor: Any) -> None:
        nonlocal numbers
        if tensor is None or not tensor.is_meta or threading.get_ident() != thread:
            return
        numbers += tensor.numel() if id(tensor) not in made else 0
        made[id(tensor)] = tensor
        if len(made) > FREE_TENSORS + 8 * len(shapes) or numbers > most:
            raise ModelError(
                f"{name}: the weights do not fit the configuration: it makes {len(made)} and more, "
                f"one of them {parameter} {tuple(tensor.shape)}; the files hold {len(shapes)}, of "
                f"{stored} numbers"
            )

    hook = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        hook.remove()


def _find_class(settings: Any) -> Any:
    """The class by which transformers loads a model: of texts, or of pictures and texts.

    Raises:
        ModelError: it has none for them.
    """
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
    )

    of_texts = type(settings) in MODEL_FOR_CAUSAL_LM_MAPPING
    if type(settings) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and (
        not of_texts or "ForConditionalGeneration" in str(settings.architectures)
    ):
        return AutoModelForImageTextToText
    if of_texts:
        return AutoModelForCausalLM
    raise ModelError(
        f"transformers has no causal language model of model_type {settings.model_type!r}; give a "
        "decoder-only model"
    )


def _refuse_kernels(name: str, config: dict[str, Any], is_gguf: bool) -> None:
    """Refuses what transformers would compute by code that it fetches from the hub, unasked.

    It does so where the package kernels is installed, and has no setting against it.
    """
    from transformers.utils.import_utils import is_kernels_available

    quantised = config.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, dict) else None
    kinds = [config.get("model_type"), method]
    found = kinds if is_gguf and is_kept_packed(Path(name)) else [k for k in kinds if k in KERNELS]
    if found and is_kernels_available():
        raise ModelError(
            f"{name} cannot be loaded: the package kernels is installed, by which transformers "
            f"would fetch and run code of the hub for {show_value(found[0])}; uninstall it, or "
            "give the weights as floats"
        )


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Says in one line why transformers cannot load a model, and keeps its own reports quiet."""
    from transformers import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(50)  # critical
    logging.disable_progress_bar()
    try:
        yield
    except ModelError as error:
        raise error if name in str(error) else ModelError(f"{name}: {error}") from None
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # whatever it meets in a file; panics of Rust are no Exceptions
        if is_out_of_memory(error):
            raise
        said = f"it {CODE}" if "custom code" in str(error) else reason(error, 300)
        raise ModelError(f"{name} cannot be loaded: {said}") from None
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _check_names(name: str, config: dict[str, Any]) -> None:
    """Refuses activations and quantisations that transformers does not know, and nameless scalings.

    It would take the codes of an unknown quantisation for the weights.
    """
    from transformers.activations import ACT2FN
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    known: dict[str, Any] = dict.fromkeys(ACTIVATIONS, ACT2FN)
    found = [(setting, config.get(setting)) for setting in ACTIVATIONS]
    ropes = [section for section in [*sections(config)][1:] if "hidden_size" not in section]
    for rope in ropes:
        scaled = [key for key in rope if "factor" in key and key != "partial_rotary_factor"]
        if scaled and not any(map(rope.get, ROTATIONS)):  # for transformers nothing is scaled then
            raise ModelError(
                f"{name} cannot be loaded: a rotation has {scaled[0]} "
                f"{show_value(rope[scaled[0]])} and no rope_type; name the type, as linear"
            )
    if isinstance(quantised := config.get("quantization_config"), dict):
        found.append((QUANTISATION, method := quantised.get("quant_method")))
        if method is None:
            raise ModelError(
                f"{name} cannot be loaded: quantization_config names no quant_method, as in models "
                "of MLX; give their weights as floats (mlx_lm.convert --dequantize)"
            )
        if method == "bitsandbytes" and not any(map(quantised.get, BITS)):
            raise ModelError(
                f"{name} cannot be loaded: {QUANTISATION} is 'bitsandbytes', and neither "
                f"{' nor '.join(BITS)} is true; set the one that its weights are of"
            )
    known[QUANTISATION] = {"bitsandbytes", *AUTO_QUANTIZATION_CONFIG_MAPPING}
    pad, rows = config.get("pad_token_id"), config.get("vocab_size")
    if type(pad) is int and type(rows) is int and not -rows <= pad < rows:
        raise ModelError(f"{name} cannot be loaded: pad_token_id is {pad}; allowed: below {rows}")
    for setting, value in found:
        if isinstance(value, str) and value not in known[setting]:
            raise ModelError(
                f"{name} cannot be loaded: {setting} is {show_value(value)}; transformers "
                f"knows {', '.join(sorted(known[setting]))}"
            )


def _check_mpt(name: str, config: dict[str, Any]) -> None:
    """Refuses an MPT whose positions or norms are others than those of transformers' one MPT."""
    inner = config.get("attn_config")
    told = config | (inner if isinstance(inner, dict) else {})
    for setting, read in OF_MPT.items() if config.get("model_type") == "mpt" else ():
        if (value := told.get(setting, read[0])) not in read:
            raise ModelError(
                f"{name} cannot be loaded: {setting} is {show_value(value)}, which transformers' "
                f"mpt computes as {show_value(read[0])}; load it by its own code, and give "
                "open_model the module"
            )


def _check_rotations(name: str, made: Any) -> None:
    """Refuses rotations that transformers does not know, by the words that it made of the file's.

    Its families read older words too, as Qwen2-VL's mrope.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = getattr(made, "rope_parameters", None) or {}
    known = ("default", *sorted(ROPE_INIT_FUNCTIONS))
    for part in (rope, *rope.values()):
        kind = part.get("rope_type") if isinstance(part, dict) else None
        if kind is not None and kind not in known:
            raise ModelError(
                f"{name} cannot be loaded: rope_type is {show_value(kind)}; transformers knows "
                f"{', '.join(known)}"
            )
