"""Tokens from outputs that a caller captured, anywhere: no truth is known.

    outputs = transformers_model(**inputs, output_hidden_states=True).hidden_states[15]
    print(recover("hf:HuggingFaceTB/SmolLM2-135M", outputs, layer=15))

How far rounding moves an output, and what a computation below float32 changes, is measured twice:
before the search on background text at the same site, and after it on the answer's own tokens,
which decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from eval import RequestError
from eval.captures import open_site
from eval.circuit import Circuit, uncertified
from eval.inversion.arithmetic import ALLOWED, EXACT, Arithmetic
from eval.inversion.certify import Agreement, consistent, floor_share, settle_alike
from eval.inversion.guesses import open_readbacks
from eval.inversion.locate import TRIED, Match, find_precision, find_site
from eval.inversion.problem import ACCEPT, Problem, capture
from eval.inversion.reading import Reading
from eval.inversion.solver import ask_solver, parse_solvers
from eval.inversion.stored import FLOATS, Stored, read_stored, rounding_spread
from eval.models import open_models
from eval.slices import Slice
from eval.text import choose_corpus, say_once

if TYPE_CHECKING:
    from eval.captures import Model
    from eval.models import Checkpoint


class Cache(Protocol):
    """A key/value cache of transformers: for each layer keys and values `(B, heads, T, width)`."""

    layers: Sequence[Any]


ROUNDS = 2  # searches: the second with limits measured on the first one's answers
ORDINARY = 0.9  # share of tokens whose change is ordinary: of a few it is ten times as large
DRAWN = 512  # tokens run at the first position, to see how far their outputs lie from those stored
NEAR = 4  # times the spread of rounding: so near to a token drawn at random, others agree
UNSURE = "?"


@dataclass(frozen=True)
class Recovered:
    """The tokens of B prompts, up to the last position shown, and how sure they are.

    Attributes:
        tokens: `(B, T)`.
        texts: of each prompt.
        pieces: how each token reads on its own, by prompt.
        positions: that are shown.
        residual: distance of the answer's outputs from those given, at each position shown,
            `(B, S)`.
        floor: distance that rounding makes there, `(B, S)`: the model's own on the answer's tokens,
            and that of the format in which the outputs are stored.
        certificates: of each prompt and position: "residual" (what is shown from there on is as the
            answer's, to rounding), "enumerated" (and no other token's is), or None.
        alike: of each prompt the positions where other tokens that were run fit as well, with
            those tokens, the likeliest first; a certain token has none.
        alike_pieces: how these read.
        site: whose outputs they are, as `block.3`.
        matches: where no layer was given, the sites that were tried, the best first.
        format: in which they are stored.
        computed: the precision of the computation.
        solver: that was asked.
        evaluations: tokens sent through the model for each prompt.
    """

    tokens: Tensor
    texts: list[str]
    pieces: list[list[str]]
    positions: list[int]
    residual: Tensor
    floor: Tensor
    certificates: list[list[str | None]]
    alike: list[dict[int, list[int]]]
    alike_pieces: list[dict[int, list[str]]]
    site: str
    matches: list[Match]
    format: str
    computed: str
    solver: str
    evaluations: list[int]

    def __str__(self) -> str:
        """A line for each prompt; a token that nothing certifies stands between question marks."""
        return "\n".join(
            "".join(
                piece if sure else f"{UNSURE}{piece}{UNSURE}"
                for piece, sure in zip(pieces, certificates, strict=True)
            )
            for pieces, certificates in zip(self.pieces, self.certificates, strict=True)
        )


def recover(
    model: "Model",
    outputs: Tensor | Cache,
    *,
    layer: int | Sequence[int] | None = None,
    part: str | None = None,
    shown: str | Sequence[int] | None = None,
    format: str | None = None,
    scale: Tensor | float | None = None,
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
            `(B, heads, T, width)`, or the cache itself, as transformers' `DynamicCache`.
        layer: whose outputs they are: 0 (the embedding) to the number of blocks, as the list
            `hidden_states` of transformers counts, but for its last entry, which is behind the
            final norm; several are joined along the channels. None: found (`find_site`).
        part: block (the stream after it; default), mixer, stream, key, rotated_key (as caches hold
            keys) or value.
        shown: positions that are shown, or a slice as "[:, 3:, :]"; None: all.
        format: fp32, bf16, fp16 or int8, that the outputs went through; None: found from them.
        scale: of int8: `(width,)` for channels, `(T,)` or `(T, 1)` for tokens, or one number.
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
    source = choose_corpus([checkpoint], corpus)
    if computed not in (None, *FLOATS):
        raise RequestError(f"computed {computed!r}: must be one of {', '.join(FLOATS)}")
    stored = read_stored(_of_cache(outputs, layer, part), format, scale)
    stored = stored.to(checkpoint.model.embedding.weight.device)
    B, T, _ = stored.values.shape
    visible = _slice(shown, T)
    positions = visible.positions(T)
    if not visible.select(stored.values).isfinite().all():
        raise RequestError("outputs: not finite at a position shown; leave it out of `shown`")
    matches: list[Match] = []
    given = computed is not None
    if layer is None:
        matches, computed = find_site(checkpoint, stored, positions, source, part, computed)
        part, layer = matches[0].part, matches[0].layer
    part = part or "block"
    circuit = open_site(checkpoint, [layer] if isinstance(layer, int) else list(layer), part)
    _check_shape(stored, circuit)
    visible.channels(circuit.width)
    whole = (visible.low, visible.high) == (0, None)
    first = positions if whole else []
    computed = computed or find_precision(checkpoint, circuit, stored, first, source)
    if computed != EXACT:
        say_once(f"computed in {computed}: the numbers are held against that precision")
    arithmetic = Arithmetic(checkpoint, computed, source)
    guess = None
    if shown is None and solver is None and T > 1 and not _first_tells(circuit, stored, arithmetic):
        say_once("position 0: too coarse to tell its token; later positions are asked for it")
        positions, guess = positions[1:], _guess_first(checkpoint, circuit, stored, source)
    T = positions[-1] + 1  # no output shown tells of later tokens
    visible = Slice.of(positions, T, visible.low, visible.high)
    stored = Stored(stored.values[:, :T], stored.step[:, :T], stored.format)
    name = solver or ("alternating" if visible.hidden(T) else "propose")
    (asked,) = parse_solvers({name: settings or {}})
    if refusal := asked.refusal(visible, T, causal=True):
        raise RequestError(f"solver {name}: {refusal}")
    if part == "rotated_key" and not whole:
        raise RequestError("shown: rotated keys are recovered from all channels; leave `:`")
    searched, values = circuit.unrotated(stored.values)
    target, steps = visible.select(values), visible.select(stored.step)
    half_steps, spread = steps.norm(dim=-1) / 2, rounding_spread(steps)
    share = floor_share(checkpoint, searched, source, visible, T)
    floor = share * target.norm(dim=-1)
    near, limit = (
        ACCEPT * floor + spread + ALLOWED * arithmetic.share(searched, most) * target.norm(dim=-1)
        for most in (ORDINARY, 1.0)
    )
    problem = Problem(
        searched, visible, T, target, floor, limit, torch.zeros_like(floor),
        readbacks=lambda circuits: open_readbacks(checkpoint, source, circuits),
        near=None if arithmetic.name == EXACT else near, guess=guess,
    )  # fmt: skip
    answers, rows = {}, list(range(B))
    tokens = torch.zeros(B, T, dtype=torch.long, device=target.device)
    evaluations = [0] * B
    for _ in range(ROUNDS):
        chance = [torch.Generator().manual_seed(seed) for _ in rows]
        (found,) = ask_solver(asked, [problem.of(rows)], chance)
        answers |= dict(zip(rows, found, strict=True))
        for row, one in zip(rows, found, strict=True):
            tokens[row] = one.tokens
            evaluations[row] += one.evaluations
        own, rounding, floor, allowed, residual = _verify(problem, tokens, arithmetic)
        limit = allowed + spread
        within = residual <= limit
        # a wrong token that only the first, wider limit let through is searched for once more
        loose = ~within.all(dim=1) & (residual <= problem.limit).all(dim=1)
        if name != "propose" or not (rows := loose.nonzero()[:, 0].tolist()):
            break
        limit = torch.minimum(problem.limit, limit)
        near = None if problem.near is None else torch.minimum(problem.near, limit)
        problem = replace(problem, limit=limit, near=near)
    if arithmetic.name != EXACT and not given:  # float32 may fit after all
        exact = _verify(problem, tokens, Arithmetic(checkpoint))
        if bool((exact.residual <= exact.allowed + spread).all()):
            arithmetic = Arithmetic(checkpoint)
            own, rounding, floor, allowed, residual = exact
    if searched is not circuit:
        ((own, rounding),) = capture([circuit], tokens)
        rounding = torch.maximum(rounding, arithmetic.change(circuit, tokens, own))
    agreement = Agreement(circuit, stored, rounding, visible)
    alike: list[dict[int, list[int]]] = [{} for _ in range(B)]
    if stored.format not in ("fp32", "fp64"):
        settled, alike = settle_alike(problem, tokens, agreement)
        if not settled.equal(tokens):
            tokens, own = settled, circuit.of_tokens(settled)
            _, _, floor, allowed, residual = _verify(problem, tokens, arithmetic)
    within = (residual <= allowed + half_steps) & agreement.of_prompts(own)
    proofs = [answers[row].certificate or "residual" for row in range(B)]
    unproved = uncertified(checkpoint.model)
    ids = tokens.tolist()
    return Recovered(
        tokens=tokens,
        texts=[checkpoint.tokenizer.decode(some, skip_special_tokens=False) for some in ids],
        pieces=[checkpoint.pieces(some) for some in ids],
        positions=positions,
        residual=residual,
        floor=floor + half_steps / 3**0.5,
        certificates=[
            [
                proof if sure and not unproved and t not in others else None
                for t, sure in enumerate(certified)
            ]
            for proof, certified, others in zip(
                proofs, consistent(within, positions, T), alike, strict=True
            )
        ],
        alike=alike,
        alike_pieces=[{t: checkpoint.pieces(a) for t, a in others.items()} for others in alike],
        site=f"{part}.{'+'.join(map(str, circuit.sites))}",
        matches=matches,
        format=stored.format,
        computed=arithmetic.name,
        solver=name,
        evaluations=evaluations,
    )


class Verified(NamedTuple):
    """An answer beside what was captured."""

    outputs: Tensor  # of its tokens, (B, T, width)
    rounding: Tensor  # how far each of these numbers may move, (B, T, width)
    floor: Tensor  # how far the outputs shown may, (B, S)
    allowed: Tensor  # distance that is still the same answer's, (B, S), formats left out
    residual: Tensor  # distance from what was captured, (B, S)


def _verify(problem: Problem, tokens: Tensor, arithmetic: Arithmetic) -> Verified:
    """Holds the outputs of `(B, T)` tokens against what was captured."""
    ((own, rounding),) = capture([problem.circuit], tokens)
    changed = arithmetic.change(problem.circuit, tokens, own)
    select = problem.slice.select
    allowed = ACCEPT * select(rounding).norm(dim=-1) + ALLOWED * select(changed).norm(dim=-1)
    rounding = torch.maximum(rounding, changed)
    floor = select(rounding).norm(dim=-1)
    return Verified(own, rounding, floor, allowed, problem.distances(own))


def _of_cache(
    outputs: Tensor | Cache, layer: int | Sequence[int] | None, part: str | None
) -> Tensor:
    """The keys or values of a layer, `(B, heads, T, width)`, where a whole cache is given."""
    if isinstance(outputs, Tensor):
        return outputs
    layers = getattr(outputs, "layers", None)
    if layers is None:
        raise RequestError(
            f"outputs: a {type(outputs).__name__}; give a tensor, or a cache of transformers"
        )
    if part not in ("rotated_key", "value") or not isinstance(layer, int):
        raise RequestError(
            f"layer {layer}, part {part}: of a cache give part rotated_key or value, and one layer"
        )
    if not 1 <= layer <= len(layers):
        raise RequestError(f"layer {layer}: the cache has layers 1 to {len(layers)}")
    return layers[layer - 1].values if part == "value" else layers[layer - 1].keys


def _check_shape(stored: Stored, circuit: Circuit) -> None:
    B, T, width = stored.values.shape
    context = circuit.model.config.context
    if width != circuit.width:
        turned = "; they look transposed" * (circuit.width in (B, T))
        raise RequestError(
            f"outputs: {width} channels, the site has {circuit.width}{turned}; give this model's "
            "outputs of the layer"
        )
    if context < T:
        raise RequestError(
            f"outputs: {T} positions are longer than the model's context of {context}; cut them"
        )


def _first_tells(circuit: Circuit, stored: Stored, arithmetic: Arithmetic) -> bool:
    """Whether stored outputs of the first position tell its token, by tokens drawn at random.

    Many models send the first position far off, whatever its token is. Where the scale of its
    integers covers a number so large, and only its own, or where computing in lower precision
    rounds it away, what differs is lost.
    """
    spread = rounding_spread(stored.step)
    ordinary = bool((spread[:, 0] <= NEAR * spread[:, 1:].median()).all())
    if arithmetic.name == EXACT and (stored.format != "int8" or ordinary):
        return True
    searched, first = circuit.unrotated(stored.values[:, :1])
    spread = spread[:, :1] + arithmetic.share(searched, 0.5) * first.norm(dim=-1)
    V = len(searched.vocabulary)
    drawn = torch.randperm(V, generator=torch.Generator().manual_seed(0))[:DRAWN, None]
    apart = torch.cdist(first[:, 0], searched.of_tokens(drawn.to(first.device))[:, 0])
    near = (apart <= NEAR * spread).sum(dim=1)
    return bool((near <= 1).all())  # the token itself may have been drawn


def _guess_first(checkpoint: "Checkpoint", circuit: Circuit, stored: Stored, corpus: str) -> Tensor:
    """The likeliest first tokens, `(B, 1)`: the nearest of some that the read-back names."""
    searched, first = circuit.unrotated(stored.values[:, :1])
    none = torch.zeros_like(first[..., 0])
    problem = Problem(searched, Slice(), 1, first, none, none, none)
    readbacks = open_readbacks(checkpoint, corpus, [searched])
    return Reading([problem], readbacks, *TRIED).together().path


def _slice(shown: str | Sequence[int] | None, length: int) -> Slice:
    """The slice that shows these positions; None shows all."""
    if shown is None:
        return Slice()
    if isinstance(shown, str):
        return Slice.parse(shown)
    wrong = [t for t in shown if not 0 <= t < length]
    if wrong or not shown:
        raise RequestError(f"shown: {list(shown)}; give positions from 0 to {length - 1}")
    return Slice.of(sorted(set(shown)), length)
