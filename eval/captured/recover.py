"""Tokens from outputs that a caller captured, anywhere: no truth is known.

    outputs = transformers_model(**inputs, output_hidden_states=True).hidden_states[15]
    print(recover("hf:HuggingFaceTB/SmolLM2-135M", outputs, layer=15))

How far rounding moves an output, and what a computation below float32 changes, is measured twice:
before the search on background text at the same site, and after it on the answer's own tokens,
which decides.
"""

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from arch.kernels.arithmetic import plain_arithmetic
from eval.captured.answer import Recovered
from eval.captured.arithmetic import EXACT
from eval.captured.certainty.certify import Certified, certify
from eval.captured.certainty.verified import Found
from eval.captured.elsewhere import (
    count_alone,
    describe_numbers,
    describe_swapped,
    find_first_row,
    find_other_site,
    look_elsewhere,
)
from eval.captured.files.axes import find_order, take_layer
from eval.captured.files.caches import Cache, read_cache
from eval.captured.files.stored import FLOATS, read_stored, view_bits
from eval.captured.files.tensors import Raw
from eval.captured.locate import list_precisions
from eval.captured.search.head import LOGITS, are_logits, solve_head
from eval.captured.search.outputs import pass_over_damage, search, try_exact
from eval.captured.site import Captured, find_zeros, identify, leave_out_empty, start_at
from eval.inversion.solver import Solver, parse_solvers
from eval.messages import ArgumentError, first_of, question, say_once
from eval.models.checkpoint import open_models
from eval.models.corpora import choose_corpus
from eval.sites.slices import Slice

if TYPE_CHECKING:
    from eval.sites.activations import Model


DAMAGED = 4  # positions of a prompt that are passed over, at most
BEHIND = 3  # positions that no token fits, from which rows before them may be padding
MANY = 3  # hidden tokens whose search is announced, as it may take long


@question()
@plain_arithmetic()
def recover(
    model: "Model",
    outputs: Tensor | Cache,
    *,
    layer: int | Sequence[int] | None = None,
    part: str | None = None,
    shown: str | Sequence[int] | None = None,
    first: int | None = None,
    format: str | None = None,
    scale: Tensor | float | None = None,
    zero_point: Tensor | float | None = None,
    computed: str | None = None,
    solver: str | None = None,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    corpus: str | None = None,
    device: str = "auto",
) -> Recovered:
    """Recovers the tokens behind the outputs of one site.

    Args:
        model: a model directory, a run (RUN, RUN@STEP, RUN@best), `remnant:NAME`, `hf:NAME`, or an
            open model.
        outputs: of the site, `(T, width)`, or `(B, T, width)` for prompts of one length; what
            stands at positions that are not shown is not looked at. For keys and values also
            `(B, heads, T, width)`, or the cache itself, of one of the classes of transformers that
            hold numbers as they were computed.
        layer: whose outputs they are: 0 (the embedding) to the number of blocks, as the list
            `hidden_states` of transformers counts, but for its last entry, which is part final;
            several are joined along the channels. None: found (`find_site`).
        part: block (the stream after it; default), mixer, stream, key, rotated_key (as caches hold
            keys), value, final (the last block behind the final norm) or logits, to which
            log-probabilities of all tokens count.
        shown: positions that are shown, or a slice as "[:, 3:, :]"; None: all.
        first: position of the first row of outputs; the tokens before it are hidden. None: 0, or
            what a cache with a sliding window says of itself.
        format: one of `FORMATS` of `eval.captured.files.stored`, that the outputs went through;
            None: found from them.
        scale: of numbers of 8 bits: one number, or `(width,)` for channels, `(T,)` or `(T, 1)` for
            tokens, `(T, groups)` for groups of channels, `(B, heads, T, 1)` for tokens and heads.
        zero_point: of integers: the code that stands for 0, alike.
        computed: fp32, bf16 or fp16, in which the captured model computed; None: found, by the
            first positions; where these are hidden, each that the format may be of is searched in,
            until most tokens are certain.
        solver: one of `python -m eval solvers`; None: `propose` where all positions are shown, else
            `alternating`.
        settings: of the solver.
        seed: of solvers that draw at random.
        corpus: whose held-out text the solver guesses from; None: that of the model's training.
        device: where to compute; auto takes a GPU that is in reach.

    Raises:
        RequestError: outputs of another shape or width, that are not finite, or longer than the
            context; integers without a scale; a site or slice that does not exist; a solver that
            cannot be asked this.
        ModelError: the model cannot be opened.
    """
    (checkpoint,) = open_models(model, device)
    if computed not in (None, *FLOATS):
        raise ArgumentError("computed", f"must be one of {', '.join(FLOATS)}", repr(computed))
    layer, shown, first = (
        _read_whole(name, given)
        for name, given in (("layer", layer), ("shown", shown), ("first", first))
    )
    held = read_cache(outputs, layer, part)
    first = held.first if first is None else first
    context = checkpoint.config.context
    if isinstance(first, int) and first >= context:
        raise ArgumentError(
            "first", f"the model's context is {context}; give a row within it", first
        )
    raw = Raw(view_bits(held.outputs, format), scale, zero_point)
    raw = take_layer(checkpoint.model, raw, layer, part)
    order = find_order(checkpoint.model, raw.outputs.shape, layer, part)
    stored = start_at(read_stored(raw.outputs, format, raw.scale, raw.zero_point, order), first)
    stored = stored.to(checkpoint.model.embedding.weight.device)
    visible = leave_out_empty(stored, _slice(shown, first, stored.values.shape[1]))
    source = choose_corpus([checkpoint], corpus)
    if part == LOGITS or (part is layer is None and are_logits(checkpoint.model, stored.values)):
        last = checkpoint.config.n_layers
        if layer not in (None, last, [last]):
            raise ArgumentError(
                "layer", f"logits are of the last layer, {last}; leave it out", layer
            )
        if not visible.has_all_channels:
            raise ArgumentError("shown", "logits are solved from all channels; leave `:`")
        solved = solve_head(checkpoint.model, stored)
        stored, layer, part = solved.to(stored.values.device), last, "final"
    captured = identify(checkpoint, source, stored, visible, layer, part, computed)
    if shown is None and solver is None:
        captured = captured.without_first()
    captured = captured.up_to_last()
    chosen = _choose_solver(captured, solver, settings)
    captured, answer = _search_precisions(captured, chosen, seed, computed)
    if elsewhere := _look_elsewhere(captured, answer, layer, computed):
        answer = replace(answer, elsewhere=elsewhere)
    grades = [grade for prompt in answer.grades for grade in prompt]
    if 2 * grades.count("certain") < len(grades) and (swapped := describe_swapped(captured)):
        say_once(swapped)
    _say_what_misses(captured, answer, tuple(raw.outputs.shape))
    _say_what_may_pad(answer)
    _say_what_repeats(captured, answer)
    _say_what_is_packed(captured, answer)
    return answer


