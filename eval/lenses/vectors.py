"""The rows of the two embeddings: how long they are, how they align, what comes back from them.

W_E turns a token into a vector, W_U a vector into logits; both are `(V, D)`, one row a token.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from arch import LanguageModel
from eval.ranks import token_ranks

NORMAL = 1.4826  # of a normal distribution, standard deviations in its median absolute deviation
OUTLIER = 3.5  # robust z from which a length is unusual (Iglewicz & Hoaglin 1993)
UNEMBEDDINGS = ("pinv", "scaled", "transpose", "head")
"""Ways back from a vector to tokens.

pinv: the Moore-Penrose inverse of W_E; scaled: its transpose, each row divided by its squared
length; transpose: as it is; head: W_U, as the model does.
"""
TINY = 1e-30


def embeddings(model: LanguageModel) -> dict[str, Tensor]:
    """W_E and W_U in float32, `(V, D)` each, as `input` and `output`."""
    return {
        "input": model.embedding.weight.detach().float(),
        "output": model.head.weight.detach().float(),
    }


def robust_z(values: Tensor) -> Tensor:
    """Distance from the median in robust standard deviations, of `(N,)` numbers."""
    middle = values.median()
    spread = NORMAL * (values - middle).abs().median()
    return (values - middle) / spread.clamp(min=TINY)


def outliers(norms: Tensor) -> list[int]:
    """Tokens whose lengths `(V,)` are unusual, the most unusual first."""
    z = robust_z(norms).abs()
    return [i for i in z.argsort(descending=True).tolist() if z[i] > OUTLIER]


def alignment(first: Tensor, second: Tensor, rows: Tensor) -> dict[str, Tensor]:
    """How a token's own rows in two matrices go together.

    Args:
        first: `(V, D)`.
        second: `(V, D)`.
        rows: `(N,)` tokens that are looked at.

    Returns:
        `cosine` of a token's two rows, `(N,)`; `control`, of its first row and another token's
        second one; `rank` of the token itself among all by their product, 0 the largest.
    """
    own, far = first[rows], second[rows]
    products = own @ second.T
    return {
        "cosine": F.cosine_similarity(own, far),
        "control": F.cosine_similarity(own, far.roll(1, dims=0)),
        "rank": token_ranks(products, rows),
    }


def round_trip(inputs: Tensor, outputs: Tensor, rows: Tensor, method: str) -> Tensor:
    """One-hot to vector to tokens again: `(N, V)` values of all tokens for each of N.

    Args:
        inputs: W_E, `(V, D)`.
        outputs: W_U, `(V, D)`.
        rows: `(N,)` the tokens.
        method: one of `UNEMBEDDINGS`.
    """
    own = inputs[rows]
    if method == "pinv":  # E pinv(E) = E pinv(E' E) E', which needs no decomposition of V x D
        inner = inputs.double().T @ inputs.double()
        return (own.double() @ torch.linalg.pinv(inner, hermitian=True)).float() @ inputs.T
    if method == "scaled":
        return own @ (inputs / inputs.square().sum(dim=1, keepdim=True).clamp(min=TINY)).T
    return own @ (outputs if method == "head" else inputs).T


def others(values: Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values beside a token's own: values and tokens, `(N, count)` each.

    Args:
        values: `(N, V)`.
        rows: `(N,)` the tokens themselves.
        count: how many.
    """
    rest = values.scatter(1, rows[:, None], -torch.inf)
    top = rest.topk(min(count, values.shape[1] - 1), dim=1)
    return top.values, top.indices
