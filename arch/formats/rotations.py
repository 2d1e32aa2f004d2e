"""Rotations of a model of transformers: what its files say of them, and what it computes.

Frequencies that lie beside the weights, and settings of `config.json`, are compared with the tables
of the model that was made of them.
"""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from arch.errors import ModelError, printable, say, show_value
from arch.formats.foreign import ROTATION, sections

FREQUENCIES = re.compile(r"rotary_emb\.inv_freq$")
ROUNDING: Any = {"rtol": 0.02, "atol": 1e-6}  # of frequencies that are kept in 16 bits
ROTATIONS = ("rope_type", "type")
FRACTIONS = ("rotary_pct", "rope_pct", "rotary_percentage")
"""Names by which some families know partial_rotary_factor."""
BASES = ("rotary_emb_base", "rope_base")
"""Names by which some families know rope_theta."""
LENGTH = "original_max_position_embeddings"
LENGTHS, OLDEST = ("max_position_embeddings", LENGTH), 4096
"""Names of a context, and the longest of models whose configurations name no base."""
READ = {
    "default": (), "linear": ("factor",), "dynamic": ("factor",), "proportional": ("factor",),
    "llama3": ("factor", LENGTH, "low_freq_factor", "high_freq_factor"),
    "longrope": ("factor", LENGTH, "attention_factor", "long_factor", "short_factor"),
    "yarn": ("factor", LENGTH, "attention_factor", "beta_fast", "beta_slow", "mscale",
             "mscale_all_dim", "truncate"),
}  # fmt: skip
"""What transformers reads of a rotation, by its type, beside `PASSED`."""
PASSED = (*ROTATIONS, LENGTH, "rope_theta", "partial_rotary_factor")
OWN = {
    "phimoe": ("short_mscale", "long_mscale"),
    "hunyuan_v1_dense": ("alpha",), "hunyuan_v1_moe": ("alpha",),
    "paddleocr_vl_text": ("mrope_section",),
}  # fmt: skip
"""What the code of a family reads of a rotation by itself."""
IDLE: dict[str, tuple[Any, ...]] = {
    "factor": (1,), "mscale": (0, 1), "mscale_all_dim": (0, 1), "beta_fast": (32,),
    "beta_slow": (1,), "attn_factor": (1,), "extrapolation_factor": (1,), "finetuned": (0, 1),
}  # fmt: skip
"""Values that change nothing."""


def read_frequencies(files: list[Path]) -> dict[str, Tensor]:
    """The frequencies of a rotation that weights' files hold beside the weights."""
    held: dict[str, Tensor] = {}
    for path in files:
        with safe_open(path, "pt", backend="pread") as file:
            names = [name for name in file.keys() if FREQUENCIES.search(name)]  # noqa: SIM118
            held |= {name: file.get_tensor(name) for name in names}
    return held


def frequencies_of(model: Any) -> list[Tensor]:
    """The tables of a model's rotations: by how much each pair of numbers is turned."""
    return [table for name, table in model.named_buffers() if name.endswith("inv_freq")]


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

    Refused are: settings for all layers beside settings for kinds of layers; a base that the family
    uses for some layers only, or for none; a partial rotation where the model turns whole heads; a
    setting under another family's name that differs from what is computed. `own` are the model's
    frequencies, `made` is the configuration that it was made by.

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
    turns = [rope[name] for name in kinds] or [rope]
    _say_unread(config, turns, made, source)
    if taken := dict.fromkeys(base for turn in turns if (base := turn.get("rope_theta"))):
        say_missing_base(config, " and ".join(map(str, taken)), source)
    section = config | (config.get("text_config") or {})
    whole = [section, *(section.get(name) or {} for name in ROTATION)]  # and not by kinds of layers
    if bases := [base for s in whole if (base := s.get("rope_theta"))]:
        turns = {kind: rope[kind] for kind in kinds} or {"all layers": rope}
        _check_bases(section, bases[0], turns, made, source)
    if not own:
        return
    _check_other_names(section, own, made, source)
    parts = [part for s in whole if (part := s.get("partial_rotary_factor")) is not None]
    if min(parts, default=1) >= 1:
        return
    width = _head_width(made)
    if all(2 * int(frequencies.count_nonzero()) >= width for frequencies in own):
        raise ModelError(
            f"{source}: partial_rotary_factor is {min(parts)}, and transformers' "
            f"{made.model_type} turns whole heads; take it out if it changes nothing"
        )


