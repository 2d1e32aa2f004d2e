"""The models of remnant for transformers: attention, masked convolutions, hybrids of both.

Needs torch and transformers 5 alone. A model keeps no cache: each pass runs the whole text. What it
would compute wrongly it refuses: a cache, padding before a text, a text beyond the context.
"""

import ast
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutput

from .configuration_remnant import RemnantConfig
from .structured_remnant import STRUCTURED, Repeat, Structured, convolve, convolve_heads

WORDS = {"true": True, "false": False, "none": None}


def read_pattern(entry: str) -> list[tuple[str, dict[str, Any]]]:
    """The terms of `attention(heads=4)+flat` as names and keyword arguments."""

    def split(node: Any) -> list[Any]:
        return [*split(node.left), node.right] if isinstance(node, ast.BinOp) else [node]

    def read(node: Any) -> Any:
        value = node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
        return WORDS.get(value.lower(), value) if isinstance(value, str) else value

    terms = []
    for term in split(ast.parse(entry.strip(), mode="eval").body):
        name, given = (term.func, term.keywords) if isinstance(term, ast.Call) else (term, [])
        terms.append((read(name), {argument.arg: read(argument.value) for argument in given}))
    return terms


class Triangle(nn.Module):
    """Learnt weights, `(*stack, rows, columns)`: of a row those up to the diagonal; and biases."""

    def __init__(
        self, rows: int, columns: int, bias: bool, stack: tuple[int, ...] = (), summed: bool = False
    ) -> None:
        super().__init__()
        self.fan_in = columns * (math.prod(stack) if summed else 1)
        self.weight = nn.Parameter(torch.empty(*stack, rows, columns))
        shape = (rows,) if summed else (*stack, rows)
        self.bias = nn.Parameter(torch.empty(shape)) if bias else None

    def first(self, T: int) -> tuple[Tensor, Tensor | None]:
        """Weights `(*stack, T, T)` and biases of the first T positions."""
        return self.weight[..., :T, :T], None if self.bias is None else self.bias[..., :T]


