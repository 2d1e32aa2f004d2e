"""The pooled figures of scores of equal place, and how sure they are."""

from statistics import median
from typing import Any

from eval.inversion.fields import arrived, prompt, weights
from eval.inversion.metrics import margin_bits
from eval.report.evidence import Score
from eval.statistics import share


def measure(placed: list[Score]) -> dict[str, Any]:
    """The pooled figures of scores of equal place.

    Shares pool tokens; their 95 % intervals are clustered on prompts and training seeds. The margin
    is the smallest and the floor the largest of all rows, so that `bits` is the worst case; a
    search that did not arrive knows nothing of the answer's surroundings, so its margin is left
    out.
    """
    rows = [s.row for s in placed]
    tokens = sum(s.count for s in placed)
    prompts, models = [prompt(row) for row in rows], [weights(row) for row in rows]
    top1 = share([s.hits for s in placed], [s.count for s in placed], prompts, models)
    margins = [row["margin"] for row in rows if arrived(row) and row["margin"] is not None]
    floors = [row["floor"] for row in rows if row["floor"] is not None]
    margin, floor = min(margins, default=None), max(floors, default=None)
    criteria = [row["criterion"] for row in rows if row["criterion"] is not None]
    return {
        "count": len(set(prompts)),
        "models": len(set(models)),
        "method": rows[0]["method"],
        "tokens": tokens,
        "top1": top1.estimate,
        "low": top1.low,
        "high": top1.high,
        "top5": sum(s.hits5 for s in placed) / tokens,
        "median_rank": median(s.median_rank for s in placed),
        "exact": sum(bool(row["exact"]) for row in rows) / len(rows),
        "residual": median(row["residual"] for row in rows),
        "floor": floor,
        "margin": margin,
        "bits": margin_bits(margin, floor),
        "criterion": sum(criteria) / len(criteria) if criteria else None,
        "evaluations": sum(row["evaluations"] for row in rows) / len(rows),
        "seconds": sum(row["seconds"] for row in rows) / len(rows),
    }
