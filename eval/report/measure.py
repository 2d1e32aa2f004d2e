"""The pooled figures of scores of equal place, and how sure they are."""

from statistics import median
from typing import Any

from eval.recovery import margin_bits, prompt, weights
from eval.report.evidence import Score
from eval.statistics import share


def measure(placed: list[Score]) -> dict[str, Any]:
    """The pooled figures of scores of equal place.

    Shares pool tokens; their 95 % intervals are clustered on prompts and training seeds. `bits`,
    `margin` and `margin_floor` are those of the row with the fewest bits; a search that did not
    arrive knows nothing of the answer's surroundings, so its margin is left out.
    """
    rows = [s.row for s in placed]
    tokens = sum(s.count for s in placed)
    prompts, models = [prompt(row) for row in rows], [weights(row) for row in rows]
    top1 = share([s.hits for s in placed], [s.count for s in placed], prompts, models)
    margins = [(bits, i) for i, row in enumerate(rows) if (bits := margin_bits(row)) is not None]
    bits, nearest = min(margins, default=(None, None))
    worst = {} if nearest is None else rows[nearest]
    floors = [row["floor"] for row in rows if row["floor"] is not None]
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
        "floor": max(floors, default=None),
        "margin": worst.get("margin"),
        "margin_floor": worst.get("margin_floor"),
        "bits": bits,
        "criterion": sum(criteria) / len(criteria) if criteria else None,
        "evaluations": sum(row["evaluations"] for row in rows) / len(rows),
        "seconds": sum(row["seconds"] for row in rows) / len(rows),
    }