def _read_whole(name: str, given: Any) -> Any:
    """Whole numbers of an argument, one or several; None, and the text of a slice, as they are.

    Raises:
        RequestError: anything else, as a list of truths, which Python takes for ones and zeros.
    """
    if given is None or (name == "shown" and isinstance(given, str)):
        return given
    try:
        entries, is_list = list(given), True
    except TypeError:  # a number, or one of numpy or torch
        entries, is_list = [given], False
    try:
        numbers = [operator.index(x) for x in entries]
        wrong = any("bool" in str(getattr(x, "dtype", type(x))) for x in entries)
        wrong |= name == "layer" and not 0 < len(numbers) == len({*numbers})
        wrong |= name == "layer" and numbers != sorted(numbers)
    except TypeError:
        numbers, wrong = [], True
    if wrong:
        seen = " ".join(repr(given).split())[:80]
        raise ArgumentError(name, "give whole numbers; of several layers each once, in order", seen)
    return numbers if is_list or name == "shown" else numbers[0]


def _look_elsewhere(
    captured: Captured,
    answer: Recovered,
    layer: int | Sequence[int] | None,
    computed: str | None,
) -> str:
    """Says where else, or in which precision, an answer's rows fit; empty where nothing is said."""
    seen, other = "", ""
    if layer is not None and not answer.fits:
        seen, other = "nothing fits", look_elsewhere(captured, computed)
    elif not answer.proven:
        seen, other = "no token is certain", find_other_site(captured, computed)
        other = other or describe_numbers(captured).removeprefix("; ")
    elif layer is not None and all(2 * len(tail) > captured.length for tail in answer.left_out):
        # as of keys, of which the first is not turned
        seen, other = "most rows fit nothing", find_other_site(captured, computed)
    if other:
        say_once(f"{seen} at {answer.site}; {other}")
    return other


