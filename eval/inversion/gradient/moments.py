"""Adam's two moments, held as tensors with a row per problem."""

from typing import NamedTuple

import torch
from torch import Tensor

from eval.inversion.gradient.solver import Solver


class Adam(NamedTuple):
    """How the moments are averaged (Kingma & Ba, 1412.6980).

    Attributes:
        first, second: decay of the two averages.
        corrected: whether they are corrected for their start at zero.
        epsilon: what keeps a step finite where the gradient has been none.
    """

    first: float = 0.9
    second: float = 0.999
    corrected: bool = True
    epsilon: float = 1e-8


class AdamSolver(Solver):
    """A solver whose gradients become steps by Adam; its moments leave the batch with their row."""

    adam = Adam()
    mean: Tensor
    square: Tensor

    def forget(self, like: Tensor) -> None:
        """Starts the moments anew, for a variable `(B, ...)`."""
        self.mean, self.square, self.taken = torch.zeros_like(like), torch.zeros_like(like), 0

    def direction(self, gradient: Tensor) -> Tensor:
        """The step for a rate of 1, of entries about 1, to be subtracted."""
        settings, self.taken = self.adam, self.taken + 1
        self.mean = self.mean.lerp(gradient, 1 - settings.first)
        self.square = self.square.lerp(gradient.square(), 1 - settings.second)
        mean, square = self.mean, self.square
        if settings.corrected:
            mean = mean / (1 - settings.first**self.taken)
            square = square / (1 - settings.second**self.taken)
        return mean / (square.sqrt() + settings.epsilon)
