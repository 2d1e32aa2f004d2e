"""GGUF files, checked before and after transformers reads them: whole, and nothing left out."""

import importlib.util
import json
import math
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from torch import Tensor

from arch.errors import ModelError, printable, reason, show_value
from arch.formats.rotations import turns_by
from arch.storage.files import refuse_pointer

GGUF = ".gguf"
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
BASES = ("rope.freq_base", "rope.freq_base_swa")
"""Bases of a rotation's frequencies, which the tables of a model tell."""
NEUTRAL: tuple[Any, ...] = ("none", 1)
"""Values that scale nothing, of a setting that scales; so do 0 and nothing at all."""
SCALES = re.compile(r"scal|factor|group")
NEEDED = {"context_length": "context_length", "attention.head_count_kv": "attention.head_count_kv",
          "attention.layer_norm_rms_epsilon": "attention.layer_norm",
          "attention.layer_norm_epsilon": "attention.layer_norm"}  # fmt: skip
"""Settings that a file must hold, or transformers uses a default of its own. The value is how the
name of an accepted substitute begins."""
DIGITS_FIRST = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Ways to split a text in which each digit is taken out before it is split as GPT-2's."""
LIKE_GPT2 = (*DIGITS_FIRST, "gpt-2", "mpt", "olmo", "jais", "phi-2", "gigachat", "mellum",
             "a.x-4.0", "trillion")  # fmt: skip
"""Ways to split a text as GPT-2's, after that."""
WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
               "lfm2", "jina-v5-nano", "tekken")  # fmt: skip
"""Ways to split a text after which llama.cpp takes a word that is a token, whatever merges say."""
CONTROL, USER_DEFINED = 3, 4
"""Kinds of tokens that llama.cpp takes whole from a text."""
BLANK = "▁"
"""What SentencePiece writes for a blank."""


def check_gguf(file: Path) -> None:
    """Refuses a file that is no GGUF, or a part of one.

    Raises:
        ModelError: saying which, and what to do.
    """
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"{file} needs the package gguf; fix: pip install gguf")
    if not file.is_file():
        raise ModelError(f"{file} cannot be loaded: there is no such file")
    reader = _open(file)
    kind = reader.fields.get("general.type")
    if kind and (said := kind.contents()) != "model":
        raise ModelError(
            f"{file}: general.type is {show_value(said)}; allowed: 'model'; give the model's file"
        )
    parts = reader.fields.get("split.count")
    count = int(parts.parts[parts.data[0]][0]) if parts and parts.data else 1
    if count > 1:
        raise ModelError(
            f"{file} is one of {count} parts (split.count); join them first, as by "
            "`llama-gguf-split --merge`"
        )


def is_kept_packed(file: Path) -> bool:
    """Whether transformers has a reader of this family that may leave its weights packed."""
    try:
        from transformers.integrations.gguf.utils import is_gguf_arch_supported
    except ImportError:  # an older one
        return False
    return is_gguf_arch_supported(_family(_open(file)))


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
    tables = _frequencies(model)
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


