"""Checkpoints of structured mixers, as the authors' code writes them (mrm and ToeplitzMixers).

Toeplitz matrices and repeats, of Badger and Roland, 2605.06683, and Badger, 2605.08696. Names and
shapes are the same whatever the numbers of a matrix mean, so that the reader must be told. A block
of theirs mixes features before positions. In ours it is the other way about, so that n blocks
become n + 1: the token mixer of the first and the feed-forward part of the last are zero.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from arch.config import ModelConfig
from arch.errors import ModelError
from arch.model import LanguageModel
from arch.storage.weights import build_model, is_tied, translate

HELD = "toeplitz", "row", "column", "combined", "mixed"
"""The mixers that a checkpoint may hold."""
EMBEDDING = "input_layer.weight"
"""A name that every such checkpoint has, and none of maskedmixers."""
_NAMES = {  # theirs and ours, see renamed; a dropout before the last layer makes it number 3
    "input_layer": "embedding",
    "mixer_blocks.#.token_norm": "blocks.#.norm_token",
    "mixer_blocks.#.channel_norm": "blocks.#.norm_channel",
    "mixer_blocks.#.channel_mixing_layer.0": "blocks.#.channel_mixer.up",
    "mixer_blocks.#.channel_mixing_layer.2": "blocks.#.channel_mixer.down",
    "mixer_blocks.#.channel_mixing_layer.3": "blocks.#.channel_mixer.down",
    "output_layer": "head",
}
NUMBER = "(0|[1-9][0-9]{0,3})"
"""Of a block or a head, in one form only: a pattern."""
_MIXER = re.compile(rf"mixer_blocks\.{NUMBER}\.token_mixing_layer\.(.*)")
_PART = re.compile(rf"(mixer_heads|proj_head)\.{NUMBER}\.(\w+)")
_NORM = re.compile(rf"^blocks\.{NUMBER}\.norm_token")
_TAPS = 8
Tensors = dict[str, Tensor]


def from_structured(state: Mapping[str, Tensor], mixer: str | None, source: str) -> LanguageModel:
    """Builds a model from a state dict with these names; the dict stays as it is.

    Args:
        state: `input_layer.weight`, `mixer_blocks.0.token_mixing_layer.weight`, ...
        mixer: which of `HELD` it is, with one head or several, with projections or without.
        source: for errors.

    Raises:
        ModelError: no mixer is named, or names or shapes are those of another model.
    """
    if mixer not in HELD:
        raise ModelError(
            f"{'--mixer is missing' if mixer is None else f'--mixer {mixer}'}: {source} holds "
            "structured mixers, whose names and shapes are the same whatever their numbers mean; "
            f"give one of {', '.join(HELD)}"
        )
    mixers, others = split_mixers(state, _MIXER)
    weights = {  # the norm of a mixer goes with it to the next block
        _NORM.sub(lambda match: f"blocks.{int(match[1]) + 1}.norm_token", name): tensor
        for name, tensor in translate(others, _NAMES, source).items()
    }
    count = len(mixers)
    if state[EMBEDDING].dim() != 2 or [*sorted(mixers)] != [*range(count)] or not count:
        raise ModelError(
            f"{source} has no {EMBEDDING} and mixer_blocks.0, 1, ... without a gap, as matrices"
        )
    entries, context = [], 0
    for number in range(count):
        about = f"{source}: mixer_blocks.{number}.token_mixing_layer.*"
        entry, context, tensors = _token_mixer(mixers[number], mixer, about)
        entries.append(entry)
        weights |= {f"blocks.{number + 1}.token_mixer.{name}": t for name, t in tensors.items()}
    _add_zeros(weights, count, state[EMBEDDING].shape[1], context)
    return build_published(weights, ["row(bias=false)", *entries], context, "silu", source)


def split_mixers(
    state: Mapping[str, Tensor], pattern: re.Pattern[str]
) -> tuple[dict[int, Tensors], Tensors]:
    """The tensors of each block's mixer, by its number and their names in it, and all others."""
    mixers: dict[int, Tensors] = {}
    others: Tensors = {}
    for name, tensor in state.items():
        if match := pattern.fullmatch(name):
            mixers.setdefault(int(match[1]), {})[match[2]] = tensor
        else:
            others[name] = tensor
    return mixers, others


def build_published(
    weights: Tensors, entries: list[str], context: int, channel_mixer: str, source: str
) -> LanguageModel:
    """The model of weights by our names, of published code: without a norm before the head.

    `entries` are the mixers of its blocks.
    """
    vocabulary, width = weights["embedding.weight"].shape
    up = weights.get("blocks.0.channel_mixer.up.weight")
    config = ModelConfig(
        vocab_size=vocabulary,
        context=context,
        d_model=width,
        n_layers=len(entries),
        mixers=tuple(entries) if len(set(entries)) > 1 else (entries[0],),
        channel_mixer=channel_mixer,
        d_ff=None if up is None else len(torch.atleast_1d(up)),
        final_norm=False,
        tied=is_tied(weights),
        init="reference",
    )
    return build_model(config, weights, source)


