"""Hints: what may be wrong with captured outputs whose answer is unsure, and what to give instead.

Outputs may fit at another site or in another precision, begin in a later row, hold several prompts
in one row, or have been changed on their way.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from torch.nn.functional import cosine_similarity

from eval.captured.answer import Recovered
from eval.captured.arithmetic import EXACT, take_windows
from eval.captured.captured import Captured, find_zeros
from eval.captured.files.stored import FLOATS
from eval.captured.locate import (
    FEWEST_ROWS,
    Match,
    count_hits,
    describe_change,
    find_beginnings,
    find_factor,
    find_site,
)
from eval.messages import RequestError, first_of, say_once

KEY_NORM = re.compile(r"(q?k|key)_(layer)?norm")
"""Names of a norm of keys, as models of transformers have them."""
BEGINNINGS = 16  # rows that fit a first token, at most, behind which more tokens are searched for
BEHIND = 3  # positions behind the last that fits, from which they may be padding, or another prompt
ONE_ROW = 0.01  # of its length, what values may differ by from lacking one row at most positions
LEANING = 0.25  # of a step, by which rounded numbers do not lie off to one side on average
LARGE = 1.5  # steps: of smaller numbers, those that are not 0 may lie off to one side
PARALLEL = 0.99  # the cosine of outputs of one direction, at least
LEAST_FACTOR = 2.0  # times the length of other outputs, from which some may have been scaled
WINDOWS = 4, 32  # of background text, and tokens of each
MISFIT = (
    "are these outputs of this model, and of a prompt's beginning? of later positions give --first,"
    " the position of the first row"
)


def add_hints(
    captured: Captured,
    answer: Recovered,
    layer: int | Sequence[int] | None,
    computed: str | None,
    shape: tuple[int, ...],
) -> Recovered:
    """Says what may be wrong with the outputs, and adds to an answer where else its rows fit.

    Args:
        layer: that was given; None: it was found.
        computed: the precision that was given; None: it was found.
        shape: of the outputs that were given.
    """
    if elsewhere := _look_elsewhere(captured, answer, layer, computed):
        answer = replace(answer, elsewhere=elsewhere)
    if not answer.mostly_certain and (swapped := _describe_swapped(captured)):
        say_once(swapped)
    _say_what_misses(captured, answer, shape)
    _say_what_may_pad(answer)
    _say_what_repeats(captured, answer)
    _say_what_is_packed(captured, answer)
    return answer


def _look_elsewhere(
    captured: Captured,
    answer: Recovered,
    layer: int | Sequence[int] | None,
    computed: str | None,
) -> str:
    """Says where else, or in which precision, an answer's rows fit; empty where nothing is said.

    Tried are the likeliest sites of the model, other precisions of its computation, and later rows
    as the first ones of a prompt, as behind padding on the left.
    """
    seen, other = "", "" if answer.proven else _describe_bias(captured, answer)
    misfit = layer is not None and not answer.fits
    doubtful = not (misfit or other or answer.mostly_certain)
    if doubtful and (cut := _describe_cut_off(captured, answer)):
        seen, other = "few tokens are certain", cut
    elif not answer.proven:
        seen = "nothing fits" if misfit else "no token is certain"
        other = other or _find_other_site(captured, computed) or _find_first_row(captured, 0)
        numbers = "" if other else _describe_numbers(captured, answer)
        other = other or (MISFIT + numbers if misfit else numbers.removeprefix("; "))
    elif layer is not None and all(2 * len(tail) > captured.length for tail in answer.left_out):
        # as of keys, of which the first is not turned
        seen, other = "most rows fit nothing", _find_other_site(captured, computed)
    if other:
        say_once(f"{seen} at {answer.site}; {other}")
    return other


def _describe_bias(captured: Captured, answer: Recovered) -> str:
    """A line if values lack one row of numbers at all positions, as the projection's bias."""
    if captured.circuit.part != "value" or not captured.visible.has_all_channels:
        return ""
    own = captured.circuit.of_tokens(answer.tokens.to(captured.stored.values.device))
    filled = ~find_zeros(captured.stored)[:, captured.positions]
    lacking = (own - captured.stored.values)[:, captured.positions][filled]
    row = lacking.median(dim=0).values
    if len(lacking) < BEHIND or (lacking - row).norm(dim=-1).median() >= ONE_ROW * row.norm():
        return ""
    return (
        "they lack the projection's bias, which TransformerLens folds into that of the output: "
        "capture with fold_value_biases=False"
    )


