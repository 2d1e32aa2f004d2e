"""Gated linear attention as a recurrence: a state of fixed size, and no softmax."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arch import ModelError
from arch.mixers import TokenMixer

SLOW = 16.0  # the gate is sigmoid^(1/16), so that a state starts by forgetting slowly
EPSILON = 1e-5  # of the heads' normalisation


class Recurrence(NamedTuple):
    """What a recurrence remembers, `(P, heads, width, width)`, and of how many positions."""

    state: Tensor
    length: int


class Recurrent(TokenMixer):
    """S_t = a_t S_(t-1) + k_tᵀ v_t and y_t = q_t S_t, one decay a_t for a head and position.

    The form of Mamba-2 (2405.21060) with the gates of gated linear attention (2312.06635).
    """

    def __init__(self, d_model: int, context: int, *, heads: int = 4) -> None:
        super().__init__()
        if heads < 1 or d_model % heads:
            raise ModelError(f"Recurrent: heads={heads} must divide d_model={d_model}")
        self.heads, self.width = heads, d_model // heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.decay = nn.Linear(d_model, heads)
        self.gate = nn.Linear(d_model, d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        q, k, v, decay = self._project(x)
        return self._merge(x, self._within(q, k, v, decay))

    def prefix(self, x: Tensor, state: Recurrence | None = None) -> tuple[Tensor, Recurrence]:
        """The state is the recurrence's own."""
        q, k, v, decay = self._project(x)
        y = self._within(q, k, v, decay)
        kept = (decay[..., -1:] - decay).exp()  # of each position's share, at the last
        after = torch.einsum("bht,bhtk,bhtv->bhkv", kept.to(k), k, v)
        if state is not None:
            carried = decay.exp().to(q)
            y = y + torch.einsum("bht,bhtk,bhkv->bhtv", carried, q, state.state)
            after = after + carried[..., -1, None, None] * state.state
        return self._merge(x, y), Recurrence(after, x.shape[1] + (state.length if state else 0))

    def step(self, x: Tensor, state: Recurrence) -> Tensor:
        """All candidates of a prefix meet its state in one product."""
        q, k, v, decay = self._project(x)
        y, P = self._within(q, k, v, decay), len(state.state)
        carried = (decay.exp().to(q)[..., None] * q).unflatten(0, (P, -1))
        return self._merge(
            x, y + torch.einsum("pnhtk,phkv->pnhtv", carried, state.state).flatten(0, 1)
        )

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values `(B, heads, T, width)`; sums of log-decays, `(B, heads, T)`."""
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        exact = torch.promote_types(x.dtype, torch.float32)
        decay = F.logsigmoid(self.decay(x).to(exact)).transpose(1, 2) / SLOW
        return q * self.width**-0.5, k, v, decay.cumsum(dim=-1)

    def _within(self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
        """What comes from the given positions, `(B, heads, T, width)`."""
        T = q.shape[2]
        past = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
        apart = (decay[..., :, None] - decay[..., None, :]).masked_fill(~past, -torch.inf)
        return (q @ k.transpose(-1, -2) * apart.exp().to(q)) @ v

    def _merge(self, x: Tensor, y: Tensor) -> Tensor:
        y = F.rms_norm(y, (self.width,), eps=EPSILON).transpose(1, 2).flatten(2)
        return self.o_proj(y * F.silu(self.gate(x)))