def _say_what_misses(captured: Captured, answer: Recovered, shape: tuple[int, ...]) -> None:
    """Says which prompts no token fits, where tokens of others fit: they may be no prompts.

    Prompts of zeros are said before.
    """
    fitting = [any(grade != "unknown" for grade in grades) for grades in answer.grades]
    zeros = find_zeros(captured.stored).all(dim=1).tolist()
    missing = [prompt for prompt, fits in enumerate(fitting) if not fits and not zeros[prompt]]
    if any(fitting) and missing:
        first_row = find_first_row(captured, missing[0])
        say_once(
            f"no token fits in prompt {first_of(missing)} (of {len(fitting)}, outputs {shape}): "
            + (
                f"in prompt {missing[0]} {first_row}"
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
    """Says where the rows that no token fits are those of another prompt, behind the first one.

    Of one prompt alone, as padding behind the others of a batch would take a search for each.
    """
    tails = [tail[0] if len(tail) >= BEHIND else 0 for tail in answer.left_out]
    prompt = next((number for number, row in enumerate(tails) if row), 0)
    row = tails[prompt]
    hits, count = count_alone(captured, prompt, row) if row else (0, 0)
    if 2 * hits > count:
        say_once(
            f"prompt {prompt}: from row {row} on {hits} of {count} tokens fit as another prompt's "
            f"beginning, as where several are packed; give the rows from {row} on alone as well"
        )


def _choose_solver(captured: Captured, name: str | None, settings: dict[str, Any] | None) -> Solver:
    """The solver that is asked, which must fit what is shown."""
    visible, T = captured.visible, captured.length
    name = name or ("alternating" if visible.hidden(T) else "propose")
    (solver,) = parse_solvers({name: settings or {}})
    if refusal := solver.refusal(visible, T, causal=True):
        raise ArgumentError("solver", f"{refusal}", name)
    if captured.circuit.part == "rotated_key" and not visible.has_all_channels:
        raise ArgumentError("shown", "rotated keys are recovered from all channels; leave `:`")
    if visible.hidden(T) > MANY:
        say_once(
            f"{visible.hidden(T)} tokens are hidden: solver {name} tries many choices of them, "
            "which may take long; fewer rows end sooner"
            + (", or try solver decoder where few positions are shown" * (name != "decoder"))
        )
    return solver


def _search_precisions(
    captured: Captured, solver: Solver, seed: int, computed: str | None
) -> tuple[Captured, Recovered]:
    """The answer; where the precision is supposed, in that in which most tokens are certain."""
    names = list_precisions(captured.stored) if captured.supposed else [captured.arithmetic.name]
    answers, certain = list[tuple[Captured, Recovered]](), list[int]()
    for name in names:
        if answers:
            say_once(
                f"most tokens are not certain as computed in {names[0]}, which is supposed, as the "
                f"first row is not shown whole: searching as computed in {name}, too"
            )
        chosen = replace(captured, arithmetic=replace(captured.arithmetic, name=name))
        answers.append(_search(chosen, solver, seed, computed))
        grades = [grade for prompt in answers[-1][1].grades for grade in prompt]
        certain.append(grades.count("certain"))
        if 2 * certain[-1] > len(grades):
            break
    if captured.supposed and not any(certain):
        others = ", or give --computed bf16 or fp16" * (len(names) == 1)
        say_once(
            f"no token is certain as computed in {', '.join(names)}; the first row, which tells "
            f"site and precision, is not shown whole: check --layer and --part{others}"
        )
    captured, answer = answers[certain.index(max(certain))]
    counts = zip(*(found.evaluations for _, found in answers), strict=True)
    return captured, replace(answer, evaluations=[sum(of_prompt) for of_prompt in counts])


def _search(
    captured: Captured, solver: Solver, seed: int, computed: str | None
) -> tuple[Captured, Recovered]:
    found = search(captured, solver, seed)
    if captured.arithmetic.name != EXACT and computed is None:
        captured, found = try_exact(captured, found)
    found, certified = _certify(captured, found)
    return captured, Recovered.of(captured, found, certified, solver.name)


def _certify(captured: Captured, found: Found) -> tuple[Found, Certified]:
    """The answer with its certificates; damaged positions are passed over, `DAMAGED` at most."""
    certified = certify(captured, found)
    for _ in range(DAMAGED):
        repaired = pass_over_damage(captured, found, certified)
        if repaired is None:
            break
        found, certified = repaired, certify(captured, repaired)
    return found, certified


def _slice(shown: str | Sequence[int] | None, first: int, length: int) -> Slice:
    """The slice that shows these positions; None shows all from the first row's on."""
    if shown is None:
        return Slice.of(range(first, length), length) if first else Slice()
    if isinstance(shown, str):
        read = Slice.parse(shown)
        shown = read.positions(length)
    else:
        read = None
    wrong = [t for t in shown if not first <= t < length]
    if wrong or not shown:
        raise ArgumentError("shown", f"{list(shown)}; give positions from {first} to {length - 1}")
    return read or Slice.of(sorted(set(shown)), length)
