"""What is descended on: the embeddings themselves, or vectors over the vocabulary times them."""

from torch import Tensor

from eval.errors import RequestError

VARIABLES = {
    "embedding": "the vectors that the model reads (indirect)",
    "vocabulary": "a vector over the vocabulary at each position, times the embedding (direct)",
    "softmax": "the softmax of such a vector, times the embedding",
}


def width(variable: str, vocabulary: Tensor) -> int:
    """Entries of the variable at a position: D or V.

    Raises:
        RequestError: no such variable.
    """
    if variable not in VARIABLES:
        raise RequestError(
            f"variable {variable!r} does not exist; use one of {', '.join(VARIABLES)}"
        )
    return vocabulary.shape[1] if variable == "embedding" else vocabulary.shape[0]


def embeddings(variable: str, x: Tensor, vocabulary: Tensor) -> Tensor:
    """What the model reads, `(B, T, D)`, of a variable `(B, T, D)` or `(B, T, V)`."""
    if variable == "embedding":
        return x
    return (x.softmax(dim=-1) if variable == "softmax" else x) @ vocabulary
