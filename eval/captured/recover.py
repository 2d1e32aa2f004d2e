"""Tokens from outputs that a caller captured, anywhere: no truth is known.

    outputs = transformers_model(**inputs, output_hidden_states=True).hidden_states[15]
    print(recover("hf:HuggingFaceTB/SmolLM2-135M", outputs, layer=15))

How far rounding moves an output, and what a computation below float32 changes, is measured twice:
before the search on background text at the same site, and after it on the answer's own tokens,
which decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from eval.captured.answer import Recovered
from eval.captured.arithmetic import ALLOWED, EXACT, Arithmetic
from eval.captured.certainty.certify import Agreement, consistent, find_evidence, settle_alike
from eval.captured.certainty.damage import search_behind
from eval.captured.certainty.likelihood import LIKELY, token_probabilities
from eval.captured.elsewhere import look_elsewhere
from eval.captured.files.axes import take_layer
from eval.captured.files.caches import Cache, read_cache
from eval.captured.files.stored import FLOATS, read_stored
from eval.captured.site import Captured, first_tells, identify, leave_out_empty, start_at
from eval.inversion.problem import ACCEPT, Problem
from eval.inversion.solver import Solver, ask_solver, parse_solvers
from eval.messages import RequestError, say_once
from eval.models.checkpoint import open_models
from eval.models.corpora import choose_corpus
from eval.sites.capture import capture
from eval.sites.circuit import uncertified
from eval.sites.slices import Slice

if TYPE_CHECKING:
    from eval.sites.activations import Model


DAMAGED = 4  # positions of a prompt that are passed over, at most
ROUNDS = 2  # searches: the second with limits measured on the first one's answers


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
        model: a model directory, `hf:` and a pretrained model's name, or an open model.
        outputs: of the site, `(T, width)`, or `(B, T, width)` for prompts of one length; what
            stands at positions that are not shown is not looked at. For keys and values also
            `(B, heads, T, width)`, or the cache itself, of one of the classes of transformers that
            hold numbers as they were computed.
        layer: whose outputs they are: 0 (the embedding) to the number of blocks, as the list
            `hidden_states` of transformers counts, but for its last entry, which is part final;
            several are joined along the channels. None: found (`find_site`).
        part: block (the stream after it; default), mixer, stream, key, rotated_key (as caches hold
            keys) or value.
        shown: positions that are shown, or a slice as "[:, 3:, :]"; None: all.
        first: position of the first row of outputs; the tokens before it are hidden. None: 0, or
            what a cache with a sliding window says of itself.
        format: one of `FORMATS` of `eval.captured.files.stored`, that the outputs went through;
            None: found from them.
        scale: of numbers of 8 bits: one number, or `(width,)` for channels, `(T,)` or `(T, 1)` for
            tokens, `(T, groups)` for groups of channels, `(B, heads, T, 1)` for tokens and heads.
        zero_point: of integers: the code that stands for 0, alike.
        computed: fp32, bf16 or fp16, in which the captured model computed; None: found, which takes
            the first positions.
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
        raise RequestError(f"computed {computed!r}: must be one of {', '.join(FLOATS)}")
    held = read_cache(outputs, layer, part)
    first = held.first if first is None else first
    taken = take_layer(checkpoint.model, held.outputs, layer, part)
    stored = start_at(read_stored(taken, format, scale, zero_point), first)
    stored = stored.to(checkpoint.model.embedding.weight.device)
    T = stored.values.shape[1]
    visible = _slice(shown, first, T)
    visible = leave_out_empty(stored, visible)
    source = choose_corpus([checkpoint], corpus)
    captured = identify(checkpoint, source, stored, visible, layer, part, computed)
    if shown is None and solver is None and T > 1 and not first and not first_tells(captured):
        say_once("position 0: too coarse to tell its token; later positions are asked for it")
        captured = captured.after_first()
    captured = captured.up_to_last()
    visible, T = captured.visible, captured.length
    name = solver or ("alternating" if visible.hidden(T) else "propose")
    (asked,) = parse_solvers({name: settings or {}})
    if refusal := asked.refusal(visible, T, causal=True):
        raise RequestError(f"solver {name}: {refusal}")
    if captured.circuit.part == "rotated_key" and (visible.low, visible.high) != (0, None):
        raise RequestError("shown: rotated keys are recovered from all channels; leave `:`")
    found = _search(captured, asked, seed)
    if captured.arithmetic.name != EXACT and computed is None:  # float32 may fit after all
        exact = Arithmetic(checkpoint)
        verified = _verify(found.problem, found.tokens, exact)
        if bool((verified.residual <= verified.allowed + captured.spread).all()):
            captured = replace(captured, arithmetic=exact)
            found = replace(found, verified=verified)
    certified = _certify(captured, found)
    for _ in range(DAMAGED):
        repaired = _pass_over_damage(captured, found, certified)
        if repaired is None:
            break
        found, certified = repaired, _certify(captured, repaired)
    tokens, verified, certificates, alike, chances, left_out = certified
    ids = tokens.tolist()
    kept = [row[: min(tail, default=T)] for row, tail in zip(ids, left_out, strict=True)]
    answer = Recovered(
        tokens=tokens,
        texts=[checkpoint.tokenizer.decode(row, skip_special_tokens=False) for row in kept],
        pieces=[checkpoint.pieces(some) for some in ids],
        positions=captured.positions,
        residual=verified.residual,
        floor=verified.floor + captured.half_steps / 3**0.5,
        certificates=certificates,
        probabilities=[
            [1.0 if proof else None if p != p else p for proof, p in zip(proofs, row, strict=True)]
            for proofs, row in zip(certificates, chances.tolist(), strict=True)
        ],
        left_out=left_out,
        alike=alike,
        alike_pieces=[{t: checkpoint.words(a) for t, a in others.items()} for others in alike],
        site=f"{captured.circuit.part}.{'+'.join(map(str, captured.circuit.sites))}",
        matches=captured.matches,
        format=stored.format,
        computed=captured.arithmetic.name,
        solver=name,
        evaluations=found.evaluations,
    )
    if layer is not None and not answer.fits:
        say_once(f"nothing fits at {answer.site}; {look_elsewhere(captured, computed)}")
    return answer


class Verified(NamedTuple):
    """An answer beside what was captured."""

    outputs: Tensor  # of its tokens, (B, T, width)
    rounding: Tensor  # how far each of these numbers may move, (B, T, width)
    floor: Tensor  # how far the outputs shown may, (B, S)
    allowed: Tensor  # distance that is still the same answer's, (B, S), formats left out
    residual: Tensor  # distance from what was captured, (B, S)


class _Certified(NamedTuple):
    """An answer, and how sure each of its tokens is."""

    tokens: Tensor  # (B, T)
    verified: Verified
    certificates: list[list[str | None]]
    alike: list[dict[int, list[int]]]
    chances: Tensor  # the probability of tokens that are not certain, (B, T); NaN where not asked
    left_out: list[list[int]]  # positions at the end that nothing fits, of each prompt


@dataclass(frozen=True)
class _Found:
    """What a search found."""

    problem: Problem  # as it was asked last
    tokens: Tensor  # (B, T)
    proofs: list[str]  # of each prompt: the certificate that its answer may have
    evaluations: list[int]
    verified: Verified


def _search(captured: Captured, asked: Solver, seed: int) -> _Found:
    """Asks the solver, a second time where wrong tokens kept within the limits of the first."""
    problem = captured.pose()
    B, T = len(problem.target), problem.length
    answers, rows, evaluations = {}, list(range(B)), [0] * B
    tokens = torch.zeros(B, T, dtype=torch.long, device=problem.target.device)
    for _ in range(ROUNDS):
        chance = [torch.Generator().manual_seed(seed) for _ in rows]
        (found,) = ask_solver(asked, [problem.of(rows)], chance)
        answers |= dict(zip(rows, found, strict=True))
        for row, one in zip(rows, found, strict=True):
            tokens[row] = one.tokens
            evaluations[row] += one.evaluations
        verified = _verify(problem, tokens, captured.arithmetic)
        limit = verified.allowed + captured.spread
        within = verified.residual <= limit
        loose = ~within.all(dim=1) & (verified.residual <= problem.limit).all(dim=1)
        if asked.name != "propose" or not (rows := loose.nonzero()[:, 0].tolist()):
            break
        limit = torch.minimum(problem.limit, limit)
        near = None if problem.near is None else torch.minimum(problem.near, limit)
        problem = replace(problem, limit=limit, near=near)
    proofs = [answers[row].certificate or "residual" for row in range(B)]
    return _Found(problem, tokens, proofs, evaluations, verified)


def _certify(captured: Captured, found: _Found) -> _Certified:
    """Says how sure each token is, and takes likelier ones where stored numbers fit several."""
    circuit, stored, T = captured.circuit, captured.stored, captured.length
    problem, tokens = found.problem, found.tokens
    own, rounding = found.verified.outputs, found.verified.rounding
    if problem.circuit is not circuit:
        ((own, rounding),) = capture([circuit], tokens)
        rounding = torch.maximum(rounding, captured.arithmetic.change(circuit, tokens, own))
    # A small number may be the difference of large ones, which another order of sums moves more.
    ordinary = own.square().mean(dim=-1, keepdim=True).sqrt()
    rounding = torch.maximum(rounding, torch.finfo(torch.float32).eps * ordinary)
    agreement = Agreement(circuit, stored, rounding, captured.visible)
    shown = agreement.counted
    state = _settle(captured, found, agreement, tokens)
    evidence = find_evidence(state.fits, captured.positions, T)
    if not bool((evidence == shown).all()) and bool(evidence.any()):
        state = _settle(captured, found, replace(agreement, evidence=evidence), state.tokens)
        evidence = find_evidence(state.fits, captured.positions, T)
    unproved = uncertified(captured.checkpoint.model)
    certified = consistent(evidence)
    certificates = [
        [
            proof if sure and not unproved and t not in others else None
            for t, sure in enumerate(prompt)
        ]
        for proof, prompt, others in zip(found.proofs, certified, state.alike, strict=True)
    ]
    sure = torch.tensor([[proof is not None for proof in of] for of in certificates])
    named = torch.tensor([[t in others for t in range(T)] for others in state.alike])
    wanted = shown & ~sure.to(shown) & ~named.to(shown)
    values = stored.values
    chances = token_probabilities(circuit, values, captured.visible, state.tokens, wanted)
    left_out = [
        _find_tail(shown[row], (evidence[row] | (chances[row] >= LIKELY).to(shown)))
        for row in range(len(tokens))
    ]
    return _Certified(state.tokens, state.verified, certificates, state.alike, chances, left_out)


class _Settled(NamedTuple):
    """An answer whose tokens fit best among those that agree."""

    tokens: Tensor  # (B, T)
    verified: Verified
    alike: list[dict[int, list[int]]]
    fits: Tensor  # whether each position shown agrees, (B, S)


def _settle(captured: Captured, found: _Found, agreement: Agreement, tokens: Tensor) -> _Settled:
    circuit, verified = captured.circuit, found.verified
    settled, alike = settle_alike(found.problem, tokens, agreement)
    if not settled.equal(found.tokens):
        verified = _verify(found.problem, settled, captured.arithmetic)
    own = verified.outputs if found.problem.circuit is circuit else circuit.of_tokens(settled)
    fits = verified.residual <= verified.allowed + captured.half_steps
    return _Settled(settled, verified, alike, fits & agreement.of_prompts(own))


def _find_tail(shown: Tensor, counts: Tensor) -> list[int]:
    """The positions shown `(T,)` after the last that counts; none where no position counts."""
    if not bool(counts.any()):
        return []
    last = int(counts.nonzero()[-1, 0])
    return [t for t in shown.nonzero()[:, 0].tolist() if t > last]


def _pass_over_damage(captured: Captured, found: _Found, certified: _Certified) -> _Found | None:
    """Goes on behind a position whose own output no token fits; None where that leads nowhere.

    The tokens after it were searched for behind a token that may be wrong. Others are tried in its
    place, by whether some token after it fits the next output.
    """
    tokens, problem = certified.tokens.clone(), found.problem
    changed = False
    for row, tail in enumerate(certified.left_out):
        if len(tail) > 1 and tail[1] == tail[0] + 1 and tail[0] + 1 in problem.positions:
            better = search_behind(problem.of([row]), tokens[row], tail[0])
            if better is not None:
                tokens[row], changed = better, True
    if not changed:
        return None
    return replace(found, tokens=tokens, verified=_verify(problem, tokens, captured.arithmetic))


def _verify(problem: Problem, tokens: Tensor, arithmetic: Arithmetic) -> Verified:
    """Holds the outputs of `(B, T)` tokens against what was captured."""
    ((own, rounding),) = capture([problem.circuit], tokens)
    changed = arithmetic.change(problem.circuit, tokens, own)
    select = problem.slice.select
    allowed = ACCEPT * select(rounding).norm(dim=-1) + ALLOWED * select(changed).norm(dim=-1)
    rounding = torch.maximum(rounding, changed)
    floor = select(rounding).norm(dim=-1)
    return Verified(own, rounding, floor, allowed, problem.distances(own))


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
        raise RequestError(f"shown: {list(shown)}; give positions from {first} to {length - 1}")
    return read or Slice.of(sorted(set(shown)), length)
