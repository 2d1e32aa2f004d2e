"""Checkpoints of the reference code, maskedmixers (Badger, 2409.01482).

It masks its convolutions in place before each use, so what it saves after a step of the optimiser
is not causal: the weights are masked on the way in. Flat, expanded and kernel-k mixers are told
apart by their shapes. Its softmax mixers have the shapes of flat ones: know what you have.
"""

import re
from collections.abc import Mapping

from torch import Tensor

from arch.errors import ModelError
from arch.formats.structured import NUMBER, build_published, split_mixers
from arch.model import LanguageModel
from arch.storage.weights import translate

_CONV = re.compile(rf"mixerblocks\.{NUMBER}\.conv\.(.*)")
_REFERENCE_NAMES = {  # theirs and ours, see renamed; the convolutions are for _token_mixer
    "wte": "embedding",
    "mixerblocks.#.seq_layernorm": "blocks.#.norm_token",
    "mixerblocks.#.patch_layernorm": "blocks.#.norm_channel",
    "mixerblocks.#.patch_ff.0": "blocks.#.channel_mixer.up",
    "mixerblocks.#.patch_ff.2": "blocks.#.channel_mixer.down",
    "lm_head": "head",
}


def from_reference(state: Mapping[str, Tensor], source: str = "the state dict") -> LanguageModel:
    """Builds a model from a state dict with the reference's names; the dict stays as it is.

    Raises:
        ModelError: names or shapes of another model.
    """
    convolutions, others = split_mixers(state, _CONV)
    if "wte.weight" not in state or state["wte.weight"].dim() != 2 or not convolutions:
        raise ModelError(
            f"{source} has no wte.weight and mixerblocks.0.*, as matrices: not a reference mixer"
        )
    mixers, contexts, weights = [], [], translate(others, _REFERENCE_NAMES, source)
    for i in range(max(convolutions) + 1):
        about = f"{source}: mixerblocks.{i}.conv.*"
        mixer, context, tensors = _token_mixer(convolutions.get(i, {}), about)
        mixers.append(mixer)
        contexts.append(context)
        weights |= {f"blocks.{i}.token_mixer.{name}": t for name, t in tensors.items()}
    channel_mixer = f"gelu(bias={'blocks.0.channel_mixer.up.bias' in weights})"
    return build_published(weights, mixers, contexts[0], channel_mixer, source)


def _token_mixer(conv: dict[str, Tensor], source: str) -> tuple[str, int, dict[str, Tensor]]:
    """The pattern's entry, the context and the tensors of one block's convolutions."""
    shapes = {name: tuple(t.shape) for name, t in conv.items() if not name.endswith("bias")}
    biases = {name for name in conv if name.endswith("bias")}
    match shapes:
        case {"weight": (L, columns, size), **rest} if (
            columns == L and not rest and biases <= {"bias"}
        ):
            taps = conv["weight"].permute(2, 0, 1)
            if size == 1:
                entry, tensors = "flat", {"mix.weight": taps[0]}
            else:
                entry, tensors = f"kernel(size={size})", {"mix.weight": taps}
            if biases:
                tensors["mix.bias"] = conv["bias"]
        case {"0.weight": (hidden, L, 1), "2.weight": (out, inner, 1), **rest} if (
            (out, inner) == (L, hidden)
            and hidden % L == 0
            and not rest
            and biases in (set(), {"0.bias", "2.bias"})
        ):
            expand, contract = conv["0.weight"][..., 0], conv["2.weight"][..., 0]
            if hidden == L:
                entry, expand, contract = "expanded(factor=1)", expand[None], contract[None]
            else:
                entry = f"rectangular(factor={hidden // L})"
            tensors = {"expand.weight": expand, "contract.weight": contract}
            if biases:
                tensors["expand.bias"] = conv["0.bias"].reshape(expand.shape[:-1])
                tensors["contract.bias"] = conv["2.bias"]
        case _:
            raise ModelError(
                f"{source} has the shapes {shapes} and the biases {sorted(biases)}; allowed: "
                "weight (L, L, k), or 0.weight (n L, L, 1) and 2.weight (L, n L, 1)"
            )
    return entry if biases else _without_bias(entry), L, tensors


def _without_bias(entry: str) -> str:
    return f"{entry[:-1]}, bias=false)" if entry.endswith(")") else f"{entry}(bias=false)"
