"""Five families of transformers models, whose parts make blocks of ours; nothing is copied.

Attention is ours, around the model's own projections: the causal mask is always on, one prefix
serves many candidates without a copy, and layers in 8 bit work as they are.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from arch.errors import ModelError
from arch.mixers import CausalAttention, rotate
from arch.model import Block

QKV = "q_proj k_proj v_proj"


class ParallelBlock(Block):
    """x + token_mixer(norm_token(x)) + channel_mixer(norm_channel(x)): GPT-J's, with one norm.

    Both mixers read the block's input, so there is no stream between the two.
    """

    def combine(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The block's output from its input and its token mixer's output, all `(B, T, D)`."""
        return x + mixed + self.channel_mixer(self.norm_channel(x))


class HalvesRotation(nn.Module):
    """Rotary positions of the Llama family, by the model's own table of angles."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: Tensor, start: int) -> Tensor:
        """Rotates queries or keys `(B, T, heads, width)` of positions start ... start + T."""
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        cos, sin = self.table(x, positions[None])
        return rotate(x, cos[0, :, None], sin[0, :, None])


class PairsRotation(nn.Module):
    """Rotary positions of GPT-J: neighbouring features turn together, a head's last ones stay."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, start: int) -> Tensor:
        """As `HalvesRotation.forward`; the table holds sines, then cosines, by position."""
        turned, rest = x.tensor_split([self.table.shape[1]], dim=-1)
        angles = self.table[start : start + x.shape[1], None].to(x.dtype)
        sin, cos = angles.chunk(2, dim=-1)
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        return torch.cat([turned, rest], dim=-1)


class WrappedAttention(CausalAttention):
    """Our attention between a model's own projections.

    `inputs` are the projections to queries, keys and values, or one to all three; `output` leads
    back to the stream. `scale` is of the scores; `rotation` puts positions into queries and keys,
    where the family does.
    """

    def __init__(
        self,
        inputs: list[nn.Module],
        output: nn.Module,
        heads: int,
        width: int,
        scale: float,
        rotation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.inputs, self.output, self.rotation = nn.ModuleList(inputs), output, rotation
        self.heads, self.width, self.scale = heads, width, scale

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `(B, T, heads, width)`."""
        projected = [layer(x) for layer in self.inputs]
        parts = projected if len(projected) == 3 else projected[0].chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.width)) for part in parts)
        if self.rotation is not None:
            q, k = self.rotation(q, start), self.rotation(k, start)
        return q, k, v

    def merge(self, y: Tensor) -> Tensor:
        return self.output(y)


class Anatomy(NamedTuple):
    """The parts of a model."""

    embedding: nn.Embedding
    blocks: list[Block]
    norm: nn.Module  # before the head, or identity
    head: nn.Module
    context: int  # the most positions for which the parts compute what the model does
    positions: nn.Embedding | None = None  # a learnt vector for each, where the family has them
    first_position: int = 0  # the row of `positions` for the first token


def anatomy(model: Any) -> Anatomy:
    """Takes a transformers causal model apart.

    Raises:
        ModelError: a family, or a variant of one, whose parts are not known.
    """
    family = model.config.model_type
    if family not in FAMILIES:
        raise ModelError(f"the parts of {family!r} are not known; known: {', '.join(FAMILIES)}")
    return FAMILIES[family](model)


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
