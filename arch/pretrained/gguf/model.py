"""The model that transformers makes of a GGUF file, compared with what the file holds."""

import math
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arch.errors import ModelError, printable, show_value
from arch.formats.rotations import frequencies_of, turns_by
from arch.pretrained.gguf.reader import family_of, open_gguf, read_gguf_shapes

FREQUENCIES = "rope_freqs.weight"
TURNED = "rope.dimension_count"
WITHOUT_EFFECT = {
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "context_length",
    "expert_feed_forward_length", "expert_shared_feed_forward_length", "feed_forward_length",
    "rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout",
    "vocab_size",
}  # fmt: skip
"""Settings that change nothing of what a model computes, or that the shapes of its weights tell.

Transformers reads the context of all families but BLOOM, whose files say any."""
WIDTHS = {"ffn_down_exps.weight": "moe_intermediate_size",
          "ffn_down_shexp.weight": "shared_expert_intermediate_size"}  # fmt: skip
"""Tensors of a block whose inner dimension is a width that transformers does not read."""
BASES = ("rope.freq_base", "rope.freq_base_swa")
"""Bases of a rotation's frequencies, which the tables of a model tell."""
NEUTRAL: tuple[Any, ...] = ("none", 1)
"""Values that scale nothing, of a setting that scales; so do 0 and nothing at all."""
SCALES = re.compile(r"scal|factor|group")
NEEDED = ("context_length", "attention.head_count", "attention.head_count_kv", "expert_used_count",
          "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")  # fmt: skip
"""Settings that a file must hold, or transformers uses a default of its own; either of the last
two stands for the other."""


def refuse_missing(file: Path) -> None:
    """Refuses a file without a setting for which transformers would take a value of its own.

    Raises:
        ModelError: naming it.
    """
    reader = open_gguf(file)
    family = family_of(reader)
    held = {key.replace("_rms_", "_") for key in reader.fields}
    for name in _settings_read(file, family):
        if name in NEEDED and f"{family}.{name}".replace("_rms_", "_") not in held:
            raise ModelError(f"{file} lacks {family}.{name}; convert the model again")


def complete_settings(file: Path, settings: Any) -> None:
    """Sets what transformers does not read of a file, in the configuration that it made of it.

    These are the widths of experts, and the context of a GPT-2, which it puts elsewhere.
    """
    for name, shape in read_gguf_shapes(file).items():
        width = WIDTHS.get(name.split(".", 2)[-1])
        if width and hasattr(settings, width):
            setattr(settings, width, shape[0])
    if hasattr(settings, "n_ctx"):
        settings.n_positions = settings.n_ctx


def refuse_factors(file: Path) -> None:
    """Refuses factors of a rotation's frequencies, which no setting of our models stands for.

    Raises:
        ModelError: naming their tensor.
    """
    if _factors(file) is not None:
        raise ModelError(
            f"{file}: {FREQUENCIES} scales the rotation, which no model of ours has; open the file "
            f"as hf:{file}"
        )


def scale_rotation(file: Path, model: Any) -> None:
    """Divides the frequencies of a model's rotation by the factors that its file holds.

    Llama 3.1 and later ones have them; transformers passes them over.

    Raises:
        ModelError: there are not as many factors as frequencies, or some are no positive numbers.
    """
    if (factors := _factors(file)) is None:
        return
    tables = frequencies_of(model)
    if not tables or any(table.shape != factors.shape for table in tables):
        sizes = sorted({table.numel() for table in tables})
        raise ModelError(
            f"{file}: {FREQUENCIES} has {factors.numel()} factors, the rotation "
            f"{sizes or 'no'} frequencies; convert the model again"
        )
    if not (factors > 0).all() or factors.isinf().any():
        raise ModelError(f"{file}: {FREQUENCIES} must be positive numbers; convert the model again")
    for table in tables:
        table /= factors.to(table)


