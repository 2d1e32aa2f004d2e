"""Training for recoverability: a second loss asks each output for an earlier token.

One linear layer reads, from the last block's output at position t, the token at t - d; d is drawn
anew for each position and step, from 1 to the largest distance. Its summed cross entropy, times a
weight, is added to the loss. Badger (2602.13466) combines causal with retention objectives on one
memory vector; here every position's output is asked. The layer is part of a checkpoint, so that a
run goes on exactly, and of no saved model.
"""

import torch
from torch import Tensor, nn

from train.data import IGNORE


class Retention(nn.Module):
    """Reads, from outputs of `width`, the token up to `distance` positions earlier."""

    def __init__(self, width: int, rows: int, weight: float, distance: int) -> None:
        super().__init__()
        self.reader = nn.Linear(width, rows, bias=False)
        self.weight, self.distance = weight, distance

    def targets(self, inputs: Tensor, draw: int) -> Tensor:
        """The token asked for at each position, `(B, T)` to `(B, T)`; -100 where none is so early.

        Equal draws give equal distances, whatever the training seed.
        """
        chance = torch.Generator().manual_seed(draw)
        back = torch.randint(1, self.distance + 1, inputs.shape, generator=chance)
        place = torch.arange(inputs.shape[1]) - back
        earlier = inputs.gather(1, place.clamp(min=0).to(inputs.device))
        return earlier.masked_fill((place < 0).to(inputs.device), IGNORE)
