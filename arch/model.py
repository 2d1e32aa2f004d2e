"""Block and LanguageModel: the model, its parts, and the initial values of all tensors."""

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from arch.config import ModelConfig
from arch.errors import ModelError
from arch.mixers import Depthwise, Structured, TokenMixer, Triangle, build_mixer, share_rotary
from arch.patterns import parse


class GELU(nn.Module):
    """W2 gelu(W1 x + b1) + b2."""

    def __init__(self, d_model: int, d_ff: int, *, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., D) -> (..., D)`."""
        return self.down(F.gelu(self.up(x)))


class SiLU(GELU):
    """W2 silu(W1 x + b1) + b2."""

    def forward(self, x: Tensor) -> Tensor:
        """`(..., D) -> (..., D)`."""
        return self.down(F.silu(self.up(x)))


class SwiGLU(nn.Module):
    """W2 (silu(W1 x) * W3 x) (Shazeer, 2002.05202)."""

    def __init__(self, d_model: int, d_ff: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, d_ff, bias=bias)
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., D) -> (..., D)`."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


CHANNEL_MIXERS: dict[str, type[nn.Module]] = {"gelu": GELU, "silu": SiLU, "swiglu": SwiGLU}


def build_channel_mixer(entry: str, d_model: int, d_ff: int) -> nn.Module:
    """Builds `gelu`, `silu(bias=false)`, `swiglu`, ...

    Raises:
        ModelError: unknown name or argument, or more than one.
    """
    (cls, arguments), *more = parse(entry, CHANNEL_MIXERS, "channel_mixer")
    if more:
        raise ModelError(f"channel_mixer {entry!r} joins {1 + len(more)}; a block has one")
    return cls(d_model, d_ff, **arguments)


class State(NamedTuple):
    """What `prefix` remembers: one state a block, and how many positions they hold."""

    blocks: tuple[Any, ...]
    length: int


