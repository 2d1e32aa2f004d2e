"""Guesses made of tokens: their losses, exactly and all at once, and the gradient there."""

import torch
from torch import Tensor

from eval.inversion.batch import Batch, Objective
from eval.inversion.gradient.solver import Solver, with_gradient

TOKENS = 1 << 14  # sent through the circuit at once


class TokenSolver(Solver):
    """A solver whose state is a guess of tokens for each row.

    Attributes:
        tokens: the guess, `(B, T)`.
        losses: of the guess, `(B,)`.
        estimates: by how much each token instead is thought to lower the loss, `(B, T, V)`.
    """

    objective: Objective
    tokens: Tensor
    losses: Tensor
    estimates: Tensor

    def begin(self, tokens: Tensor) -> None:
        """Starts from a guess, `(B, T)`."""
        vocabulary = self.batch.circuit.vocabulary
        self.tokens = tokens
        self.losses = losses_of(self.batch, tokens[:, None], self.objective)[:, 0]
        self.spent = self.batch.length
        self.estimates = vocabulary.new_zeros(*tokens.shape, len(vocabulary))

    def try_all(self, guesses: Tensor) -> None:
        """Moves to the best of N guesses, `(B, N, T)`, in the rows where it is an improvement."""
        losses, best = losses_of(self.batch, guesses, self.objective).min(dim=1)
        rows = torch.arange(len(guesses), device=guesses.device)
        better = losses < self.losses
        self.tokens = torch.where(better[:, None], guesses[rows, best], self.tokens)
        self.losses = torch.where(better, losses, self.losses)

    def scores(self) -> Tensor:
        """The guess first, then the others as the gradient ranked them last."""
        first = self.estimates.amax(dim=-1, keepdim=True) + 1
        return self.estimates.scatter(2, self.tokens[..., None], first)


@torch.no_grad()
def losses_of(batch: Batch, guesses: Tensor, objective: Objective) -> Tensor:
    """The loss of N guesses for each row, `(B, N, T) -> (B, N)`."""
    B, N, T = guesses.shape
    rows = torch.arange(B, device=guesses.device).repeat_interleave(N)
    flat, losses = guesses.flatten(0, 1), []
    for part in torch.arange(B * N, device=guesses.device).split(max(1, TOKENS // T)):
        embeddings = batch.circuit.embed(flat[part])
        losses.append(batch.of(rows[part]).losses(embeddings, objective))
    return torch.cat(losses).view(B, N)


def gradient_at(batch: Batch, tokens: Tensor, objective: Objective) -> Tensor:
    """The loss's gradient at tokens' embeddings, `(B, T) -> (B, T, D)`."""
    x = batch.circuit.embed(tokens)
    return with_gradient(lambda x: batch.losses(x, objective), x)[1]
