"""Causal attention, over whole sequences and after a cache: for any projections, and Llama's."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arch.errors import LARGEST, ModelError, show_value
from arch.mixers.base import TokenMixer

QK_EPS = 1e-5
"""Added under the root of the norms of queries and keys; as `ModelConfig.norm_eps` by default."""


TABLE = 2**27
"""Angles of a rotary table, at most: half a GB, of a context of a million at 128 features."""


PRODUCTS = 512
"""Up to this length attention is two products and a softmax where it is compiled for a CPU. There
it trains faster than torch's own in bfloat16, measured at 256 positions; the scores are whole in
memory, which bounds it."""


class KeyValue(NamedTuple):
    """The keys (positions already in them) and values so far, each `(P, T, kv_heads, width)`."""

    keys: Tensor
    values: Tensor


class CausalAttention(TokenMixer):
    """softmax(scale * Q K^T, no future) V for any projections: a subclass brings those.

    There may be fewer key heads than query heads (grouped-query attention, Ainslie et al.,
    2305.13245). A query sees the last `window` positions, its own among them, where there is one.
    """

    scale: float
    window: int | None = None

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `(B, T, heads, width)`, positions not in them yet."""
        raise NotImplementedError

    def rotate(self, x: Tensor, start: int) -> Tensor:
        """Queries or keys `(B, T, heads, width)` with positions start ... start + T in them."""
        return x

    def unrotate(self, x: Tensor, start: int) -> Tensor:
        """The inverse of `rotate`, which turns pairs of features, scaled alike at all positions."""
        with torch.enable_grad():
            zeros = torch.zeros_like(x, requires_grad=True)
            (back,) = torch.autograd.grad(self.rotate(zeros, start), zeros, x)  # the transpose
        scale = self.rotate(back, start).norm() / x.norm()  # 1, but where a family scales
        return back / scale

    def project_at(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `(B, T, heads, width)` of positions start ... start + T."""
        q, k, v = self.project(x)
        return self.rotate(q, start), self.rotate(k, start), v

    def merge(self, y: Tensor) -> Tensor:
        """The heads' outputs, side by side in `(B, T, heads * width)`, to `(B, T, D)`."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self._attend(*self.project_at(x, 0))

    def unmasked(self, x: Tensor) -> Tensor:
        """As `forward`, every position seeing all: what a causal model was never trained for."""
        return self._attend(*self.project_at(x, 0), causal=False)

    def prefix(self, x: Tensor, state: KeyValue | None = None) -> tuple[Tensor, KeyValue]:
        """The state is the key/value cache."""
        if state is None:
            q, k, v = self.project_at(x, 0)
            return self._attend(q, k, v), KeyValue(k, v)
        q, k, v = self.project_at(x, state.keys.shape[1])
        pairs = zip(state, (k, v), strict=True)
        after = KeyValue(*(torch.cat(pair, dim=1) for pair in pairs))
        return self._attend(q, *after), after

    def step(self, x: Tensor, state: KeyValue) -> Tensor:
        """Attends to the shared cache and to the candidate's own positions.

        All candidates of a prefix meet its keys in one product; nothing is expanded to N.
        """
        past_k, past_v = state
        q, k, v = self.project_at(x, past_k.shape[1])
        N, S = q.shape[:2]
        P, t, kv_heads, width = past_k.shape
        q = q.reshape(P, N // P, S, kv_heads, -1, width) * self.scale
        k, v = (new.reshape(P, N // P, S, kv_heads, width) for new in (k, v))
        # letters: p prefix, n candidate, s and z new positions, t old ones, h key head, g its group
        old = torch.einsum("pnshgd,pthd->pnhgst", q, past_k)
        new = torch.einsum("pnshgd,pnzhd->pnhgsz", q, k)
        scores = torch.cat([old, new], dim=-1)
        if S > 1 or self.window is not None:
            scores = scores.masked_fill(~self.visible(S, t + S, q.device), -torch.inf)
        weights = scores.softmax(dim=-1)
        y = torch.einsum("pnhgst,pthd->pnshgd", weights[..., :t], past_v)
        y = y + torch.einsum("pnhgsz,pnzhd->pnshgd", weights[..., t:], v)
        return self.merge(y.reshape(N, S, -1))

    def visible(self, S: int, T: int, device: torch.device) -> Tensor:
        """Which of T positions the last S see, `(S, T)`: no later one, none before the window."""
        seen = torch.ones(S, T, dtype=torch.bool, device=device).tril(T - S)
        return seen if self.window is None else seen.triu(T - S - self.window + 1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
        """Queries of the last S positions over keys and values of all T, `(B, T, ...)`."""
        S, T = q.shape[1], k.shape[1]
        seen = None
        cut = self.window is not None and self.window < T
        compiled = torch.compiler.is_compiling() and q.device.type == "cpu"
        by_products = compiled and causal and S == T <= PRODUCTS
        # One may see all, and for all of them SDPA has a flag.
        if by_products or (causal and (cut or 1 < S < T)):
            seen = self.visible(S, T, q.device)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if by_products and seen is not None:
            y = attend_by_products(q, k, v, seen, self.scale)
        else:
            y = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=seen,
                is_causal=causal and seen is None and S == T,
                scale=self.scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        return self.merge(y.transpose(1, 2).flatten(2))


class Rotary(nn.Module):
    """The rotary embedding's table: the angle of each feature at each position, in float32."""

    cos: Tensor
    sin: Tensor

    def __init__(self, context: int, width: int, base: float) -> None:
        super().__init__()
        self.settings = (context, width, base)
        device = torch.get_default_device()
        if device.type == "meta":  # a model is built without memory for its weights
            device = torch.device("cpu")
        for name, table in zip(("cos", "sin"), self._tables(), strict=True):
            self.register_buffer(name, table.to(device), persistent=False)

    def _tables(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each feature's angle at each position, computed on the CPU."""
        context, width, base = self.settings
        frequency = 1 / base ** (torch.arange(0, width, 2, device="cpu").float() / width)
        angle = torch.arange(context, device="cpu").float()[:, None] * frequency.repeat(2)
        return angle.cos(), angle.sin()

    def forward(self, x: Tensor, start: int) -> Tensor:
        """Rotates queries or keys `(B, T, heads, width)` of positions start ... start + T."""
        here = slice(start, start + x.shape[1])
        return rotate(x, self.cos[here, None], self.sin[here, None])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Rotary":
        """Keeps the angles in float32 when the rest is cast: bfloat16 blurs the far positions.

        No file has them: they stay where the rest loses its numbers, as by `to_empty`.
        """
        exact = self._tables() if self.cos.is_meta else (self.cos, self.sin)
        super()._apply(fn, recurse)
        self.cos, self.sin = (table.to(self.cos.device) for table in exact)
        return self


def share_rotary(model: nn.Module) -> None:
    """Lets all layers of a model with the same angles read one table."""
    tables: dict[tuple[int, int, float], Rotary] = {}
    for module in model.modules():
        if type(module) is Attention:  # another class may change its table
            module.rotary = tables.setdefault(module.rotary.settings, module.rotary)


class Attention(CausalAttention):
    """Multi-head attention; rotary embedding (Su et al., 2104.09864), halves rotated as in Llama.

    `heads` divide D into even parts; `kv_heads` divide heads, as many as heads when not given.
    `rope_base` is the wavelength base of the rotation. With `qk_norm` each head's queries and keys
    go through an RMSNorm before the rotation, as in Qwen3 (2505.09388); its scale is learnt and
    shared by the heads.

    Raises:
        ModelError: heads that do not divide.
    """

    def __init__(
        self,
        d_model: int,
        context: int,
        *,
        heads: int = 4,
        kv_heads: int | None = None,
        rope_base: float = 10000.0,
        bias: bool = False,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        if heads < 1 or d_model % heads or (d_model // heads) % 2:
            raise ModelError(
                f"attention: heads={heads} must divide d_model={d_model} into even parts"
            )
        self.heads, self.kv_heads = heads, heads if kv_heads is None else kv_heads
        if self.kv_heads < 1 or heads % self.kv_heads:
            raise ModelError(f"attention: kv_heads={self.kv_heads} must divide heads={heads}")
        if not 1 <= rope_base < LARGEST:
            given = show_value(rope_base)
            raise ModelError(
                f"attention: rope_base={given} must be above 0: from 1 to {LARGEST:.2g}"
            )
        if context * (d_model // heads) > TABLE:
            raise ModelError(
                f"attention: a context of {context} needs a table of {context} x "
                f"{d_model // heads} angles; allowed: up to {TABLE} of them"
            )
        self.rope_base = rope_base
        self.head_width = d_model // heads
        self.scale = self.head_width**-0.5
        self.q_proj = nn.Linear(d_model, d_model, bias=bias)
        self.k_proj = nn.Linear(d_model, self.kv_heads * self.head_width, bias=bias)
        self.v_proj = nn.Linear(d_model, self.kv_heads * self.head_width, bias=bias)
        self.o_proj = nn.Linear(d_model, d_model, bias=bias)
        self.qk_norm = qk_norm
        if qk_norm:
            self.q_norm = nn.RMSNorm(self.head_width, eps=QK_EPS)
            self.k_norm = nn.RMSNorm(self.head_width, eps=QK_EPS)
        self.rotary = Rotary(context, self.head_width, rope_base)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each `(B, T, heads, width)`."""
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_width))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.qk_norm:
            exact = self.q_norm.weight.dtype  # under autocast the projections are shorter
            q, k = self.q_norm(q.to(exact)).to(v.dtype), self.k_norm(k.to(exact)).to(v.dtype)
        return q, k, v

    def rotate(self, x: Tensor, start: int) -> Tensor:
        """Queries or keys `(B, T, heads, width)` with positions start ... start + T in them."""
        return self.rotary(x, start)

    def merge(self, y: Tensor) -> Tensor:
        """`(B, T, heads * width) -> (B, T, D)`."""
        return self.o_proj(y)


def attend_by_products(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Attention whose scores are whole in memory, `(B, heads, S, width)`; seen is `(S, T)`.

    Keys and values `(B, kv_heads, T, width)` serve a group of heads each.
    """
    groups = q.unflatten(1, (k.shape[1], -1))
    scores = (groups * scale) @ k[:, :, None].transpose(-1, -2)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1).to(v.dtype)
    return (weights @ v[:, :, None]).flatten(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (i, i + width/2) of x `(..., width)` by its angle, halves in `cos`, `sin`."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)
