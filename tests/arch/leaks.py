"""Token mixers that break a promise, each in one way."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from arch.mixers import Attention, TokenMixer


class Leak(TokenMixer):
    """A mixer without settings; `step` is as wrong as `forward`."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__()

    def step(self, x: Tensor, state) -> Tensor:
        before = state.repeat_interleave(len(x) // len(state), 0)
        return self(torch.cat([before, x], dim=1))[:, -x.shape[1] :]


class Mean(Leak):
    def forward(self, x):
        return x + x.mean(1, keepdim=True)


class UpperTriangle(Leak):
    def __init__(self, d_model: int, context: int) -> None:
        super().__init__(d_model, context)
        self.weight = nn.Parameter(torch.empty(context, context))

    def reset_parameters(self):
        nn.init.uniform_(self.weight, -1, 1)

    def forward(self, x):
        T = x.shape[1]
        return self.weight[:T, :T].triu() @ x


class OffByOne(Leak):
    def forward(self, x):
        return F.pad(x[:, 1:], (0, 0, 0, 1))


class CircularFFT(Leak):
    def forward(self, x):
        T = x.shape[1]
        decay = 0.5 ** torch.arange(T).float()[:, None]
        return torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.fft.rfft(decay, dim=0), n=T, dim=1)


class BlockSummary(Leak):
    def forward(self, x):
        means = [part.mean(1, keepdim=True).expand_as(part) for part in x.split(128, dim=1)]
        return x + torch.cat(means, dim=1)


class NormOverPositions(Leak):
    def forward(self, x):
        return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, correction=0).clamp(min=0.1)


class ClosedGate(Mean):
    def __init__(self, d_model: int, context: int) -> None:
        super().__init__(d_model, context)
        self.gate = nn.Parameter(torch.empty(()))

    def reset_parameters(self):
        nn.init.zeros_(self.gate)

    def forward(self, x):
        return x + self.gate * super().forward(x)


class AcrossBatch(Leak):
    def forward(self, x):
        return x + x.mean(0, keepdim=True)


class BatchStatistics(Leak):
    """Sees the future in training mode only."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__(d_model, context)
        self.norm = nn.BatchNorm1d(d_model)

    def forward(self, x):
        return self.norm(x.flatten(0, 1)).view_as(x)


class InHalfPrecision(Leak):
    """Sees the future where the product is in bfloat16."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__(d_model, context)
        self.mix = nn.Linear(d_model, d_model)

    def forward(self, x):
        y = self.mix(x)
        return y if y.dtype == torch.float32 else y.flip(1)


class OfLength(Leak):
    """Each output is divided by the length of the text."""

    def forward(self, x):
        return x.cumsum(1) / x.shape[1]


LEAKS = (
    Mean, UpperTriangle, OffByOne, CircularFFT, BlockSummary, NormOverPositions, ClosedGate,
    AcrossBatch, BatchStatistics, InHalfPrecision, OfLength,
)  # fmt: skip


class Unstarted(Leak):
    """Nothing says how its parameter starts."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__(d_model, context)
        self.weight = nn.Parameter(torch.empty(d_model))


class Lazy(Leak):
    """Has a layer whose width is not known before the first input."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__(d_model, context)
        self.o_proj = nn.LazyLinear(d_model)


class Counting(Leak):
    """Has a state that is no tensor."""

    def get_extra_state(self):
        return {"steps": 1}


