"""Scores that an API returns: the log-probabilities of a few next tokens at each position."""

from eval.captured.files.kinds.kind import INTEGERS, Capture, Source
from eval.captured.files.stored import FLOAT_NAMES
from eval.captured.files.tensors import Outputs

VALUES, IDS = "logprobs", "logprob_ids"


def recognise(source: Source) -> bool:
    """`logprobs` and `logprob_ids`, and nothing else."""
    return set(source.entries) == {VALUES, IDS}


def read(source: Source) -> Capture:
    """`logprobs`, `(T, k)`, with the ids of their tokens.

    Raises:
        RequestError: other shapes or types.
    """
    values, ids = source.entries[VALUES], source.entries[IDS]
    if len(values.shape) != 2 or values.shape != ids.shape:
        raise source.refuse(f"{VALUES} {values}, {IDS} {ids}: give (T, k) of both, of one prompt")
    if values.kind not in FLOAT_NAMES or ids.kind not in INTEGERS:
        raise source.refuse(f"{VALUES} {values}, {IDS} {ids}: give floats, and int64")
    T, k = values.shape
    kind = f"log-probabilities of {k} next tokens at each of {T} positions"
    return Capture(kind, {VALUES: Outputs(values, ids=ids)})
