"""What the explorer's page shows of the rows that answer its questions."""

from typing import Any

from eval.analysis.verdicts import AMBIGUOUS
from eval.drawing.markup import visible


def shown_answer(row: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of a row of recovery; it ends at the last position shown."""
    shared = ("residual", "floor", "margin_bits", "at_floor", "certificate", "uncertified",
              "seconds", "evaluations")  # fmt: skip
    return {
        "found": [visible(piece) for piece in row["found_text"]],
        "right": [a == b for a, b in zip(row["found"], row["truth"], strict=True)],
        "ambiguous": [verdict == AMBIGUOUS for verdict in row["verdict"]],
        **{name: row[name] for name in shared},
    }


def information(row: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of a row of bits: of the token's own output, and of all later ones."""
    later = len(row["distances"]) > 1
    return {
        "place": row["place"],
        "prior": row["prior_bits"]["uniform"],
        "bits": {
            precision: [kinds["alone"][0], kinds["cumulative"][-1] if later else None]
            for precision, kinds in row["bits"]["uniform"].items()
        },
    }