def _add_zeros(weights: Tensors, count: int, width: int, context: int) -> None:
    """Adds the token mixer of the first block, the feed-forward part of the last, and norms."""
    weights["blocks.0.token_mixer.parts.0.values"] = torch.zeros(1, 1, context)
    for norm in ("blocks.0.norm_token", f"blocks.{count}.norm_channel"):
        weights |= {f"{norm}.weight": torch.ones(width), f"{norm}.bias": torch.zeros(width)}
    before, last = (f"blocks.{number}.channel_mixer." for number in (count - 1, count))
    weights |= {
        last + name.removeprefix(before): torch.zeros_like(tensor)
        for name, tensor in weights.items()
        if name.startswith(before)
    }


def _token_mixer(held: Tensors, mixer: str, source: str) -> tuple[str, int, Tensors]:
    """The pattern's entry, the context and the tensors of one block's mixer."""
    heads, tensors = _heads(held, source)
    _check_heads(heads, mixer, source)
    values = torch.stack([head["weight"] for head in heads], 1)  # (K, heads, L)
    tensors["bias"] = torch.stack([head["bias"] for head in heads])
    size = 1 if mixer == "combined" else 2 * len(values) - 1
    entry = f"{mixer}(heads={len(heads)}, size={size}, projections={'o_proj.weight' in tensors}"
    if mixer == "toeplitz":
        return f"{entry})", values.shape[2], tensors | {"values": _on_both_sides(values)}
    half = len(heads) // 2
    parts = {"combined": values.split(1), "mixed": values.split(half or 1, 1)}.get(mixer, [values])
    for number, part in enumerate(parts):
        tensors[f"parts.{number}.values"] = _on_both_sides(part)
    if "decay_value" in heads[0]:
        entry += ", decay=published"
        rates = torch.stack([head["decay_value"].flatten() for head in heads], 1)
        if mixer != "combined":  # there one for rows and one for columns; else the last is used
            rates = rates[-1].view(len(parts), -1)
        tensors |= {f"parts.{number}.rate": rate for number, rate in enumerate(rates)}
    return f"{entry})", values.shape[2], tensors


def _check_heads(heads: list[Tensors], mixer: str, source: str) -> None:
    """Raises ModelError where a head's tensors are not of the shapes that the mixer has."""
    weight = heads[0]["weight"]
    rows, length = weight.shape if weight.dim() == 2 else (0, 0)
    shapes = {"weight": (rows, length), "bias": (length,)}
    rates = 2 if rows > 1 else 1
    if (
        any(head[name].shape != shape for head in heads for name, shape in shapes.items())
        or any(head["decay_value"].numel() != rates for head in heads if "decay_value" in head)
        or not (rows == 2 if mixer == "combined" else 1 <= rows <= _TAPS)
        or (mixer == "mixed" and len(heads) % 2)
        or (mixer == "toeplitz" and "decay_value" in heads[0])
    ):
        found = sorted({(name, tuple(t.shape)) for head in heads for name, t in head.items()})
        raise ModelError(
            f"{source} has {len(heads)} heads of {found}; allowed with --mixer {mixer}: weight "
            f"(K, L), K up to {_TAPS}, bias (L,) and decay_value of 1 number, or 2 where K is "
            "above 1; combined has K = 2, mixed heads in pairs, toeplitz no decay"
        )


def _heads(held: Tensors, source: str) -> tuple[list[Tensors], Tensors]:
    """The weight, bias and perhaps decay of each head, and the projections of all together."""
    parts: dict[str, dict[int, Tensors]] = {"mixer_heads": {}, "proj_head": {}}
    others: Tensors = {}
    for name, tensor in held.items():
        if match := _PART.fullmatch(name):
            parts[match[1]].setdefault(int(match[2]), {})[match[3]] = tensor
        else:
            others[name] = tensor
    heads, inward = ([of[number] for number in sorted(of)] for of in parts.values())
    outward = {name.removeprefix("out_proj."): others.pop(name)
               for name in [*others] if name.startswith("out_proj.")}  # fmt: skip
    if not heads:
        heads, others = [others], {}
    plain = {"weight", "bias"}
    alike = all(head.keys() == heads[0].keys() for head in heads)
    projected = [outward.keys(), *(of.keys() for of in inward)]
    matched = len({tuple((name, t.shape) for name, t in sorted(of.items())) for of in inward}) <= 1
    if (
        others
        or not (alike and matched)
        or heads[0].keys() - {"decay_value"} != plain
        or projected not in ([set()], [plain] * (1 + len(heads)))
    ):
        raise ModelError(
            f"{source} is {', '.join(sorted(held)[:8])}, ...; allowed: weight and bias, or "
            "mixer_heads.0.weight and so on, each with decay_value or none, and all with "
            "proj_head.0 and so on and out_proj, or none. Heads of one module are not read, as "
            "nothing says whether they are projected, and expanded mixers are not"
        )
    if not inward or not inward[0]["weight"].dim():
        return heads, {}
    joined = {f"in_proj.{name}": torch.cat([of[name] for of in inward]) for name in plain}
    return heads, joined | {f"o_proj.{name}": tensor for name, tensor in outward.items()}


def _on_both_sides(taps: Tensor) -> Tensor:
    """K taps `(K, heads, L)`, of which the last is a feature's own, as 2 K - 1 around it."""
    return torch.cat([taps, torch.zeros_like(taps[1:])])
