"""Where else captured outputs may be of, when nothing fits at the site that was given."""

import re

from eval.captured.arithmetic import EXACT
from eval.captured.files.stored import FLOATS
from eval.captured.locate import Match, count_hits, describe_change, find_beginnings, find_site
from eval.captured.site import Captured
from eval.messages import RequestError

KEY_NORM = re.compile(r"(q?k|key)_(layer)?norm")
"""Names of a norm of keys, as models of transformers have them."""
BEGINNINGS = 16  # rows that fit a first token, at most, behind which more tokens are searched for


def look_elsewhere(captured: Captured, computed: str | None) -> str:
    """What fits where the given site does not, or what may be the reason, as a line.

    Tried are the likeliest sites of the model, other precisions of its computation, and later rows
    as the first ones of a prompt, as behind padding on the left.

    Args:
        captured: that no token fits, at a site that was given.
        computed: the precision that was given; None: it is looked for.
    """
    unknown = (
        "are these outputs of this model, and of a prompt's beginning? of later positions give "
        "--first, the position of the first row"
    )
    unknown += describe_numbers(captured)
    if captured.held[0]:
        return unknown
    return find_other_site(captured, computed) or find_first_row(captured, 0) or unknown


def describe_numbers(captured: Captured) -> str:
    """What may have changed the numbers behind the site: the end of a line, or empty."""
    model, circuit = captured.checkpoint.model, captured.circuit
    if circuit.part == "key":
        blocks = [model.blocks[layer - 1] for layer in circuit.layer_numbers]
        inside = {name.rpartition(".")[2] for block in blocks for name, _ in block.named_modules()}
        if norms := sorted(filter(KEY_NORM.fullmatch, inside)):
            return (
                f"; key is what stands behind {norms[0]} here: a hook on the projection, as "
                "TransformerLens' hook_k, catches keys before it: give those of the cache, "
                "--part rotated_key"
            )
    seen = captured.stored.values[:, list(captured.positions)].flatten(0, 1)
    return describe_change(model, seen)


def find_first_row(captured: Captured, prompt: int) -> str:
    """The row from which on most of the first tokens of a prompt fit, as a line; empty if none.

    Rows that fit a token at the first position are tried, of all rows that are shown.
    """
    stored = captured.stored
    filled = stored.values[prompt].any(dim=-1)
    rows = [t for t in captured.positions if 0 < t < captured.length - 1 and filled[t]]
    alone = stored.map(lambda x: x[prompt, rows, None])
    for number in find_beginnings(captured.arithmetic, captured.circuit, alone)[:BEGINNINGS]:
        hits, count = count_alone(captured, prompt, rows[number])
        if 2 * hits > count:
            return (
                f"from row {rows[number]} on {hits} of {count} tokens fit; are the rows before "
                f"padding? give the rows from {rows[number]} on alone, or a tensor attention_mask "
                "(B, T)"
            )
    return ""


def find_other_site(captured: Captured, computed: str | None) -> str:
    """The site or precision in which most of the first tokens fit, as a line.

    Empty if there is none, or if as many fit at that of the answer, as of coarse numbers.
    """
    own, tried = count_hits(captured.arithmetic, captured.circuit, captured.stored, captured.held)
    if own == tried:  # or none is tried, as the first row is hidden
        return ""
    for name in [computed] if computed else sorted(FLOATS, key=lambda name: name != EXACT):
        if (match := _best_site(captured, name)) and match.hits > own:
            fits = f"{match.hits} of the first {match.tried} tokens fit there"
            if match.name == captured.circuit.name:
                return f"{fits} as computed in {name}; give --computed {name}"
            how = "" if name in (computed, EXACT) else f", computed in {name} (--computed {name})"
            return f"{match.name}: {fits}{how}; give --layer {match.layer} --part {match.part}"
    return ""


def describe_swapped(captured: Captured) -> str:
    """A line if the first rows of all prompts fit as one prompt: `(T, B, width)`; else empty."""
    stored, count = captured.stored, len(captured.stored.values)
    if count < 2 or captured.held[0] or count > captured.checkpoint.config.context:
        return ""
    column = stored.map(lambda x: x[:, 0][None])
    hits, tried = count_hits(captured.arithmetic, captured.circuit, column, range(count))
    return (
        f"the first rows of the first {tried} prompts fit {hits} tokens of one prompt: are the "
        "outputs (T, B, width)? give (B, T, width)"
        if 2 * hits > tried > 1
        else ""
    )


def count_alone(captured: Captured, prompt: int, row: int) -> tuple[int, int]:
    """How many of the first tokens of a prompt's rows from one on fit as a prompt's beginning."""
    positions = [t - row for t in captured.positions if t >= row]
    later = captured.stored.map(lambda x: x[prompt : prompt + 1, row:])
    return count_hits(captured.arithmetic, captured.circuit, later, positions)


def _best_site(captured: Captured, computed: str | None) -> Match | None:
    """The likeliest site, if most of the first tokens fit there."""
    try:
        matches, _ = find_site(
            captured.checkpoint, captured.stored, captured.held, captured.source, None, computed
        )
    except RequestError:
        return None
    return matches[0] if 2 * matches[0].hits > matches[0].tried else None