def read_own_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer that a file holds, as llama.cpp reads it, whatever lies beside the file.

    transformers' tokenizer differs from llama.cpp's: it adds <|endoftext|> after the file's tokens;
    adds no leading blank to a text that begins with one; merges inside words that are tokens
    themselves; keeps digits with the blank before them; and ignores the tokens that
    `_name_as_written` adds. The last rows that a converter has named `[PAD` and their number are
    no tokens.
    """
    from transformers import AutoTokenizer

    with TemporaryDirectory() as alone:  # files beside it would be read in its place
        theirs: Any = AutoTokenizer.from_pretrained(
            alone, gguf_file=str(file.absolute()), trust_remote_code=False
        )
    held, fields = json.loads(theirs.backend_tokenizer.to_str()), _open(file).fields
    texts = fields["tokenizer.ggml.tokens"].contents()
    while texts and texts[-1] == f"[PAD{len(texts) - 1}]":
        texts.pop()
    held["added_tokens"] = [token for token in held["added_tokens"] if token["id"] < len(texts)]
    known = held["model"]["vocab"]
    held["model"]["vocab"] = {token: known[token] for token in known if known[token] < len(texts)}
    said = _describe_splits(fields)
    if said.get("model") == "gpt2" and "tokenizer.ggml.token_type" in fields:
        _name_as_written(held, texts, fields["tokenizer.ggml.token_type"].contents())
    made = Tokenizer.from_str(json.dumps(held))
    if said.get("pre") in DIGITS_FIRST:
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), pre_tokenizers.ByteLevel(False)]
        )
    if said.get("model") == "llama":  # SentencePiece: a blank more before a text, unless it says no
        first = said.get("add_space_prefix") is not False
        blank = normalizers.Replace(" ", BLANK)
        steps = [normalizers.Prepend(BLANK), blank] if first else [blank]
        made.normalizer, made.pre_tokenizer = normalizers.Sequence(steps), None
        strip = [decoders.Strip(" ", 1, 0)] if first else []
        made.decoder = decoders.Sequence(
            [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
    if said.get("pre") in WHOLE_WORDS:
        made.model.ignore_merges = True
    return made


def _name_as_written(held: dict[str, Any], texts: Sequence[str], kinds: Sequence[int]) -> None:
    """Names tokens that are taken whole by their own text, where a class spelt it in bytes.

    That class takes no control token whole that has letters outside of the alphabet of bytes, and
    no user-defined token that has a blank.
    """
    model, added = held["model"], held["added_tokens"]
    spelt = {number: token for token, number in model["vocab"].items()}
    for number in {*range(len(texts))} - {token["id"] for token in added}:
        if kinds[number] in (CONTROL, USER_DEFINED):
            spelt[number] = texts[number]
            added.append({"id": number, "content": texts[number], "single_word": False,
                          "lstrip": False, "rstrip": False, "normalized": False,
                          "special": kinds[number] == CONTROL})  # fmt: skip
    spelt |= {number: texts[number] for number in range(len(texts)) if number not in spelt}
    model["vocab"] = known = {token: number for number, token in spelt.items()}
    # Merges of what is now taken whole meet no text.
    model["merges"] = [
        (left, right)
        for left, right in model["merges"]
        if left in known and right in known and left + right in known
    ]
    added.sort(key=lambda token: token["id"])


def read_roles(file: Path) -> dict[str, int]:
    """The ids of the tokens that begin and end a text or a turn, as far as a file names them."""
    fields = _open(file).fields
    roles = ("bos", "eos", "eot", "eom")  # of a text; the end of a turn, and of a message
    keys = {f"{role}_token": f"tokenizer.ggml.{role}_token_id" for role in roles}
    return {role: int(fields[key].contents()) for role, key in keys.items() if key in fields}


def check_gguf_is_whole(file: Path, model: Any) -> None:
    """Refuses a file that holds more numbers or settings than the model that was made of it.

    And one that lacks a setting; says where its tokenizer may be another.

    Raises:
        ModelError: naming tensors that were left out, or a setting.
    """
    reader = _open(file)
    _refuse_ignored(file, reader, model)
    _check_rotation(file, reader, model)
    drafts = f"blk.{model.config.get_text_config().num_hidden_layers}."  # heads of later tokens
    drafting = f"{_family(reader)}.nextn_predict_layers" in reader.fields
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
        _say_how_text_is_split(file, reader)
        return
    sizes = set(tensors.values())
    odd = [name for name, size in held.items() if size not in sizes or name.endswith(".bias")]
    raise ModelError(
        f"{file} holds {sum(held.values()):,} numbers, the model that transformers makes of it "
        f"{made:,}; left out may be {printable(', '.join(odd[:3] or list(held)[-3:]))}"
    )


def _say_how_text_is_split(file: Path, reader: Any) -> None:
    """Says on stderr where transformers may split a text otherwise than the file says."""
    held = _describe_splits(reader.fields)
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:  # an older one
        GGUF_PRE_TOKENIZER_SPLITS = {}
    pre = held.get("pre")
    if held.get("model") == "gpt2" and pre not in (*LIKE_GPT2, *GGUF_PRE_TOKENIZER_SPLITS):
        print(
            f"{file}: tokenizer.ggml.pre is {show_value(pre) if pre else 'missing'}; its text is "
            "split as GPT-2's, and tokens may be others than the model's own; its tokenizer.json "
            "is in the layout of transformers",
            file=sys.stderr,
        )


def _describe_splits(fields: Any) -> dict[str, Any]:
    """What a file says of how its tokenizer splits a text."""
    return {
        name: field.contents()
        for name in ("model", "pre", "add_space_prefix")
        if (field := fields.get(f"tokenizer.ggml.{name}"))
    }


def _refuse_ignored(file: Path, reader: Any, model: Any) -> None:
    """Refuses a setting that transformers does not read, such as one that scales the rotation.

    And one that is missing, for which transformers would take a value of its own.

    Raises:
        ModelError: naming it.
    """
    family = _family(reader)
    read = _settings_read(file, family)
    for name in read:
        if name in NEEDED and not any(
            key.startswith(f"{family}.{NEEDED[name]}") for key in reader.fields
        ):
            raise ModelError(f"{file} lacks {family}.{name}; convert the model again")
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
            off = known and any(turns_by(table, value) for table in _frequencies(model))
        if off or (numbers and math.isclose(value, made, rel_tol=1e-6)):
            continue
        raise ModelError(
            f"{file}: {printable(key, 80)} is {show_value(value)}, which transformers does not read"
            "; give the model in the layout of transformers"
        )


def _settings_read(file: Path, family: str) -> Collection[str]:
    """The settings that transformers reads of a family, by their names in a file."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    with suppress(ImportError):  # an older one has one reader for all families
        from transformers.integrations.gguf.gguf_config_mapping import (
            GGUF_CONFIG_ARCHS,
            get_gguf_config,
        )
        from transformers.integrations.gguf.reader import read_gguf_metadata

        if family in GGUF_CONFIG_ARCHS:
            settings, tensors = read_gguf_metadata(str(file))
            made, read = get_gguf_config(settings, tensors), set()
            for key in settings:
                without = {name: settings[name] for name in settings if name != key}
                with suppress(KeyError):  # it needs the setting
                    if get_gguf_config(without, tensors) == made:
                        continue
                read.add(key.removeprefix(f"{family}."))
            return read
    known = {_plain(name): names for name, names in GGUF_CONFIG_MAPPING.items()}
    return known.get(_plain(family), ())


