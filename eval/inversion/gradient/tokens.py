"""GCG, which exchanges tokens of a guess. The gradient says which tokens to try."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eval.inversion.gradient.loop import Rows, gradient, random_tokens, with_gradient
from eval.inversion.problem import Batch
from eval.inversion.spaces import Objective

TOKENS = 1 << 14  # sent through the circuit at once
WIDTH = 128  # guesses that GCG tries in a step
TOP = 64  # tokens of its shortlists


@dataclass
class Guess:
    """A guess of tokens for each row.

    Attributes:
        tokens: the guess, `(B, T)`.
        losses: of the guess, `(B,)`.
        estimates: by how much each token instead is thought to lower the loss, `(B, T, V)`.
    """

    tokens: Tensor
    losses: Tensor
    estimates: Tensor

    def try_all(self, rows: Rows, guesses: Tensor) -> None:
        """Moves to the best of N guesses, `(B, N, T)`, in the rows where it is an improvement."""
        losses, best = losses_of(rows.batch, guesses, rows.objective).min(dim=1)
        each = torch.arange(len(guesses), device=guesses.device)
        better = losses < self.losses
        self.tokens = torch.where(better[:, None], guesses[each, best], self.tokens)
        self.losses = torch.where(better, losses, self.losses)

    @property
    def scores(self) -> Tensor:
        """The guess first, then the others as the gradient ranked them last, `(B, T, V)`."""
        first = self.estimates.amax(dim=-1, keepdim=True) + 1
        return self.estimates.scatter(2, self.tokens[..., None], first)

    def __getitem__(self, rows: Tensor) -> "Guess":
        return Guess(self.tokens[rows], self.losses[rows], self.estimates[rows])


def random_guess(rows: Rows) -> Guess:
    """A guess of random tokens, its losses known, no token yet thought better."""
    tokens = random_tokens(rows.chance, (rows.length,), rows.vocabulary)
    losses = losses_of(rows.batch, tokens[:, None], rows.objective)[:, 0]
    rows.spent += rows.length
    return Guess(tokens, losses, rows.vocabulary.new_zeros(*tokens.shape, len(rows.vocabulary)))


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


@gradient(steps=500, random=True, title="GCG")
def gcg(rows: Rows) -> Iterator[None]:
    """The gradient shortlists tokens at every position; random ones of them are tried.

    Greedy coordinate gradient (Zou et al., 2307.15043). Each guess exchanges one token, at a random
    position, for a random one of that position's shortlist. The best is taken if it improves; a
    guess that is worse is never moved to.

    Args:
        rows: of any slices.
    """
    W, T = rows.vocabulary, rows.length
    listed, guess = min(TOP, len(W)), random_guess(rows)
    rows.scores = lambda: guess.scores
    while True:
        guess.estimates = -gradient_at(rows.batch, guess.tokens, rows.objective) @ W.T
        shortlist = guess.estimates.topk(listed, dim=-1).indices.flatten(1)
        at, pick = random_tokens(rows.chance, (2, WIDTH), shortlist[0]).unbind(1)
        position = at % T
        guesses = guess.tokens[:, None].repeat(1, WIDTH, 1)
        chosen = shortlist.gather(1, position * listed + pick % listed)
        guesses = guesses.scatter(2, position[..., None], chosen[..., None])
        guess.try_all(rows, guesses)
        rows.spent += (3 + WIDTH) * T
        yield
        (guess,) = rows.kept(guess)
