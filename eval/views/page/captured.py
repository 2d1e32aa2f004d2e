"""The page of `recover`: the text behind captured tensors, and how sure each token is."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from eval.captured.certainty.likelihood import LIKELY_PROBABILITY
from eval.drawing.markup import visible
from eval.drawing.tables import chance_text


class Line(NamedTuple):
    """One position of a prompt.

    `mark` is the class of the token on the page: empty where it is certain, `l` where it is likely,
    `a` where others fit as well, `w` where nothing certifies it or it is wrong, with `k` where its
    output is not known.
    """

    position: int
    token: str
    mark: str
    said: str
    ratio: float | None
    others: list[str]


def read_captured(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows of each tensor, with their `lines`."""
    tensors: dict[str, list[dict[str, Any]]] = {}  # by what was asked: two may have one name
    for row in rows:
        task = row["key"].rpartition("-")[0]
        tensors.setdefault(task, []).append(row | {"lines": read_lines(row)})
    return list(tensors.values())


def read_lines(row: dict[str, Any]) -> list[Line]:
    """The positions of one prompt."""
    lines = []
    for position, (piece, proof) in enumerate(zip(row["pieces"], row["certificates"], strict=True)):
        others = row["alike_pieces"].get(str(position), [])
        ratio = row["residual_over_floor"].get(str(position))
        probability = row["probabilities"][position]
        said, mark = ("several fit", "a") if others else ("no output from here on fits", "w")
        if position in row["left_out"]:
            said = "no token fits; left out of the text"
        elif proof:
            said, mark = f"certain ({proof})", ""
        elif row["grades"][position] == "likely":
            said, mark = f"likely (p {chance_text(probability, 4)})", "l"
        elif probability is not None and not others:
            said = f"unknown (p {chance_text(probability, 2, LIKELY_PROBABILITY)})"
        if position in row.get("wrong", ()):
            said, mark = f"{said}; wrong", "w"
        mark += " k" if ratio is None else ""
        shown = [visible(other) for other in others]
        lines.append(Line(position, visible(piece), mark.strip(), said, ratio, shown))
    return lines
