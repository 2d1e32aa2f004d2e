"""A mean with its interval, as a figure's record holds it."""

from collections.abc import Hashable, Sequence
from typing import Any

from eval.statistics import clustered


def mean_record(values: Sequence[float], clusters: Sequence[Hashable] = ()) -> dict[str, Any]:
    """`value` with the mean, `n`, and `low` and `high` where there are several clusters.

    Args:
        values: at least one.
        clusters: what each belongs to, such as its prompt; each is its own when not given.
    """
    groups = clusters or range(len(values))
    found = clustered(values, [1] * len(values), groups, [0] * len(values))
    record = {"value": found.estimate, "n": len(values)}
    return record | {"low": found.low, "high": found.high} if len(set(groups)) > 1 else record
