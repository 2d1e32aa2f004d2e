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
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch import Tensor

from arch.kernels.arithmetic import plain_arithmetic
from eval.captured.answer import Recovered
from eval.captured.arithmetic import EXACT
from eval.captured.captured import Captured, identify, leave_out_empty, start_at
from eval.captured.certainty.certify import certify
from eval.captured.files.axes import find_order, say_what_is_clipped, take_layer
from eval.captured.files.caches import Cache, read_cache
from eval.captured.files.stored import FLOATS, read_stored, view_bits
from eval.captured.files.tensors import Raw
from eval.captured.hints import add_hints
from eval.captured.locate import list_precisions
from eval.captured.search.head import LOGITS, are_logits, solve_head
from eval.captured.search.outputs import pass_over_damage, search, try_exact
from eval.inversion.solver import Solver, parse_solvers
from eval.messages import ArgumentError, question, say_once
from eval.models.checkpoint import open_models
from eval.models.corpora import choose_corpus
from eval.sites.slices import Slice

if TYPE_CHECKING:
    from eval.sites.activations import Model


DAMAGED = 4  # positions of a prompt that are passed over, at most
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
            first positions. If the first positions are hidden, each precision that the format
            allows is tried, until most tokens are certain.
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
    held, begin = read_cache(outputs, layer, part)
    first = begin if first is None else first
    context = checkpoint.config.context
    if isinstance(first, int) and first >= context:
        raise ArgumentError(
            "first", f"the model's context is {context}; give a row within it", first
        )
    raw = Raw(view_bits(held, format), scale, zero_point)
    raw = take_layer(checkpoint.model, raw, layer, part)
    order = find_order(checkpoint.model, raw.outputs.shape, layer, part)
    stored = start_at(read_stored(raw.outputs, format, raw.scale, raw.zero_point, order), first)
    say_what_is_clipped(raw)
    stored = stored.to(checkpoint.model.embedding.weight.device)
    stored, visible = leave_out_empty(stored, _slice(shown, first, stored.values.shape[1]))
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
    chosen = _choose_solver(captured, solver, settings)
    captured, answer = _search_precisions(captured, chosen, seed, computed)
    return add_hints(captured, answer, layer, computed, tuple(raw.outputs.shape))


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
    answers = list[tuple[Captured, Recovered]]()
    for name in names:
        if answers:
            say_once(
                f"most tokens are not certain as computed in {names[0]}, which is supposed, as the "
                f"first row is not shown whole: searching as computed in {name}, too"
            )
        chosen = replace(captured, arithmetic=replace(captured.arithmetic, name=name))
        answers.append(_search(chosen, solver, seed, computed))
        if answers[-1][1].mostly_certain:
            break
    certain = [sum(map(bool, chain(*found.certificates))) for _, found in answers]
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
    """The answer in one precision; damaged positions are passed over, `DAMAGED` at most."""
    found = search(captured, solver, seed)
    if captured.arithmetic.name != EXACT and computed is None:
        captured, found = try_exact(captured, found)
    certified = certify(captured, found)
    for _ in range(DAMAGED):
        repaired = pass_over_damage(captured, found, certified)
        if repaired is None:
            break
        found, certified = repaired, certify(captured, repaired)
    return captured, Recovered.of(captured, found, certified, solver.name)


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
