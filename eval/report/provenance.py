"""Where the numbers come from: checkpoints, methods, totals; and tokens that collide."""

import json
from typing import Any

from eval.recovery import hidden_positions, prompt_of
from eval.report.evidence import Score, group, once
from eval.report.wording import column_order, prompt_set, site_label, visible
from eval.schema import Row


def collisions(placed: list[Score]) -> list[dict[str, Any]]:
    """Positions at which an exact search could not tell several tokens apart."""
    lines = []
    for score in once(placed):
        row, hidden = score.row, hidden_positions(score.row)
        lines += [
            {
                "model": score.model,
                "step": score.step,
                "site": site_label(score.layer, score.part),
                "slice": row["slice"],
                "prompt": f"{prompt_set(score.prompts)} {row['prompt'] + 1}",
                "position": collision["position"] + 1,
                "hidden": collision["position"] in hidden,
                "tokens": [visible(token) for token in collision["tokens"]],
            }
            for collision in row["collisions"]
        ]
    return lines


def checkpoints(placed: list[Score]) -> list[dict[str, Any]]:
    """Every checkpoint asked about, once, with the largest floor measured on it."""
    lines = []
    for model, several in group(placed, lambda s: s.model).items():
        groups = group(several, lambda s: (s.step, s.row["checkpoint"]["path"]))
        for _, cell in sorted(groups.items(), key=lambda item: item[0]):
            floors = [s.row["floor"] for s in cell if s.row["floor"] is not None]
            place = {"label": model, "floor": max(floors, default=None)}
            lines.append(cell[0].row["checkpoint"] | place)
    return lines


def methods(placed: list[Score]) -> list[dict[str, Any]]:
    """Every method used, with its settings and what it cost."""
    groups = group(once(placed), lambda s: s.method)
    lines = []
    for name in column_order(set(groups)):
        rows = [s.row for s in groups[name]]
        settings = [", ".join(_setting(*item) for item in row["settings"].items()) for row in rows]
        lines.append({"name": name, "settings": list(dict.fromkeys(settings))} | _cost(rows))
    return lines


def totals(placed: list[Score]) -> dict[str, Any]:
    """Counts over all rows."""
    placed = once(placed)
    rows = [s.row for s in placed]
    return {
        "prompts": len({prompt_of(row) for row in rows}),
        "models": len({s.model for s in placed}),
        "lengths": sorted({row["length"] for row in rows}),
        "seeds": len({row["seed"] for row in rows}),
        "exact": sum(s.column == "exact" for s in placed),
    } | _cost(rows)


def _cost(rows: list[Row]) -> dict[str, Any]:
    return {
        "rows": len(rows),
        "evaluations": sum(row["evaluations"] for row in rows),
        "seconds": sum(row["seconds"] for row in rows),
    }


def _setting(name: str, value: object) -> str:
    return f"{name} {value if isinstance(value, str) else json.dumps(value)}"
