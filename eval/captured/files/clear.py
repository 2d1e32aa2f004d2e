"""Token ids that stand in a file in clear: their text, and whether an answer agrees with them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eval.messages import RequestError, first_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read_texts(path: str, ids: Sequence[Sequence[int]], tokenizer: "Tokenizer") -> list[str]:
    """The texts of token ids.

    Raises:
        RequestError: an id that the tokenizer does not have.
    """
    known = set(tokenizer.get_vocab().values())  # with gaps, in some
    wrong = next((token for row in ids for token in row if token not in known), None)
    if wrong is not None:
        raise RequestError(
            f"{path}: token id {wrong}: --model has {len(known)} ids, up to {max(known)}, and not "
            "this one; give the captured model"
        )
    return [tokenizer.decode(list(row), skip_special_tokens=False) for row in ids]


def compare_ids(rows: Sequence[dict[str, Any]], ids: Sequence[Sequence[int]]) -> None:
    """Notes in each row, as `differs`, at which of its positions it has not the file's ids.

    And, as `uncaptured`, how many more ids there are than positions. Ids of padding do not count.
    """
    for row in rows:
        answer = row["tokens"][: min(row["left_out"], default=None)]
        padding = row.get("padding", [])
        true = [token for t, token in enumerate(ids[row["prompt"]]) if t not in padding]
        T = len(row["tokens"])
        row["uncaptured"] = max(0, len(true) - T)
        row["differs"] = [t for t in range(T) if answer[t : t + 1] != true[t : t + 1]]


def describe(differs: Sequence[int], uncaptured: int) -> str:
    """Whether an answer agrees with the file's ids, in a line."""
    if not differs:
        rest = f", but for the last {uncaptured}, whose outputs were not read" * bool(uncaptured)
        return f"agrees with the ids in the file{rest}"
    return f"differs from the ids in the file at positions {first_of(differs, 20)}"
