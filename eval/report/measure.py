"""The pooled figures of scores of equal place, and how sure they are."""

import math
from statistics import NormalDist, median
from typing import Any

from eval.report.evidence import Score


def measure(placed: list[Score]) -> dict[str, Any]:
    """The pooled figures of scores of equal place.

    Shares pool tokens. Their 95 % interval is Wilson's with the number of distinct prompts for its
    sample size, since the tokens of one prompt do not fail independently: rather too wide than too
    narrow. The margin is the smallest and the floor the largest of all rows, so that `bits` is the
    worst case; a search that did not arrive knows nothing of the answer's surroundings, so its
    margin is left out.
    """
    rows = [s.row for s in placed]
    tokens = sum(s.count for s in placed)
    top1 = sum(s.hits for s in placed) / tokens
    prompts = len({(s.prompts, tuple(s.row["truth"])) for s in placed})
    low, high = wilson(top1, prompts)
    arrived = [row for row in rows if "not found" not in row["verdict"]]
    margins = [row["margin"] for row in arrived if row["margin"] is not None]
    floors = [row["floor"] for row in rows if row["floor"] is not None]
    margin, floor = min(margins, default=None), max(floors, default=None)
    criteria = [row["criterion"] for row in rows if row["criterion"] is not None]
    return {
        "count": prompts,
        "tokens": tokens,
        "top1": top1,
        "low": low,
        "high": high,
        "top5": sum(s.hits5 for s in placed) / tokens,
        "median_rank": median(s.median_rank for s in placed),
        "exact": sum(bool(row["exact"]) for row in rows) / len(rows),
        "residual": median(row["residual"] for row in rows),
        "floor": floor,
        "margin": margin,
        "bits": bits(margin, floor),
        "criterion": sum(criteria) / len(criteria) if criteria else None,
        "evaluations": sum(row["evaluations"] for row in rows) / len(rows),
        "seconds": sum(row["seconds"] for row in rows) / len(rows),
    }


def wilson(share: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share out of n trials (Wilson 1927)."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def bits(margin: float | None, floor: float | None) -> float | None:
    """log2 of margin over floor; 0 where rounding alone could hide the difference."""
    if margin is None or not floor or floor <= 0 or not math.isfinite(margin):
        return None
    return math.log2(max(margin, floor) / floor)