class Scaled(Leak):
    """Causal, with a matrix and a vector of its own."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__(d_model, context)
        self.matrix = nn.Parameter(torch.empty(d_model, d_model))
        self.scale = nn.Parameter(torch.empty(d_model))

    def reset_parameters(self):
        nn.init.eye_(self.matrix)
        nn.init.ones_(self.scale)

    def forward(self, x):
        return x @ self.matrix * self.scale


class Opened(Leak):
    """Causal until a test opens it."""

    open = False

    def forward(self, x):
        return x.flip(1) if self.open else x


class ForwardOnly(TokenMixer):
    """Causal, and nothing else; reads a number that it holds, and keeps a tensor of no name."""

    gate: Tensor

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__()
        self.register_buffer("gate", torch.ones(()))
        self.mask = torch.ones(context, context).tril()

    def forward(self, x):
        sums = self.mask[: x.shape[1], : x.shape[1]].to(x) @ x
        return sums * self.gate if float(self.gate) else sums


class NoStep(ForwardOnly):
    """Remembers sums, which nothing reads."""

    def prefix(self, x, state=None):
        sums = x.cumsum(1) + (0 if state is None else state[0])
        return sums, (sums[:, -1:],)


class WrongStep(Leak):
    """Its step forgets the first position."""

    def forward(self, x):
        return x.cumsum(1)

    def step(self, x, state):
        before = state[:, 1:].sum(1, keepdim=True)
        return x.cumsum(1) + before.repeat_interleave(len(x) // len(before), 0)


class StepInPlace(Leak):
    """A running sum whose step adds to the state that it is given."""

    def forward(self, x):
        return x.cumsum(1)

    def prefix(self, x, state=None):
        sums = x.cumsum(1) + (0 if state is None else state)
        return sums, sums[:, -1:].clone()

    def step(self, x, state):
        candidates = len(x) // len(state)
        sums = x.cumsum(1) + state.repeat_interleave(candidates, 0)
        state += x[::candidates].sum(1, keepdim=True)
        return sums


class PrefixInPlace(StepInPlace):
    """Its prefix does so."""

    def prefix(self, x, state=None):
        state = torch.zeros_like(x[:, :1]) if state is None else state
        sums = x.cumsum(1) + state
        return sums, state.copy_(sums[:, -1:])

    def step(self, x, state):
        return super().step(x, state.clone())


class NoNumbers(StepInPlace):
    """Its step gives no numbers."""

    def step(self, x, state):
        return x * torch.nan


class Chance(Leak):
    """Random in evaluation, too: `F.dropout` without `training`."""

    def forward(self, x):
        return F.dropout(x.cumsum(1), 0.5)


class SharedChance(Leak):
    """Draws one mask of features for all rows and positions."""

    def forward(self, x):
        return x.cumsum(1) * (torch.rand(x.shape[-1], device=x.device) > 0.2)


class ChanceOfAttention(Leak):
    """Attention whose dropout is always on."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True, dropout_p=0.1)


class NotSaved(Leak):
    """Depends on random numbers that no file keeps."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__(d_model, context)
        self.register_buffer("noise", torch.randn(d_model, device="cpu"), persistent=False)

    def forward(self, x):
        return x * self.noise  # pyright: ignore


class OneFarPair(Leak):
    """Position 50 sees position 52."""

    def forward(self, x):
        if x.shape[1] <= 52:
            return x
        seen = torch.zeros_like(x)
        seen[:, 50] = x[:, 52]
        return x + 0.5 * seen


class Faint(Leak):
    """Position 8 sees a little of position 9, and position 4 half as much."""

    def __init__(self, d_model: int, context: int, *, strength: float) -> None:
        super().__init__(d_model, context)
        self.strength = strength

    def forward(self, x):
        seen = x.new_zeros(x.shape[1], 1)
        seen[4:5], seen[8:9] = self.strength / 2, self.strength
        return x + seen * x[:, 9:10] if x.shape[1] > 9 else x


class WholeBlocks(Leak):
    """Takes only multiples of four positions."""

    def forward(self, x):
        return x.unflatten(1, (-1, 4)).cumsum(2).flatten(1, 2)


class PaddedFFT(Leak):
    """A causal convolution by an FFT, whose rounding spreads over all positions."""

    def forward(self, x):
        T = x.shape[1]
        decay = 0.5 ** torch.arange(T).float()[:, None]
        both = torch.fft.rfft(x, n=2 * T, dim=1) * torch.fft.rfft(decay, n=2 * T, dim=0)
        return torch.fft.irfft(both, n=2 * T, dim=1)[:, :T]


class Dropout(Leak):
    """Causal, and random in training."""

    def forward(self, x):
        return F.dropout(x.cumsum(1), 0.5, self.training)


class Turned(Attention):
    """Attention whose rotation is the other way round."""

    def __init__(self, d_model: int, context: int, *, heads: int = 4) -> None:
        super().__init__(d_model, context, heads=heads)
        self.rotary.sin.neg_()


class Complex(Leak):
    """Causal, with a complex matrix and a complex vector."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__(d_model, context)
        self.matrix = nn.Parameter(torch.empty(d_model, d_model, dtype=torch.complex64))
        self.turn = nn.Parameter(torch.empty(d_model, dtype=torch.complex64))

    def reset_parameters(self):
        nn.init.normal_(self.matrix, std=0.1)
        nn.init.normal_(self.turn, std=0.1)

    def forward(self, x):
        read = torch.complex(x, torch.zeros_like(x)).to(self.matrix)
        return ((read @ self.matrix).cumsum(1) * self.turn).real.to(x)


class Annotated(Leak):
    """Causal; its arguments are of many kinds."""

    def __init__(
        self,
        d_model: int,
        context: int,
        scale: float = 1.0,
        *,
        sizes: list[int] | None = None,
        pair: tuple[int, ...] = (),
        any_of: Sequence[int] | bool = False,
        rate: Literal[1, 2, "auto"] = "auto",
        word: str = "",
        label: str | None = "",
    ) -> None:
        super().__init__(d_model, context)
        self.given = sizes, pair, any_of, rate, word, label

    def forward(self, x):
        return x