def _describe_numbers(captured: Captured, answer: Recovered) -> str:
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
    return describe_change(model, seen) or _describe_length(captured, answer)


def _describe_length(captured: Captured, answer: Recovered) -> str:
    """What outputs of another length than the model's own tell: the end of a line, or empty.

    Where tokens fit, the answer's own outputs tell, if their direction is the same, as it is not of
    noise. Else ordinary text tells, which noise and coarse codes are not twice as long as.
    """
    circuit = captured.circuit
    later = [t for t in captured.positions if t] or captured.positions
    seen = captured.stored.values[:, later].flatten(0, 1)
    filled = seen.any(dim=-1)
    seen = seen[filled]
    if not captured.visible.has_all_channels or len(seen) < FEWEST_ROWS:
        return ""
    if answer.fits:
        own = circuit.of_tokens(answer.tokens)[:, later].flatten(0, 1)[filled]
        parallel = cosine_similarity(own, seen, dim=-1).median() >= PARALLEL
        factor = find_factor(seen, own) if parallel else None
    else:
        text = take_windows(captured.checkpoint, captured.arithmetic.corpus, *WINDOWS)
        own = circuit.of_tokens(text)[:, min(1, text.shape[1] - 1) :]
        factor = find_factor(seen, own, LEAST_FACTOR)
    return (
        f"; they are about {factor:.2g} times as long as this model's own at {circuit.name}: were "
        "they scaled, as the inputs of an SAE are? divide by the factor that was used"
        if factor
        else ""
    )


def _describe_cut_off(captured: Captured, answer: Recovered) -> str:
    """A line if the numbers were not rounded, but cut off: they lie half a step off to one side.

    Those of the answer lie farther from zero, or all of them higher.
    """
    stored, select = captured.stored, captured.visible.select
    values, steps = select(stored.values), select(stored.step)
    off = (select(captured.circuit.of_tokens(answer.tokens)) - values) / steps
    large = values.abs() > LARGE * steps
    near = (off.abs() <= 1) & large
    leaning = max(float(x[near].mean()) for x in (off, off * values.sign()))
    return (
        "the numbers lie about half a step nearer to zero, or lower, than the answer's outputs: "
        "were they cut off, as by x.to(torch.int8), and not rounded? round them to the nearest"
        if leaning > LEANING and 2 * near.sum() > large.sum()
        else ""
    )


def _find_first_row(captured: Captured, prompt: int) -> str:
    """The row from which on most of the first tokens of a prompt fit, as a line; empty if none.

    Rows that fit a token at the first position are tried, of all rows that are shown. As many must
    not fit from row 0 on, as of coarse numbers, nor may the first row be hidden.
    """
    if captured.held[0]:
        return ""
    stored = captured.stored
    filled = stored.values[prompt].any(dim=-1)
    rows = [t for t in captured.positions if 0 < t < captured.length - 1 and filled[t]]
    alone = stored.map(lambda x: x[prompt, rows, None])
    beginnings = find_beginnings(captured.arithmetic, captured.circuit, alone)[:BEGINNINGS]
    if not beginnings:
        return ""
    own, _ = _count_alone(captured, prompt, 0)
    for number in beginnings:
        hits, count = _count_alone(captured, prompt, rows[number])
        if 2 * hits > count and hits > own:
            return (
                f"from row {rows[number]} on {hits} of {count} tokens fit; are the rows before "
                f"padding? give the rows from {rows[number]} on alone, or a tensor attention_mask "
                "(B, T)"
            )
    return ""


def _find_other_site(captured: Captured, computed: str | None) -> str:
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


def _best_site(captured: Captured, computed: str | None) -> Match | None:
    """The likeliest site, if most of the first tokens fit there."""
    corpus = captured.arithmetic.corpus
    try:
        matches, _ = find_site(
            captured.checkpoint, captured.stored, captured.held, corpus, None, computed
        )
    except RequestError:
        return None
    return matches[0] if 2 * matches[0].hits > matches[0].tried else None


def _describe_swapped(captured: Captured) -> str:
    """A line if the first rows of all prompts fit as one prompt: `(T, B, width)`; else empty.

    Those of the second prompt must not all fit as its own, as where a tolerance is wide.
    """
    stored, count = captured.stored, len(captured.stored.values)
    if count < 2 or captured.held[0] or count > captured.checkpoint.config.context:
        return ""
    column = stored.map(lambda x: x[:, 0][None])
    hits, tried = count_hits(captured.arithmetic, captured.circuit, column, range(count))
    own, of_own = _count_alone(captured, 1, 0)
    return (
        f"the first rows of the first {tried} prompts fit {hits} tokens of one prompt: are the "
        "outputs (T, B, width)? give (B, T, width)"
        if 2 * hits > tried > 1 and own < of_own
        else ""
    )