def check_gguf_is_whole(file: Path, model: Any) -> None:
    """Refuses a file that holds more numbers or settings than the model that was made of it.

    Raises:
        ModelError: naming tensors that were left out, or a setting.
    """
    reader = open_gguf(file)
    _refuse_ignored(file, reader, model)
    _check_rotation(file, reader, model)
    drafts = f"blk.{model.config.get_text_config().num_hidden_layers}."  # heads of later tokens
    drafting = f"{family_of(reader)}.nextn_predict_layers" in reader.fields
    held = {
        tensor.name: int(tensor.n_elements)
        for tensor in reader.tensors
        if tensor.name != FREQUENCIES and not (drafting and tensor.name.startswith(drafts))
    }
    tensors = {id(tensor): tensor.numel() for tensor in model.parameters()}
    made = sum(tensors.values())
    if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
        held.pop("output.weight", None)
    if sum(held.values()) == made:
        return
    sizes = set(tensors.values())
    odd = [name for name, size in held.items() if size not in sizes or name.endswith(".bias")]
    raise ModelError(
        f"{file} holds {sum(held.values()):,} numbers, the model that transformers makes of it "
        f"{made:,}; left out may be {printable(', '.join(odd[:3] or list(held)[-3:]))}"
    )


def _refuse_ignored(file: Path, reader: Any, model: Any) -> None:
    """Refuses a setting that transformers does not read, such as one that scales the rotation.

    Raises:
        ModelError: naming it.
    """
    family = family_of(reader)
    read = _settings_read(file, family)
    for key, field in reader.fields.items():
        prefix, _, name = key.partition(".")
        if prefix != family or name in WITHOUT_EFFECT or name in read:
            continue
        if _plain(family) == "gptoss" and name.startswith("rope.scaling."):  # read by itself
            continue
        value: Any = field.contents()
        made: Any = getattr(model.config, name.rpartition(".")[2], None)
        numbers = isinstance(value, int | float) and isinstance(made, int | float)
        scales = SCALES.search(name) is not None and name != "attention.scale"
        off = not value or (scales and value in NEUTRAL)
        if name == "attention.causal":
            off = value is True
        if name in BASES:
            known = isinstance(value, float)
            off = known and any(turns_by(table, value) for table in frequencies_of(model))
        if off or (numbers and math.isclose(value, made, rel_tol=1e-6)):
            continue
        raise ModelError(
            f"{file}: {printable(key, 80)} is {show_value(value)}, which transformers does not read"
            "; give the model in the layout of transformers"
        )


def _settings_read(file: Path, family: str) -> Collection[str]:
    """The settings that transformers reads of a family, by their names in a file."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
    from transformers.integrations.gguf.gguf_config_mapping import (
        GGUF_CONFIG_ARCHS,
        get_gguf_config,
    )
    from transformers.integrations.gguf.reader import read_gguf_metadata

    if family not in GGUF_CONFIG_ARCHS:
        known = {_plain(name): names for name, names in GGUF_CONFIG_MAPPING.items()}
        return known.get(_plain(family), ())
    settings, tensors = read_gguf_metadata(str(file))
    made, read = get_gguf_config(settings, tensors), set()
    for key in settings:
        without = {name: settings[name] for name in settings if name != key}
        with suppress(KeyError):  # it needs the setting
            if get_gguf_config(without, tensors) == made:
                continue
        read.add(key.removeprefix(f"{family}."))
    return read


def _check_rotation(file: Path, reader: Any, model: Any) -> None:
    """Compares how much of a head is turned, and what scores are divided by.

    Transformers takes values of its own for both; the second stands in no file, and is the width of
    a head but in some of the largest models.

    Raises:
        ModelError: the file says another number than the model's tables of angles have, or scores
            would be divided by the root of another number than the width of a head.
    """
    field = reader.fields.get(f"{family_of(reader)}.{TURNED}")
    tables = {2 * table.numel() for table in frequencies_of(model)}
    if field and tables and (turned := int(field.contents())) not in tables:
        raise ModelError(
            f"{file}: {TURNED} is {turned}, transformers turns {max(tables)} numbers of a head; "
            "give the model in the layout of transformers"
        )
    config = model.config.get_text_config()
    scalar, width = (getattr(config, name, None) for name in ("query_pre_attn_scalar", "head_dim"))
    if scalar and scalar != width:
        raise ModelError(
            f"{file} does not say query_pre_attn_scalar, for which transformers takes {scalar}; "
            f"its heads are {width} wide, so give the model in the layout of transformers"
        )


def _factors(file: Path) -> Tensor | None:
    """What a file divides the frequencies of its rotation by; None where that changes nothing."""
    found = [tensor for tensor in open_gguf(file).tensors if tensor.name == FREQUENCIES]
    if not found or (found[0].data == 1).all():
        return None
    return torch.tensor(found[0].data, dtype=torch.float32)


def _plain(family: str) -> str:
    return family.replace("_", "").replace("-", "")
