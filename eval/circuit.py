"""A site of a model as a function of embeddings: what the evidence is taken from."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from arch import LanguageModel, State, embedding_scale


@dataclass(frozen=True)
class Circuit:
    """The stream after block `layer` (0: the embedding itself) of a frozen causal model.

    Args:
        model: in evaluation mode, its parameters without gradient.
        layer: 0 to the number of blocks.
    """

    model: LanguageModel
    layer: int

    def __call__(self, embeddings: Tensor) -> Tensor:
        """`(B, T, D)` embeddings to the site's `(B, T, D)` outputs."""
        return self.model.hidden(embeddings, self.layer)

    @torch.no_grad()
    def of_tokens(self, tokens: Tensor) -> Tensor:
        """`(B, T)` token ids to the site's outputs, without gradient."""
        return self(self.model.embed(tokens))

    @torch.no_grad()
    def prefix(self, tokens: Tensor, state: State | None = None) -> State:
        """The state after P more rows of tokens, `(P, T)`; None is the state of nothing."""
        return self.model.prefix(self.model.embed(tokens), state, self.layer)[1]

    @torch.no_grad()
    def step(self, embeddings: Tensor, state: State | None) -> Tensor:
        """The site's outputs of N candidates' next S positions, `(N, S, D)`."""
        return self.model.step(embeddings, state, self.layer)

    @cached_property
    def vocabulary(self) -> Tensor:
        """The embedding matrix, `(V, D)`."""
        return self.model.embedding.weight.detach()

    @cached_property
    def scale(self) -> float:
        """Standard deviation of the embedding's entries: the model's own unit of length."""
        return embedding_scale(self.model)

    @cached_property
    def pseudo_inverse(self) -> Tensor:
        """The embedding's Moore-Penrose inverse, `(D, V)`, which turns a vector into tokens."""
        return torch.linalg.pinv(self.vocabulary)
