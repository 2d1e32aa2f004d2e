"""What one row of a recovery says: its hidden positions, and whether its answer is accepted."""

from eval.rows.schema import SHUFFLED, Row


def weights(row: Row) -> str:
    """One model at one training step."""
    return row["checkpoint"]["weights_sha256"]


def hidden_positions(row: Row) -> set[int]:
    """The positions of the prompt that a recovery does not show."""
    return set(range(row["length"])).difference(row["shown"])


def accepted(row: Row) -> bool:
    """Whether the answer explains the evidence, of a model whose answers can be proved at all."""
    return bool(row["at_floor"]) and not row["uncertified"]


def is_false_accept(row: Row) -> bool:
    """Whether a wrong answer is at the floor and the true prompt is not, or is called ruled out.

    Where the true prompt is at the floor too, the outputs do not tell the two apart. Rows without
    `truth_at_floor` count the true prompt as at the floor: the target is that prompt's own output,
    and the limit allows for noise. Rows of a shuffled target are left out, because their target
    belongs to another prompt.
    """
    if not accepted(row) or row["exact"] or row["control"] == SHUFFLED:
        return False
    named = {collision["position"] for collision in row["collisions"]}
    wrong = any(row["found"][t] != row["truth"][t] and t not in named for t in range(row["length"]))
    return wrong and (row["certificate"] == "enumerated" or not row.get("truth_at_floor", True))
