"""Where five families of transformers models keep the parts that our contract asks for.

Each function takes a loaded causal model apart; nothing is copied.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from arch.errors import ModelError
from arch.model import Block
from arch.wrapped import HalvesRotation, PairsRotation, ParallelBlock, WrappedAttention

QKV = "q_proj k_proj v_proj"


@dataclass(frozen=True)
class Anatomy:
    """The parts of a model.

    Attributes:
        embedding: token ids to vectors.
        blocks: in order.
        norm: before the head, or identity.
        head: to logits.
        context: the most positions for which the parts compute what the model does.
        positions: a learnt vector for each position, where the family has them.
        first_position: the row of `positions` for the first token.
    """

    embedding: nn.Embedding
    blocks: list[Block]
    norm: nn.Module
    head: nn.Module
    context: int
    positions: nn.Embedding | None = None
    first_position: int = 0


def anatomy(model: Any) -> Anatomy:
    """Takes a transformers causal model apart.

    Raises:
        ModelError: a family, or a variant of one, that cannot be wrapped.
    """
    check_family(model.config.model_type)
    return FAMILIES[model.config.model_type](model)


def check_family(family: object) -> None:
    """Whether a transformers `model_type` can be wrapped.

    Raises:
        ModelError: it cannot.
    """
    if family not in FAMILIES:
        raise ModelError(
            f"models of type {family!r} cannot be wrapped; allowed: {', '.join(sorted(FAMILIES))}"
        )


def _mixer(
    attention: Any, inputs: str, output: str, heads: int, rotation: nn.Module | None = None
) -> WrappedAttention:
    """Attention, by the names of its projections."""
    scaling = getattr(attention, "scaling", attention.head_dim**-0.5)
    return WrappedAttention(
        [getattr(attention, name) for name in inputs.split()],
        getattr(attention, output),
        heads,
        attention.head_dim,
        scaling,
        rotation,
    )


def _gpt2(model: Any) -> Anatomy:
    def block(layer: Any) -> Block:
        mixer = _mixer(layer.attn, "c_attn", "c_proj", layer.attn.num_heads)
        return Block(layer.ln_1, mixer, layer.ln_2, layer.mlp)

    body = model.transformer
    return Anatomy(
        embedding=body.wte,
        blocks=[block(layer) for layer in body.h],
        norm=body.ln_f,
        head=model.lm_head,
        context=model.config.n_positions,
        positions=body.wpe,
    )


def _opt(model: Any) -> Anatomy:
    config, body = model.config, model.model.decoder
    _require(config, "do_layer_norm_before", True)
    _require(config, "word_embed_proj_dim", config.hidden_size)

    def block(layer: Any) -> Block:
        mixer = _mixer(layer.self_attn, QKV, "out_proj", layer.self_attn.num_heads)
        channel_mixer = nn.Sequential(layer.fc1, layer.activation_fn, layer.fc2)
        return Block(layer.self_attn_layer_norm, mixer, layer.final_layer_norm, channel_mixer)

    return Anatomy(
        embedding=body.embed_tokens,
        blocks=[block(layer) for layer in body.layers],
        norm=body.final_layer_norm or nn.Identity(),
        head=model.lm_head,
        context=config.max_position_embeddings,
        positions=body.embed_positions,
        first_position=body.embed_positions.offset,
    )


def _gptj(model: Any) -> Anatomy:
    def block(layer: Any) -> Block:
        rotation = PairsRotation(layer.attn.embed_positions)
        mixer = _mixer(layer.attn, QKV, "out_proj", layer.attn.num_attention_heads, rotation)
        return ParallelBlock(layer.ln_1, mixer, layer.ln_1, layer.mlp)

    body = model.transformer
    return Anatomy(
        embedding=body.wte,
        blocks=[block(layer) for layer in body.h],
        norm=body.ln_f,
        head=model.lm_head,
        context=model.config.n_positions,
    )


def _llama(model: Any) -> Anatomy:
    config, body = model.config, model.model
    kind = config.rope_parameters["rope_type"]
    if kind in ("dynamic", "longrope"):
        raise ModelError(
            f"rope_type is {kind!r}, whose angles depend on the length of the text; allowed: "
            "default, linear, llama3, yarn"
        )
    rotation = HalvesRotation(body.rotary_emb)

    def block(layer: Any) -> Block:
        mixer = _mixer(layer.self_attn, QKV, "o_proj", config.num_attention_heads, rotation)
        return Block(layer.input_layernorm, mixer, layer.post_attention_layernorm, layer.mlp)

    # Within its window, a model with a sliding window is like any other; further we do not go.
    window = getattr(config, "sliding_window", None) or config.max_position_embeddings
    return Anatomy(
        embedding=body.embed_tokens,
        blocks=[block(layer) for layer in body.layers],
        norm=body.norm,
        head=model.lm_head,
        context=min(config.max_position_embeddings, window),
    )


FAMILIES = {"gpt2": _gpt2, "gptj": _gptj, "llama": _llama, "mistral": _llama, "opt": _opt}


def _require(config: Any, name: str, allowed: object) -> None:
    if (value := getattr(config, name)) != allowed:
        raise ModelError(f"{config.model_type}: {name} is {value!r}; allowed: {allowed!r}")