def _count_alone(captured: Captured, prompt: int, row: int) -> tuple[int, int]:
    """How many of the first tokens of a prompt's rows from one on fit as a prompt's beginning."""
    positions = [t - row for t in captured.held if t >= row]
    later = captured.stored.map(lambda x: x[prompt : prompt + 1, row:])
    return count_hits(captured.arithmetic, captured.circuit, later, positions)


def _say_what_misses(captured: Captured, answer: Recovered, shape: tuple[int, ...]) -> None:
    """Says of which prompts no token fits where tokens of others fit: they may be no prompts.

    Else, of which no token is certain where tokens of others are, if one begins in a later row.
    Prompts of zeros are said before.
    """
    zeros = find_zeros(captured.stored).all(dim=1).tolist()
    fitting = [any(grade != "unknown" for grade in grades) for grades in answer.grades]
    unsure = [
        prompt
        for prompt, proofs in enumerate(answer.certificates)
        if not any(proofs) and not zeros[prompt]
    ]
    missing = [prompt for prompt in unsure if not fitting[prompt]]
    prompts = missing or (unsure if answer.proven else [])
    if not any(fitting) or not prompts:
        return
    first_row = _find_first_row(captured, prompts[0])
    if not first_row and not missing:
        return
    say_once(
        f"no token {'fits' if missing else 'is certain'} in prompt {first_of(prompts)} "
        f"(of {len(fitting)}, outputs {shape}): "
        + (
            f"in prompt {prompts[0]} {first_row}"
            if first_row
            else "does their first axis hold tokens, layers, or keys and values? give "
            "(B, T, width) of one of them"
        )
    )


def _say_what_may_pad(answer: Recovered) -> None:
    """Says where rows of one token alone stand before many that no token fits: padding."""
    padded = {
        prompt: tail[0]
        for prompt, (row, tail) in enumerate(
            zip(answer.tokens.tolist(), answer.left_out, strict=True)
        )
        if len(tail) >= BEHIND and tail[0] > 1 and len(set(row[: tail[0]])) == 1
    }
    if padded:
        prompt, row = next(iter(padded.items()))
        say_once(
            f"prompt {prompt}: its first {row} rows are of one token, and none fits behind: is that"
            f" padding? give the rows from {row} on alone, or a tensor attention_mask (B, T)"
            + f"; likewise of {len(padded) - 1} more prompts"
            * (len(padded) > 1)
        )


def _say_what_repeats(captured: Captured, answer: Recovered) -> None:
    """Says where the first row that proves no token is one of those before it."""
    for prompt, (rows, grades) in enumerate(
        zip(captured.stored.values, answer.grades, strict=True)
    ):
        row = next((t for t, grade in enumerate(grades) if grade != "certain"), 0)
        same = (rows[:row] == rows[row]).all(dim=-1).nonzero()[:, 0].tolist()
        if same and rows[row].any():
            say_once(
                f"prompt {prompt}: row {row} repeats row {same[-1]}, and proves no token: do chunks"
                " overlap? give each row once"
            )
            return


def _say_what_is_packed(captured: Captured, answer: Recovered) -> None:
    """Says where the rows behind those that prove tokens are another prompt's.

    Of one prompt alone, as padding behind the others of a batch would take a search for each.
    """
    empty = find_zeros(captured.stored).tolist()
    for prompt, (proofs, alike) in enumerate(zip(answer.certificates, answer.alike, strict=True)):
        fitting = [t for t, proof in enumerate(proofs) if proof or t in alike]
        filled = [t for t in captured.positions if not empty[prompt][t]]
        behind = [t for t in filled if fitting and t > fitting[-1]]
        doubtful = not any(proofs) or (alike and captured.stored.coarse)  # tokens fit by chance
        if len(behind) < BEHIND or doubtful:
            continue
        row = behind[0]
        hits, count = _count_alone(captured, prompt, row)
        if 2 * hits > count:
            say_once(
                f"prompt {prompt}: from row {row} on {hits} of {count} tokens fit as another "
                "prompt's beginning, as where several are packed; give the rows from "
                f"{row} on alone as well"
            )
        return