def _check_rotation(file: Path, reader: Any, model: Any) -> None:
    """Compares how much of a head is turned, and what scores are divided by.

    Transformers takes values of its own for both; the second stands in no file, and is the width of
    a head but in some of the largest models.

    Raises:
        ModelError: the file says another number than the model's tables of angles have, or scores
            would be divided by the root of another number than the width of a head.
    """
    field = reader.fields.get(f"{_family(reader)}.{TURNED}")
    tables = {2 * table.numel() for table in _frequencies(model)}
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


def _frequencies(model: Any) -> list[Tensor]:
    """The tables of a model's rotations: by how much each pair of numbers is turned."""
    return [table for name, table in model.named_buffers() if name.endswith("inv_freq")]


def _factors(file: Path) -> Tensor | None:
    """What a file divides the frequencies of its rotation by; None where that changes nothing."""
    found = [tensor for tensor in _open(file).tensors if tensor.name == FREQUENCIES]
    if not found or (found[0].data == 1).all():
        return None
    return torch.tensor(found[0].data, dtype=torch.float32)


def _family(reader: Any) -> str:
    return reader.fields["general.architecture"].contents()


def _plain(family: str) -> str:
    return family.replace("_", "").replace("-", "")


def _open(file: Path) -> Any:
    """The reader of a file, which is parsed once until it is written anew."""
    try:
        about = file.stat()
        refuse_pointer(file)
    except OSError as error:
        raise ModelError(f"{file} cannot be loaded: {error.strerror}") from None
    return _parse(file, about.st_ino, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=1)
def _parse(file: Path, *written: int) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(file)
    except Exception as error:  # of whatever kind: the reader checks little
        raise ModelError(
            f"{file} cannot be loaded: it is no whole GGUF file ({reason(error, 160)})"
        ) from None
