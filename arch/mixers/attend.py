"""Causal attention over whole sequences and after a remembered prefix, whatever projects to it."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from arch.history import History
from arch.mixers.base import TokenMixer


class KeyValue(NamedTuple):
    """The keys (positions already in them) and values so far, each `(P, T, kv_heads, width)`."""

    keys: History
    values: History


class CausalAttention(TokenMixer):
    """softmax(scale * Q K^T, no future) V for any projections: a subclass brings those.

    There may be fewer key heads than query heads (grouped-query attention, Ainslie et al.,
    2305.13245).
    """

    scale: float

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `(B, T, heads, width)` of positions start ... start + T."""
        raise NotImplementedError

    def merge(self, y: Tensor) -> Tensor:
        """The heads' outputs, side by side in `(B, T, heads * width)`, to `(B, T, D)`."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        return self._attend(*self.project(x, 0))

    def unmasked(self, x: Tensor) -> Tensor:
        """As `forward`, every position seeing all: what a causal model was never trained for."""
        return self._attend(*self.project(x, 0), causal=False)

    def prefix(self, x: Tensor, state: KeyValue | None = None) -> tuple[Tensor, KeyValue]:
        """The state is the key/value cache."""
        if state is None:
            q, k, v = self.project(x, 0)
            return self._attend(q, k, v), KeyValue(History(k), History(v))
        q, k, v = self.project(x, state.keys.length)
        after = KeyValue(state.keys.append(k), state.values.append(v))
        return self._attend(q, after.keys.values, after.values.values), after

    def step(self, x: Tensor, state: KeyValue) -> Tensor:
        """Attends to the shared cache and to the candidate's own positions.

        All candidates of a prefix meet its keys in one product; nothing is expanded to N.
        """
        q, k, v = self.project(x, state.keys.length)
        (N, S), past_k, past_v = q.shape[:2], state.keys.values, state.values.values
        P, t, kv_heads, width = past_k.shape
        q = q.reshape(P, N // P, S, kv_heads, -1, width) * self.scale
        k, v = (new.reshape(P, N // P, S, kv_heads, width) for new in (k, v))
        # letters: p prefix, n candidate, s and z new positions, t old ones, h key head, g its group
        old = torch.einsum("pnshgd,pthd->pnhgst", q, past_k)
        new = torch.einsum("pnshgd,pnzhd->pnhgsz", q, k)
        if S > 1:
            future = torch.ones(S, S, dtype=torch.bool, device=q.device).triu(1)
            new = new.masked_fill(future, -torch.inf)
        weights = torch.cat([old, new], dim=-1).softmax(dim=-1)
        y = torch.einsum("pnhgst,pthd->pnshgd", weights[..., :t], past_v)
        y = y + torch.einsum("pnhgsz,pnzhd->pnshgd", weights[..., t:], v)
        return self.merge(y.reshape(N, S, -1))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
        """Queries of the last S positions over keys and values of all T, `(B, T, ...)`."""
        S, T = q.shape[1], k.shape[1]
        seen = None
        if causal and 1 < S < T:  # one alone may see all, and for all of them SDPA has a flag
            seen = torch.ones(S, T, dtype=torch.bool, device=q.device).tril(T - S)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=seen,
            is_causal=causal and S == T,
            scale=self.scale,
            enable_gqa=q.shape[2] != k.shape[2],
        )
        return self.merge(y.transpose(1, 2).flatten(2))
