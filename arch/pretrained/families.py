"""Three families of transformers models, whose parts make blocks of ours; nothing is copied.

Attention is ours, around the model's own projections: the causal mask is always on, one prefix
serves many candidates without a copy.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from arch.errors import ModelError
from arch.mixers import CausalAttention, rotate
from arch.model import Block, LanguageModel
from arch.pretrained.decoder import describe_pretrained


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


class WrappedAttention(CausalAttention):
    """Our attention between a model's own projections.

    `inputs` are the projections to queries, keys and values, or one to all three; `output` leads
    back to the stream. `scale` is of the scores; `rotation` puts positions into queries and keys,
    where the family does. `window` is as in `CausalAttention`.
    """

    def __init__(
        self,
        inputs: list[nn.Module],
        output: nn.Module,
        heads: int,
        width: int,
        scale: float,
        rotation: nn.Module | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.window = window
        self.inputs, self.output, self.rotation = nn.ModuleList(inputs), output, rotation
        self.heads, self.width, self.scale = heads, width, scale

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `(B, T, heads, width)`."""
        projected = [layer(x) for layer in self.inputs]
        parts = projected if len(projected) == 3 else projected[0].chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.width)) for part in parts)
        return q, k, v

    def rotate(self, x: Tensor, start: int) -> Tensor:
        """Queries or keys `(B, T, heads, width)` with positions start ... start + T in them."""
        return x if self.rotation is None else self.rotation(x, start)

    def merge(self, y: Tensor) -> Tensor:
        """`(B, T, heads * width) -> (B, T, D)`."""
        return self.output(y)


class Family(NamedTuple):
    """Where a family keeps its parts: names within the model, its body, a layer, its attention."""

    body: str
    embedding: str
    layers: str
    norm: str
    norms: tuple[str, str]  # before the token mixer, and before the channel mixer
    attention: str
    inputs: str
    output: str
    channel: str
    positions: str = ""


QKV = "q_proj k_proj v_proj"
GPT = ("transformer", "wte", "h", "ln_f")
LLAMA = Family(
    *("model", "embed_tokens", "layers", "norm"), ("input_layernorm", "post_attention_layernorm"),
    *("self_attn", QKV, "o_proj", "mlp"),
)  # fmt: skip
FAMILIES = {
    "gpt2": Family(*GPT, ("ln_1", "ln_2"), "attn", "c_attn", "c_proj", "mlp", "wpe"),
    "llama": LLAMA,
    "mistral": LLAMA,
}
HARMLESS = (
    "transformers.utils.output_capturing",
    "transformers.modeling_utils",
    "torch.utils.module_tracker",
)
"""Where the hooks stand that transformers leaves in a model that once gave hidden states, or whose
gradients are checkpointed; and those by which torch counts operations."""
HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def find_changes(part: nn.Module) -> list[int]:
    """The numbers of hooks and of another forward that may change what a module computes.

    Hooks of its gradients are among them. Those of `HARMLESS` change nothing, nor do Accelerate's
    own, which move tensors to their devices, nor what compiling puts around a module.
    """
    own = vars(part).get("forward")
    moves = hasattr(part, "_hf_hook") or hasattr(part, "_orig_mod")
    compiled = hasattr(own, "_torchdynamo_orig_callable")
    hooks = _number_hooks([getattr(part, f"_{name}") for name in HOOKS])
    return hooks if own is None or moves or compiled else [*hooks, id(own)]


def find_global_hooks() -> list[int]:
    """The numbers of hooks that torch runs for every module."""
    return _number_hooks([getattr(nn.modules.module, f"_global_{name}") for name in HOOKS])


def _number_hooks(tables: list[dict[int, Any]]) -> list[int]:
    """The numbers of the hooks in tables of torch, which are given once, without those harmless."""
    return [
        number
        for table in tables
        for number, hook in table.items()
        if getattr(hook, "__module__", "") not in HARMLESS
    ]


def has_own_attention(model: nn.Module) -> bool:
    """Whether a model of transformers attends by a function that its user registered."""
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if name is None:
        return False
    from transformers import AttentionInterface

    function = AttentionInterface().get(name)  # none: a model's own
    function = getattr(function, "func", function)
    return getattr(function, "__module__", "transformers").partition(".")[0] != "transformers"


class PretrainedModel(LanguageModel):
    """A transformers causal model of known parts as a `LanguageModel`, around the same weights.

    In evaluation mode: the dropout of the wrapped attention is left out.

    Raises:
        ModelError: a family, or a variant of one, whose parts are not known.
    """

    def __init__(self, model: Any) -> None:
        nn.Module.__init__(self)  # the parts are there already: build none
        config, kind = model.config, model.config.model_type
        if kind not in FAMILIES:
            raise ModelError(f"the parts of {kind!r} are not known; known: {', '.join(FAMILIES)}")
        if has_own_attention(model):
            raise ModelError(f"the attention {config._attn_implementation!r} is not known")
        names = FAMILIES[kind]
        rope = config.rope_parameters["rope_type"] if names is LLAMA else ""
        if rope in ("dynamic", "longrope"):
            raise ModelError(
                f"rope_type is {rope!r}, whose angles depend on the length of the text; allowed: "
                "default, linear, llama3, yarn"
            )
        body = model.get_submodule(names.body)
        halves = HalvesRotation(body.rotary_emb) if names is LLAMA else None

        def block(layer: Any) -> Block:
            attention = getattr(layer, names.attention)
            mixer = WrappedAttention(
                [getattr(attention, name) for name in names.inputs.split()],
                getattr(attention, names.output),
                config.num_attention_heads,
                attention.head_dim,
                getattr(attention, "scaling", attention.head_dim**-0.5),
                halves,
                # A Llama has no window, whatever its configuration says.
                config.sliding_window if kind == "mistral" else None,
            )
            norm_token, norm_channel = (getattr(layer, name) for name in names.norms)
            return Block(norm_token, mixer, norm_channel, getattr(layer, names.channel))

        self.embedding, self.norm = getattr(body, names.embedding), getattr(body, names.norm)
        self.blocks = nn.ModuleList(map(block, getattr(body, names.layers)))
        self.positions = getattr(body, names.positions) if names.positions else None
        self.head = model.lm_head
        self.config = describe_pretrained(self, kind, config.max_position_embeddings)
        self.eval()

    def with_positions(self, embeddings: Tensor, start: int = 0) -> Tensor:
        """Adds the learnt positions start ... start + T, where the family has them."""
        if self.positions is None:
            return embeddings
        return embeddings + self.positions.weight[start : start + embeddings.shape[1]]