class Block(nn.Module):
    """x + token_mixer(norm_token(x)), then x + channel_mixer(norm_channel(x)).

    The four parts and `combine` are all there is, so that an eval can recompose them: without a
    residual, without a norm, the mixer alone. In training both mixers' outputs have `dropout`.
    What a part gives goes through `site`, which an eval may replace to change it.
    """

    dropout: float = 0.0

    def __init__(
        self,
        norm_token: nn.Module,
        token_mixer: TokenMixer,
        norm_channel: nn.Module,
        channel_mixer: nn.Module,
    ) -> None:
        super().__init__()
        self.norm_token = norm_token
        self.token_mixer = token_mixer
        self.norm_channel = norm_channel
        self.channel_mixer = channel_mixer

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self.combine(x, self.site("mixer", self.token_mixer(self.norm_token(x))))

    def site(self, part: str, x: Tensor) -> Tensor:
        """The output `(B, T, D)` of a part as it is: of the `mixer`, the `stream`, the `block`."""
        return x

    def prefix(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """As `TokenMixer.prefix`, for the whole block."""
        mixed, state = self.token_mixer.prefix(self.norm_token(x), state)
        return self.combine(x, mixed), state

    def step(self, x: Tensor, state: Any) -> Tensor:
        """As `TokenMixer.step`, for the whole block."""
        return self.combine(x, self.token_mixer.step(self.norm_token(x), state))

    def combine(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The block's output from its input and its token mixer's output, all `(B, T, D)`."""
        x = self.site("stream", x + self._drop(mixed))
        return self.site("block", x + self._drop(self.channel_mixer(self.norm_channel(x))))

    def _drop(self, output: Tensor) -> Tensor:
        return F.dropout(output, self.dropout) if self.training and self.dropout else output


Kept = TypeVar("Kept")
WEIGHTS = "weights"  # the key under which `keep` knows the weights that its results are of
_KEPT: "WeakKeyDictionary[LanguageModel, dict[Hashable, Any]]" = WeakKeyDictionary()


class LanguageModel(nn.Module):
    """Embedding, blocks, norm, head.

    Layer 0 is the embedding; layer l is the output of block l. With `checkpoint_activations` a
    backward pass keeps the input of each block alone, and computes the rest of the block again:
    less memory for a third more work.
    """

    checkpoint_activations: bool = False
    padding_rows: int = 0
    """Rows of the embedding that no token had and that were left out."""
    padding_head: dict[str, Tensor]
    """The weight of the head in these rows, and its bias; only where there are some."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        D = config.d_model
        self.embedding = nn.Embedding(config.vocab_rows, D)
        self.blocks = nn.ModuleList(
            Block(
                _norm(config),
                build_mixer(config.mixers[i % len(config.mixers)], D, config.context),
                _norm(config),
                build_channel_mixer(config.channel_mixer, D, config.hidden_width),
            )
            for i in range(config.n_layers)
        )
        self.norm = _norm(config) if config.final_norm else nn.Identity()
        self.head = nn.Linear(D, config.vocab_rows, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        share_rotary(self)
        initialise(self, config)

    @property
    def kept(self) -> dict[Hashable, Any]:
        """Results of `keep`. They go with the model; copies and files of it do not have them."""
        return _KEPT.setdefault(self, {})

    def keep(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """A result of the weights alone, computed when it is first asked for.

        Other weights, loaded or stepped to, drop all that was kept.
        """
        weights = [(t.data_ptr(), t._version) for t in self.state_dict(keep_vars=True).values()]
        if self.kept.get(WEIGHTS) != weights:
            self.kept.clear()
            self.kept[WEIGHTS] = weights
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def embed(self, tokens: Tensor) -> Tensor:
        """`(B, T)` token ids to `(B, T, D)`: a row of the embedding for each, and nothing else."""
        return self.embedding(tokens)

    def with_positions(self, embeddings: Tensor, start: int = 0) -> Tensor:
        """What the first block reads, for embeddings at positions start ... start + T.

        The embeddings themselves: position enters in the token mixers. A wrapped model with a
        learnt embedding of positions adds it here.
        """
        return embeddings

    def hidden(self, embeddings: Tensor, layer: int) -> Tensor:
        """The stream after block `layer`, `(B, T, D) -> (B, T, D)`; layer 0 is the input itself.

        Raises:
            ModelError: T above the context, or a layer that does not exist.
        """
        x = self._enter(embeddings, 0, layer)
        again = self.checkpoint_activations and torch.is_grad_enabled()
        for block in self._run(layer):
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """The last block's output to next-token logits, `(B, T, D) -> (B, T, V)`."""
        return self.head(self.norm(hidden))[..., : self.config.vocab_size]

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids `(B, T)` to next-token logits `(B, T, V)`."""
        return self.logits(self.hidden(self.embed(tokens), len(self.blocks)))

    def prefix(
        self, embeddings: Tensor, state: State | None = None, layer: int | None = None
    ) -> tuple[Tensor, State]:
        """Consumes T more positions, `(P, T, D)`: the stream after a block, and the new state.

        Without a state the positions are the first, and all blocks run when no layer is given; with
        one, as many as it holds.

        Raises:
            ModelError: past the context, or a layer that does not exist.
        """
        start, layer = self._resume(state, layer)
        x, after = self._enter(embeddings, start, layer), []
        for i, block in enumerate(self._run(layer)):
            x, remembered = block.prefix(x, state.blocks[i] if state else None)
            after.append(remembered)
        return x, State(tuple(after), start + embeddings.shape[1])

    def step(
        self, embeddings: Tensor, state: State | None = None, layer: int | None = None
    ) -> Tensor:
        """Looks at S further positions of N candidates, `(N, S, D)`, remembering nothing.

        The state's batch P divides N; the candidates of one prefix stand together. With no state
        the candidates are whole sequences.

        Raises:
            ModelError: past the context, or a layer that does not exist.
        """
        start, layer = self._resume(state, layer)
        if state is None:
            return self.hidden(embeddings, layer)
        x = self._enter(embeddings, start, layer)
        for block, remembered in zip(self._run(layer), state.blocks, strict=True):
            x = block.step(x, remembered)
        return x

    def _run(self, layer: int) -> Iterator[Block]:
        for i in range(layer):
            yield self.blocks[i]  # pyright: ignore[reportReturnType]

    def _resume(self, state: State | None, layer: int | None) -> tuple[int, int]:
        if state is not None:
            return state.length, len(state.blocks)
        return 0, len(self.blocks) if layer is None else layer

    def _enter(self, embeddings: Tensor, start: int, layer: int) -> Tensor:
        end = start + embeddings.shape[1]
        if end > self.config.context:
            raise ModelError(
                f"{end} positions are longer than the model's context of {self.config.context}"
            )
        if not 0 <= layer <= len(self.blocks):
            raise ModelError(
                f"layer {layer} does not exist; allowed: 0 (the embedding) to {len(self.blocks)}"
            )
        return embeddings if layer == 0 else self.with_positions(embeddings, start)


def _norm(config: ModelConfig) -> nn.Module:
    kind = nn.RMSNorm if config.norm == "rmsnorm" else nn.LayerNorm
    return kind(config.d_model, eps=config.norm_eps)


@torch.no_grad()
def embedding_scale(model: LanguageModel) -> float:
    """Standard deviation of the embedding's entries: the model's own unit of length."""
    return float(model.embedding.weight.float().std())


HOLDERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict,
           parametrize.ParametrizationList)  # fmt: skip
"""Modules that hold parameters and modules of their parent's, which says how they start."""


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Fills every parameter in place; draws from torch's global generator.

    `reference` is what maskedmixers does: PyTorch's own defaults. `default` is the best known for
    each kind: a model of attention alone starts small, as Llama does; one with a masked convolution
    starts as the reference. There a small embedding would drown in the first mixer's output, which
    no projection scales down: such a model stalls at the frequencies of single tokens
    (docs/benchmarks/learning-cpu.md).

    | tensor | small | reference |
    |---|---|---|
    | embedding | N(0, 0.02), or embedding_std | N(0, 1), or embedding_std |
    | linear weight | N(0, 0.02) | U(+-1/sqrt(fan in)) |
    | linear weight into the residual stream | N(0, 0.02 / sqrt(2 n_layers)) | U(+-1/sqrt(fan in)) |
    | linear bias | 0 | U(+-1/sqrt(fan in)) |
    | triangle, lower part; its bias | none is there | U(+-1/sqrt(fan in)) |
    | triangle, upper part | none is there | 0 |
    | anything else: norm scale, parametrized, ... | its module's `reset_parameters` | the same |

    The fan-in of a linear layer is its input width, that of a triangle its context, times the
    number of triangles where a stack is summed. A tied head is the embedding; by `default` that
    starts at 1/sqrt(d_model) where it would at 1, so that the first logits are of unit size. What a
    `reset_parameters` of somebody else's class says comes last, and holds.

    Raises:
        ModelError: a parameter that is not in the table, of a module without `reset_parameters`
            (or PyTorch's `_reset_parameters`).
    """
    convolves = any(isinstance(module, Triangle | Structured) for module in model.modules())
    small = config.init == "default" and not convolves
    for name, module in model.named_modules():
        if type(module) in HOLDERS:  # its parent fills what it holds
            continue
        if parametrize.is_parametrized(module):  # its weights are no tensors to fill
            _reset(name, module)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(
                module.weight, std=config.embedding_std or _embedding_std(config, small)
            )
        elif isinstance(module, Triangle):
            bound = module.fan_in**-0.5
            nn.init.uniform_(module.weight, -bound, bound).tril_()
            _start_bias(module.bias, bound)
        elif isinstance(module, nn.Linear):
            if config.tied and name == "head":
                continue
            bound = module.in_features**-0.5
            if small:
                into_stream = name.endswith(("o_proj", "down"))
                std = 0.02 / math.sqrt(2 * config.n_layers) if into_stream else 0.02
                nn.init.normal_(module.weight, std=std)
            else:
                nn.init.uniform_(module.weight, -bound, bound)
            _start_bias(module.bias, 0.0 if small else bound)
        else:
            _reset(name, module)
    for module in reversed([*model.modules()]):  # children first
        reset: Any = getattr(module, "reset_parameters", None)
        if reset and reset.__module__.partition(".")[0] not in ("arch", "torch"):
            reset()


def _reset(name: str, module: nn.Module) -> None:
    """Lets a module fill its own parameters, and those in its lists of them."""
    if held := _names_held(module):
        reset: Any = getattr(module, "reset_parameters", None)
        reset = reset or getattr(module, "_reset_parameters", None)  # as PyTorch's own attention
        if reset is None:
            raise ModelError(
                f"{name}: nothing says how {', '.join(held)} of {type(module).__name__} "
                "starts; give the class a method reset_parameters(self)"
            )
        reset()


def _names_held(module: nn.Module) -> list[str]:
    """The names of a module's own parameters, and of those in its lists of them."""
    names = [name for name, _ in module.named_parameters(recurse=False)]
    for name, child in module.named_children():
        if type(child) in HOLDERS:
            names += [f"{name}.{inner}" for inner in _names_held(child)]
    return names


def matrices(module: nn.Module) -> list[nn.Parameter]:
    """What an optimiser treats as a matrix over features: it decays, and Muon may take it.

    The weights of linear layers, and any parameter with two dimensions that a module keeps itself.
    Not embeddings, depthwise convolutions, what triangles and structured mixers keep, nor complex.
    """
    kinds = nn.Embedding | Triangle | Depthwise | Structured
    parts = [part for part in module.modules() if not isinstance(part, kinds)]
    weights = dict.fromkeys(p for part in parts for p in part.parameters(recurse=False))
    embeddings = {m.weight for m in module.modules() if isinstance(m, nn.Embedding)}
    return [p for p in weights if p.dim() == 2 and p.is_floating_point() and p not in embeddings]


def _embedding_std(config: ModelConfig, small: bool) -> float:
    if small:
        return 0.02
    return config.d_model**-0.5 if config.tied and config.init == "default" else 1.0


def _start_bias(bias: nn.Parameter | None, bound: float) -> None:
    if bias is not None:
        nn.init.uniform_(bias, -bound, bound)