class Flat(nn.Module):
    """tril(W) X + b."""

    def __init__(self, D: int, T: int, *, bias: bool = True) -> None:
        super().__init__()
        self.mix = Triangle(T, T, bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return convolve(x, *self.mix.first(x.shape[1]))


class Parallel(nn.Module):
    """sum over p of act(tril(W_p) X + b_p)."""

    def __init__(
        self, D: int, T: int, *, branches: int = 2, activation: str | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        self.activation = activation
        self.mix = Triangle(T, T, bias, (branches,))

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        weight, bias = self.mix.first(x.shape[1])
        if self.activation != "gelu":
            return convolve(x, weight.sum(0), None if bias is None else bias.sum(0))
        y = x.new_zeros(())
        for p, w in enumerate(weight):
            y = y + F.gelu(convolve(x, w, None if bias is None else bias[p]))
        return y


class Kernel(nn.Module):
    """sum over k of tril(W_k) X[:, :, d + k - (size - 1) // 2], + b: the features slide past."""

    def __init__(self, D: int, T: int, *, size: int = 4, bias: bool = True) -> None:
        super().__init__()
        self.size = size
        self.mix = Triangle(T, T, bias, (size,), summed=True)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        weight, bias = self.mix.first(x.shape[1])
        before = (self.size - 1) // 2
        padded = F.pad(x, (before, self.size - 1 - before))
        y = x.new_zeros(())
        for k, w in enumerate(weight):
            y = y + convolve(padded[..., k : k + x.shape[-1]], w, bias if k == 0 else None)
        return y


class Headed(nn.Module):
    """[tril(W_1) X A_1 + b_1, ..., tril(W_h) X A_h + b_h] W_o, D/heads features a head."""

    def __init__(
        self, D: int, T: int, *, heads: int = 4, bias: bool = True, projection_bias: bool = False
    ) -> None:
        super().__init__()
        self.in_proj = nn.Linear(D, D, bias=projection_bias)
        self.mix = Triangle(T, T, bias, (heads,))
        self.o_proj = nn.Linear(D, D, bias=projection_bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self.o_proj(convolve_heads(self.in_proj(x), *self.mix.first(x.shape[1])))


class Expanded(nn.Module):
    """sum over r of tril(V_r) gelu(tril(U_r) X + c_r), + b: a hidden layer over the sequence."""

    def __init__(self, D: int, T: int, *, factor: int = 2, bias: bool = True) -> None:
        super().__init__()
        self.expand = Triangle(T, T, bias, (factor,))
        self.contract = Triangle(T, T, bias, (factor,), summed=True)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        expand, inner = self.expand.first(x.shape[1])
        contract, bias = self.contract.first(x.shape[1])
        if expand.dim() == 2:  # a rectangular one
            expand, contract = expand[None], contract[None]
            inner = None if inner is None else inner[None]
        y = x.new_zeros(())
        for r, (u, v) in enumerate(zip(expand, contract, strict=True)):
            hidden = F.gelu(convolve(x, u, None if inner is None else inner[r]))
            y = y + convolve(hidden, v, bias if r == 0 else None)
        return y


class Rectangular(Expanded):
    """As `Expanded` of factor 1; what is beyond the square of its triangles has no effect."""

    def __init__(self, D: int, T: int, *, factor: int = 2, bias: bool = True) -> None:
        nn.Module.__init__(self)
        self.expand = Triangle(factor * T, T, bias)
        self.contract = Triangle(T, factor * T, bias)


class Depthwise(nn.Module):
    """Y[t] = sum over k < size of w_k * X[t - k], a weight for each feature and distance."""

    def __init__(self, D: int, T: int, *, size: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, D))

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        y = x * self.weight[0]
        for k in range(1, min(len(self.weight), x.shape[1])):
            y = y + F.pad(x[:, :-k], (0, 0, k, 0)) * self.weight[k]
        return y


class Attention(nn.Module):
    """Multi-head attention with rotary positions; keys may be fewer than queries, and normed."""

    def __init__(
        self,
        D: int,
        T: int,
        *,
        heads: int = 4,
        kv_heads: int | None = None,
        rope_base: float = 10000.0,
        bias: bool = False,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        self.width, self.rope_base = D // heads, rope_base
        kv_width = (kv_heads or heads) * self.width
        self.q_proj = nn.Linear(D, D, bias=bias)
        self.k_proj = nn.Linear(D, kv_width, bias=bias)
        self.v_proj = nn.Linear(D, kv_width, bias=bias)
        self.o_proj = nn.Linear(D, D, bias=bias)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(self.width, eps=1e-5) if qk_norm else nn.Identity() for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (project(x).unflatten(-1, (-1, self.width)) for project in projections)
        q, k = self._rotate(self.q_norm(q)), self._rotate(self.k_norm(k))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        grouped = q.shape[1] != k.shape[1]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.o_proj(y.transpose(1, 2).flatten(2))

    def _rotate(self, x: Tensor) -> Tensor:
        """Turns pairs (i, i + width/2) of `(B, T, heads, width)` by angles of its positions."""
        even = torch.arange(0, self.width, 2, device=x.device).float()
        frequency = 1 / self.rope_base ** (even / self.width)
        positions = torch.arange(x.shape[1], device=x.device).float()
        angle = positions[:, None, None] * frequency.repeat(2)
        first, second = x.chunk(2, dim=-1)
        return (x * angle.cos() + torch.cat([-second, first], dim=-1) * angle.sin()).to(x.dtype)


class SideBySide(nn.Module):
    """Several token mixers on the same input, their outputs summed."""

    def __init__(self, mixers: list[nn.Module]) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(mixers)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        y = self.mixers[0](x)
        for mixer in self.mixers[1:]:
            y = y + mixer(x)
        return y


MIXERS: dict[str, type[nn.Module]] = {
    "attention": Attention, "depthwise": Depthwise, "expanded": Expanded, "flat": Flat,
    "headed": Headed, "identity": nn.Identity, "kernel": Kernel, "parallel": Parallel,
    "rectangular": Rectangular, **STRUCTURED,
}  # fmt: skip


def make_norm(config: RemnantConfig) -> nn.Module:
    """The norm of a configuration."""
    kind = nn.RMSNorm if config.norm == "rmsnorm" else nn.LayerNorm
    return kind(config.hidden_size, eps=config.norm_eps)


class ChannelMixer(nn.Module):
    """W2 gelu(W1 x), W2 silu(W1 x), or by `swiglu` W2 (silu(W1 x) * W3 x), with biases or none."""

    def __init__(self, D: int, d_ff: int, kind: str, bias: bool | None = None) -> None:
        super().__init__()
        self.kind, gated = kind, kind == "swiglu"
        bias = not gated if bias is None else bias
        self.gate = nn.Linear(D, d_ff, bias=bias) if gated else None
        self.up = nn.Linear(D, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, D, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        if self.gate is None:
            activation = F.gelu if self.kind == "gelu" else F.silu
            return self.down(activation(self.up(x)))
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(GradientCheckpointingLayer):
    """x + token_mixer(norm_token(x)), then x + channel_mixer(norm_channel(x))."""

    def __init__(self, config: RemnantConfig, pattern: str) -> None:
        super().__init__()
        D, context = config.hidden_size, config.max_position_embeddings
        mixers = [MIXERS[name](D, context, **given) for name, given in read_pattern(pattern)]
        ((name, given),) = read_pattern(config.channel_mixer)
        self.norm_token = make_norm(config)
        self.token_mixer = mixers[0] if len(mixers) == 1 else SideBySide(mixers)
        self.norm_channel = make_norm(config)
        self.channel_mixer = ChannelMixer(D, config.intermediate_size, name, **given)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        x = x + self.token_mixer(self.norm_token(x))
        return x + self.channel_mixer(self.norm_channel(x))


class RemnantForCausalLM(PreTrainedModel, GenerationMixin):
    """Embedding, blocks, norm, head; token ids to next-token logits."""

    config_class = RemnantConfig
    supports_gradient_checkpointing = True
    _input_embed_layer = "embedding"
    _no_split_modules = ["Block"]  # noqa: RUF012 - as transformers has them
    _tied_weights_keys = {"head.weight": "embedding.weight"}  # noqa: RUF012

    def __init__(self, config: RemnantConfig) -> None:
        super().__init__(config)
        D, mixers = config.hidden_size, config.mixers
        self.embedding = nn.Embedding(config.vocab_size, D)
        self.blocks = nn.ModuleList(
            Block(config, mixers[i % len(mixers)]) for i in range(config.num_hidden_layers)
        )
        self.norm = make_norm(config) if config.final_norm else nn.Identity()
        self.head = nn.Linear(D, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Puts another head in its place."""
        self.head = new_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Token ids `(B, T)` to next-token logits `(B, T, V)`.

        Args:
            input_ids: token ids.
            attention_mask: `(B, T)`; zeros may stand behind a text alone.
            labels: ids whose loss is computed, `(B, T)`; -100 is left out.
            logits_to_keep: of so many last positions, or of these; 0: of all.
            **kwargs: `output_hidden_states`: gives the embeddings and the stream after each block,
                the last one normed. Others have no effect.

        Raises:
            ValueError: a cache, padding before a text's end, positions or embeddings of one's own,
                labels of some positions, no ids, or more of them than the context.
        """
        if input_ids is None:
            raise ValueError("input_ids: missing; this model reads nothing else")
        self._refuse(input_ids, attention_mask, kwargs)
        if labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError("labels: of all positions; leave out logits_to_keep")
        wanted = kwargs.get("output_hidden_states")
        wanted = self.config.output_hidden_states if wanted is None else wanted
        x, streams = self.embedding(input_ids), []
        for block in self.blocks:
            streams += [x] if wanted else []
            x = block(x)
        x = self.norm(x)
        wanted_positions = (
            slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        )
        logits, loss = self.head(x[:, wanted_positions]), None
        if labels is not None:
            counted = {n: v for n, v in kwargs.items() if n == "num_items_in_batch"}
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **counted)
        return CausalLMOutput(
            loss=loss, logits=logits, hidden_states=(*streams, x) if wanted else None
        )

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The inputs of one step; a ValueError for padding, after which no text goes on."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ValueError("attention_mask: has a 0; generate from texts of one length, unpadded")
        mixin: Any = super()
        return mixin.prepare_inputs_for_generation(
            input_ids, attention_mask=attention_mask, **kwargs
        )

    def _refuse(self, ids: Tensor, mask: Tensor | None, given: dict[str, Any]) -> None:
        """Raises a ValueError for what would be computed wrongly."""
        T, context = ids.shape[1], self.config.max_position_embeddings
        caches = [name for name in ("cache", "past_key_values") if given.get(name) is not None]
        if caches or given.get("use_cache"):
            name = caches[0] if caches else "use_cache=True"
            raise ValueError(f"{name}: this model keeps no cache; leave it out, or use_cache=False")
        for name in ("inputs_embeds", "shift_labels"):
            if given.get(name) is not None:
                raise ValueError(f"{name}: this model does not read it; give input_ids and labels")
        if context < T:
            raise ValueError(f"input_ids: {T} tokens; allowed: up to the context of {context}")
        positions = given.get("position_ids")
        if positions is not None and not bool((positions == torch.arange(T).to(positions)).all()):
            raise ValueError("position_ids: allowed: 0, 1, 2, ...; leave them out")
        if mask is not None and mask.shape != ids.shape:
            shapes = tuple(mask.shape), tuple(ids.shape)
            raise ValueError(f"attention_mask: is {shapes[0]}; allowed: {shapes[1]}, as input_ids")
        text = None if mask is None else (mask == 1).cumprod(1)
        if text is not None and not bool((mask == text).all() and text[:, 0].all()):
            raise ValueError("attention_mask: a 0 before a text's end; allowed: zeros behind it")

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draws what no file gives, as PyTorch does: uniform, within the root of the fan-in."""
        if isinstance(module, Triangle):
            bound = module.fan_in**-0.5
            nn.init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, Depthwise):
            nn.init.zeros_(module.weight)
        elif isinstance(module, Structured | Repeat):
            module.reset_parameters()
        else:
            super()._init_weights(module)