def _say_unread(
    config: dict[str, Any], parts: list[dict[str, Any]], made: Any, source: object
) -> None:
    """Says on stderr which settings of a scaled rotation are not read, and which length is taken.

    `parts` are the rotations that transformers made, for all layers or for each kind of them.
    """
    written = [*sections(config)]
    types = [section.get(name) for section in written for name in ROTATIONS]
    stated = {length for section in written if (length := section.get(LENGTH))}
    known = {*PASSED, *OWN.get(made.model_type, ())}
    known |= {*(getattr(made, "ignore_keys_at_rope_validation", None) or ())}
    for part in parts:
        kind = str(part.get("rope_type"))
        if (read := READ.get(kind)) is None:
            continue
        paired = part.get("mscale_all_dim")  # mscale has no effect without it
        unread = [
            f"{printable(name, 80)} {show_value(value)}"
            for name, value in part.items()
            if name not in known and (name not in read or (name == "mscale" and not paired))
            if value is not None and value not in IDLE.get(name, ())
        ]
        if unread:
            say(
                f"{source}: a rotation says {', '.join(unread)}, which transformers does not read "
                f"where its rope_type is {kind}; it is turned without"
            )
        clear = len(stated) == 1 or (stated and len(parts) > 1)
        if LENGTH in read and kind in types and not clear:
            found = printable(", ".join(map(str, sorted(stated))), 80) or "no"
            say(f"{source}: config.json says {found} {LENGTH}; {part.get(LENGTH)} is taken")


def say_missing_base(config: dict[str, Any], base: object, source: object) -> None:
    """Says on stderr that `base` is taken, where others of such a context turn by several."""
    written = [*sections(config)]
    lengths = [section.get(name) or 0 for section in written for name in LENGTHS]
    if max(lengths) > OLDEST and not _list_bases(written):
        say_completed("rope_theta", base, source)


def say_completed(name: str, value: object, source: object) -> None:
    """Says on stderr that a configuration lacks a setting, and which value it has then."""
    say(f"{source}: {name} is missing; {value} is taken, as transformers does")


def _list_bases(written: list[dict[str, Any]]) -> list[Any]:
    """The values of settings that name a base, as Gemma 3's rope_local_base_freq."""
    return [
        value
        for section in written
        for name, value in section.items()
        if "theta" in name or "base" in name
    ]


def _check_bases(
    config: dict[str, Any], base: object, turns: dict[str, Any], made: Any, source: object
) -> None:
    """Refuses a base that a family does not read, as GPT-NeoX, or gives to some layers, as OLMo 3.

    The others turn by a base of transformers' own, which the configuration does not say. `turns`
    are the rotations that it made, by the layers that they are of.

    Raises:
        ModelError: naming both.
    """
    stated = _list_bases([*sections(config)])
    unsaid = {
        layers: found
        for layers, part in turns.items()
        if (found := part.get("rope_theta")) is not None and found not in stated
    }
    by_kinds = isinstance(getattr(made, "default_theta", None), dict)  # rope_theta is of one kind
    if unsaid and not (by_kinds and len(unsaid) < len(turns)):
        layers, found = next(iter(unsaid.items()))
        raise ModelError(
            f"{source}: rope_theta is {show_value(base)}, and transformers' {made.model_type} "
            f"turns {printable(layers, 80)} by {show_value(found)}; write in rope_parameters the "
            f"rope_theta of {printable(', '.join(turns), 120)}"
        )


def _check_other_names(
    config: dict[str, Any], own: list[Tensor], made: Any, source: object
) -> None:
    """Compares settings by the names of other families with the rotation that is computed.

    Raises:
        ModelError: one of them says another part of a head, or another base.
    """
    width = _head_width(made)
    pairs = [int(frequencies.count_nonzero()) for frequencies in own]
    turned = {name: _number(config.get(name), width) for name in FRACTIONS}
    turned["rotary_dim"] = _number(config.get("rotary_dim"))
    for name, count in turned.items():
        if count and not any(-1 <= count - 2 * found < 1 for found in pairs):  # rounded up to even
            raise ModelError(
                f"{source}: {name} is {show_value(config[name])}, and transformers' "
                f"{made.model_type} turns {2 * max(pairs)} of the {width} numbers of a head; write "
                "it as partial_rotary_factor if the family reads that, or take it out"
            )
    rope = getattr(made, "rope_parameters", None) or {}
    read = [part.get("rope_theta") for part in (rope, *rope.values()) if isinstance(part, dict)]
    inner = config.get("attn_config")
    bases = {name: config.get(name) for name in BASES}
    bases["attn_config: rope_theta"] = inner.get("rope_theta") if isinstance(inner, dict) else None
    for name, value in bases.items():
        base = _number(value)
        if base and base not in read and not any(turns_by(table, base) for table in own):
            raise ModelError(
                f"{source}: {name} is {show_value(value)}, which transformers' {made.model_type} "
                "does not read; write it as rope_theta"
            )


def turns_by(table: Tensor, base: float) -> bool:
    """Whether frequencies are the powers of one base, and nothing scales them."""
    powers = base ** (-torch.arange(len(table), dtype=torch.float64) / len(table))
    return torch.allclose(table.double().cpu(), powers, rtol=1e-5)


def is_plain(config: dict[str, Any]) -> bool:
    """Whether nothing scales a rotation; files hold such frequencies with the scale or without."""
    ropes = [section for section in [*sections(config)][1:] if "hidden_size" not in section]
    return all(rope.get(name, "default") == "default" for rope in ropes for name in ROTATIONS)


def _head_width(made: Any) -> int:
    return getattr(made, "head_dim", None) or made.hidden_size // made.num_attention_heads


def _number(value: object, unit: int = 1) -> float:
    """A setting's number, in units; 0 where it is none."""
    return value * unit if isinstance(value, int | float) and value is not True else 0
