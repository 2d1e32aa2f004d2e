"""Whether outputs of tokens agree with captured ones, number by number, and where they do."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eval.captured.files.stored import Stored
from eval.sites.circuit import Circuit
from eval.sites.rounding import Tolerance
from eval.sites.slices import Slice

LARGEST_MISFIT = 100.0  # the square of a number's distance, in squares of what may pass


@dataclass(frozen=True)
class Agreement:
    """Whether outputs agree with stored ones: each number to a step of the format and ten floors.

    Attributes:
        circuit: the site that was captured.
        stored: the numbers captured, of T positions.
        tolerance: of each number, `(B, T, width)`: its step in the format, and rounding.
        slice: shown.
        counted: the positions that are shown and hold what the model gave, `(B, T)`.
    """

    circuit: Circuit
    stored: Stored
    tolerance: Tolerance
    slice: Slice
    counted: Tensor

    def of_prompts(self, outputs: Tensor) -> Tensor:
        """`(B, T, width)` outputs to `(B, S)`, of the positions shown."""
        off = self.slice.select(outputs - self.stored.values).abs()
        return (off <= self.slice.select(self.tolerance.limit)).all(dim=-1)

    def of_span(self, outputs: Tensor, start: int) -> Tensor:
        """`(B, N, S, width)` outputs of rivals from position `start` on to `(B, N)`.

        Positions that do not count are passed over.
        """
        span = slice(start, start + outputs.shape[2])
        off = self.slice.narrow(outputs - self.stored.values[:, None, span]).abs()
        fits = (off <= self.slice.narrow(self.tolerance.limit[:, None, span])).all(dim=-1)
        return (fits | ~self.counted[:, None, span]).all(dim=-1)

    def of_versions(self, outputs: Tensor, row: int) -> tuple[Tensor, Tensor]:
        """`(N, T, width)` outputs of versions of one prompt: their agreement `(N, S)`, and misfit.

        S are the positions that count. The misfit `(N,)` is the sum of squares, each number's over
        what its format lets pass. A square counts up to `LARGEST_MISFIT`, as numbers that are no
        outputs of the model would outweigh all others.
        """
        counted = self.counted[row]
        off = self.slice.narrow(outputs - self.stored.values[row])[:, counted].abs()
        allowed = self.slice.narrow(self.tolerance.limit[row])[None, counted]
        misfit = (off / allowed.clamp(min=torch.finfo(off.dtype).tiny)).square()
        misfit = misfit.clamp(max=LARGEST_MISFIT)
        return (off <= allowed).all(dim=-1), misfit.double().sum(dim=(1, 2))


def find_evidence(fits: Tensor, shown: list[int], length: int) -> Tensor:
    """The positions whose outputs are evidence, `(B, T)`, by whether those shown fit, `(B, S)`.

    They are those that fit, if half of the positions shown up to the last one that fits do. What
    follows is a tail that no token explains: empty slots, padding, or damage.
    """
    evidence = fits.new_zeros(len(fits), length)
    evidence[:, shown] = fits
    count = torch.arange(1, len(shown) + 1, device=fits.device)
    last = (fits * count).amax(dim=1)  # of positions shown, up to the last one that fits
    enough = 2 * fits.sum(dim=1) >= last
    return evidence & enough[:, None]


def are_told(log_chances: Tensor, tokens: int, most: float) -> list[list[bool]]:
    """Of `(B, T)` positions, whether outputs there or later tell the token, by prompt.

    A causal model's outputs at a position are evidence for all tokens up to it, whatever follows.
    An output proves its own token and all earlier unproved ones together, if the expected number of
    wrong combinations that agree by chance is below `most`.

    Args:
        log_chances: that a token agrees by chance, `(B, T)`; 0 where outputs are no evidence.
        tokens: of the vocabulary, any of which may stand at a position.
        most: number of wrong combinations that are expected to agree.
    """
    telling, choices = torch.zeros_like(log_chances, dtype=torch.bool), log_chances.new_zeros(())
    for t in range(log_chances.shape[1]):
        agreeing = choices + math.log(tokens) + log_chances[:, t]
        telling[:, t] = agreeing < math.log(most)
        choices = agreeing.clamp(min=0)
    return telling.flip(1).cummax(dim=1).values.flip(1).tolist()
