"""Causal self-attention with rotary positions and grouped keys, as in Llama."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arch.errors import ModelError
from arch.history import History
from arch.mixers.base import TokenMixer


class KeyValue(NamedTuple):
    """The keys (already rotated) and values so far, each `(P, T, kv_heads, D/heads)`."""

    keys: History
    values: History


class Attention(TokenMixer):
    """Multi-head attention; rotary embedding (Su et al., 2104.09864), halves rotated as in Llama.

    Args:
        d_model: width D of the input and output.
        context: the largest T.
        heads: number of query heads; divides D, and D/heads is even.
        kv_heads: number of key and value heads; divides heads; as many as heads when not given.
        rope_base: wavelength base of the rotation.
        bias: whether the four projections have biases.

    Raises:
        ModelError: heads that do not divide.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        d_model: int,
        context: int,
        *,
        heads: int = 4,
        kv_heads: int | None = None,
        rope_base: float = 10000.0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        if heads < 1 or d_model % heads or (d_model // heads) % 2:
            raise ModelError(
                f"attention: heads={heads} must divide d_model={d_model} into even parts"
            )
        if heads % self.kv_heads:
            raise ModelError(f"attention: kv_heads={self.kv_heads} must divide heads={heads}")
        self.head_width = d_model // heads
        self.q_proj = nn.Linear(d_model, d_model, bias=bias)
        self.k_proj = nn.Linear(d_model, self.kv_heads * self.head_width, bias=bias)
        self.v_proj = nn.Linear(d_model, self.kv_heads * self.head_width, bias=bias)
        self.o_proj = nn.Linear(d_model, d_model, bias=bias)
        frequency = rope_base ** -(torch.arange(0, self.head_width, 2).float() / self.head_width)
        angle = torch.arange(context).float()[:, None] * frequency.repeat(2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self._whole(*self._project(x, 0))

    def prefix(self, x: Tensor, state: KeyValue | None = None) -> tuple[Tensor, KeyValue]:
        """The state is the key/value cache."""
        if state is None:
            q, k, v = self._project(x, 0)
            return self._whole(q, k, v), KeyValue(History(k), History(v))
        q, k, v = self._project(x, state.keys.length)
        after = KeyValue(state.keys.append(k), state.values.append(v))
        return self._after(q, k, v, state), after

    def step(self, x: Tensor, state: KeyValue) -> Tensor:
        """Attends to the shared cache and to the candidate's own positions."""
        return self._after(*self._project(x, state.keys.length), state)

    def _project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, each (B, T, heads, head_width)."""
        T = x.shape[1]
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_width))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = self.cos[start : start + T, None], self.sin[start : start + T, None]
        return _rotate(q, cos, sin), _rotate(k, cos, sin), v

    def _whole(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            is_causal=True,
            enable_gqa=self.kv_heads != self.heads,
        )
        return self.o_proj(y.transpose(1, 2).flatten(2))

    def _after(self, q: Tensor, k: Tensor, v: Tensor, state: KeyValue) -> Tensor:
        """Attention of N x S new positions over P shared prefixes and over themselves.

        All candidates of a prefix meet its keys in one product; nothing is expanded to N.
        """
        (N, S), past_k, past_v = q.shape[:2], state.keys.values, state.values.values
        P, t = past_k.shape[:2]
        groups, shape = self.heads // self.kv_heads, (P, N // P, S, self.kv_heads, -1, q.shape[-1])
        # letters: p prefix, n candidate, s and z new positions, t old ones, h key head, g its group
        q = q.view(P, N // P, S, self.kv_heads, groups, -1) * self.head_width**-0.5
        k, v = k.view(shape)[:, :, :, :, 0], v.view(shape)[:, :, :, :, 0]
        old = torch.einsum("pnshgd,pthd->pnhgst", q, past_k)
        new = torch.einsum("pnshgd,pnzhd->pnhgsz", q, k)
        if S > 1:
            future = torch.ones(S, S, dtype=torch.bool, device=q.device).triu(1)
            new = new.masked_fill(future, -torch.inf)
        weights = torch.cat([old, new], dim=-1).softmax(dim=-1)
        y = torch.einsum("pnhgst,pthd->pnshgd", weights[..., :t], past_v)
        y = y + torch.einsum("pnhgsz,pnzhd->pnshgd", weights[..., t:], v)
        return self.o_proj(y.reshape(N, S, -1))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)
