"""Captured outputs, from what a caller gives to a problem that a solver can be asked.

The site and the precision of the computation are found where they are not given. How far rounding
moves an output, and what a computation below float32 changes, is measured on background text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from eval.captured.arithmetic import EXACT, Arithmetic
from eval.captured.files.stored import Stored, rounding_spread
from eval.captured.locate import CLEAR_RATIO, Match, find_precision, find_site, search_tokens
from eval.inversion.guesses import open_readbacks
from eval.inversion.problem import Problem
from eval.messages import ArgumentError, first_of, say_of_model, say_once, span
from eval.sites.circuit import CACHED, Circuit, uncertified
from eval.sites.slices import Slice

if TYPE_CHECKING:
    from eval.models.checkpoint import Checkpoint

DRAWN_FIRST_TOKENS = 512  # run at the first position, to see how far they lie from what is stored
LARGEST_NUMBER = 1e16  # captured: squares of larger ones overflow, and everything fits them
DISTINCT = 4  # times the spread of rounding: a token drawn at random lies farther off


@dataclass(frozen=True)
class Captured:
    """Captured outputs whose site and precision are known."""

    checkpoint: "Checkpoint"
    circuit: Circuit  # the site
    stored: Stored
    visible: Slice
    arithmetic: Arithmetic
    matches: list[Match]
    supposed: bool = False  # its precision, as no first row is shown whole
    guess: Tensor | None = None  # of a first token that is hidden, (B, 1)

    @property
    def length(self) -> int:
        """Positions, T."""
        return self.stored.values.shape[1]

    @property
    def positions(self) -> list[int]:
        """Those shown."""
        return self.visible.positions(self.length)

    @property
    def held(self) -> list[int]:
        """Those whose outputs are given: those shown, and a first one that is too coarse to be."""
        return self.positions if self.guess is None else [0, *self.positions]

    @property
    def steps(self) -> Tensor:
        """Distance of neighbouring numbers in their format, of what is shown, `(B, S, C)`."""
        return self.visible.select(self.stored.step)

    @property
    def half_steps(self) -> Tensor:
        """The largest distance that rounding to the format makes, `(B, S)`."""
        return self.steps.norm(dim=-1) / 2

    @property
    def spread(self) -> Tensor:
        """The distance that rounding to the format makes but seldom, `(B, S)`."""
        return rounding_spread(self.steps)

    def without_first(self) -> "Captured":
        """The first position hidden, and its token guessed, where its output does not tell it."""
        if self.length < 2 or self.positions[0] or first_tells(self):
            return self
        say_once("position 0: too coarse to tell its token; later positions are asked for it")
        first = self.stored.map(lambda x: x[:, :1])
        paths, _ = search_tokens(self.arithmetic, [self.circuit], first)
        visible = Slice.of(self.positions[1:], self.length)
        return replace(self, visible=visible, guess=paths.path)

    def pose(self) -> Problem:
        """The search for their tokens."""
        checkpoint, visible, arithmetic = self.checkpoint, self.visible, self.arithmetic
        searched, values = self.circuit.unrotated(self.stored.values)
        target = visible.select(values)
        return Problem(
            searched, visible, self.length, target,
            arithmetic.tolerance(searched, visible, values, self.steps),
            noise=torch.zeros_like(target[..., 0]),
            readbacks=lambda circuits: open_readbacks(checkpoint, arithmetic.corpus, circuits),
            guess=self.guess,
        )  # fmt: skip


def start_at(stored: Stored, first: int) -> Stored:
    """The same with its first row at a later position; what is before holds zeros, not shown.

    Raises:
        RequestError: no position.
    """
    if not isinstance(first, int) or first < 0:
        raise ArgumentError("first", f"{first!r}; give the position of the first row, from 0")
    if not first:
        return stored
    return stored.map(lambda x: nn.functional.pad(x, (0, 0, first, 0)))


def leave_out_empty(stored: Stored, visible: Slice) -> tuple[Stored, Slice]:
    """Leaves out positions that hold zeros only: empty slots of a cache, or zeroed rows.

    The outputs end with the last position that is still shown, as nothing tells of later tokens.
    Zeros are no evidence of a token, though the output of one whose embedding is 0 may be 0. Codes
    of a coarse scale may all be zeros within a prompt: there the row stays, for the search alone.

    Raises:
        RequestError: a number at a position shown is none, or all prompts hold or begin with zeros.
    """
    T = stored.values.shape[1]
    shown = visible.positions(T)
    finite = (visible.select(stored.values).abs() < LARGEST_NUMBER).all(dim=-1)
    if not finite.all():
        raise ArgumentError("outputs", _say_what_is_not_finite(stored, shown, finite.tolist()))
    filled, wanting = (~find_zeros(stored))[:, shown], dict[int, str]()
    for prompt, rows in enumerate(filled.tolist()):
        first = rows.index(True) if any(rows) else len(rows)
        if first == len(rows) or (first and not stored.coarse):
            give = (
                f"the rows from {shown[first]} on alone; if those before are of tokens, hide them, "
                f"by `shown` (--positions) from {shown[first]} on"
                if first < len(rows)
                else "others"
            )
            wanting[prompt] = (
                f"{_hold(shown[:first])} zeros only, which tell of no token; give {give}"
            )
    if len(wanting) == len(filled):
        raise ArgumentError("outputs", wanting[0])
    for prompt, line in wanting.items():
        say_once(f"prompt {prompt}: {line}")
    some = filled.any(dim=0).tolist()
    last = max(t for t, good in zip(shown, some, strict=True) if good)
    empty = [
        t
        for t, good in zip(shown, some, strict=True)
        if not good and (t > last or not stored.coarse)
    ]
    if empty:
        say_once(f"{_hold(empty)} zeros only; left out")
    shown = [t for t in shown if t not in empty]
    visible = Slice.of(shown, last + 1, visible.low, visible.high)
    return stored.map(lambda x: x[:, : last + 1]), visible


def _say_what_is_not_finite(
    stored: Stored, shown: Sequence[int], finite: Sequence[Sequence[bool]]
) -> str:
    """Where the first prompt with such numbers has them, and what to do about it, as a line."""
    prompt, rows = next(entry for entry in enumerate(finite) if not all(entry[1]))
    wrong = [t for t, good in zip(shown, rows, strict=True) if not good]
    of = f" of prompt {prompt}" * (len(finite) > 1)
    lacking = stored.values.isnan() & (stored.step == 0)
    why = ", or their scale is not above 0" if bool(lacking.any()) else ""
    if bool((stored.values == -torch.inf).any()):
        why += ", or logits of tokens that a sampler left out (give those before it)"
    fix = "leave them out of `shown` (--positions)"
    leading = len(wrong) < len(shown) and wrong == list(shown[: len(wrong)])
    if leading and bool(stored.values[prompt, wrong].isnan().all()):  # as padding, and no overflow
        fix = f"give a tensor attention_mask (B, T), or the rows from {shown[len(wrong)]} on alone"
    where = f"at positions {first_of(wrong)}{of}"
    return f"not finite {where}, or beyond {LARGEST_NUMBER:g}{why}; {fix}"


def find_zeros(stored: Stored) -> Tensor:
    """Where rows hold nothing but zeros, `(B, T)`."""
    return ~(stored.values.abs() > 1 / LARGEST_NUMBER).any(dim=-1)


def _hold(positions: Sequence[int]) -> str:
    """What holds something, in words: `positions 29 to 34 hold`."""
    if len(positions) == 1:
        return f"position {positions[0]} holds"
    return f"positions {span(positions)} hold"


def identify(
    checkpoint: "Checkpoint",
    source: str,
    stored: Stored,
    visible: Slice,
    layer: int | Sequence[int] | None,
    part: str | None,
    computed: str | None,
) -> Captured:
    """Finds the site and the precision, where they are not given."""
    positions, matches = visible.positions(stored.values.shape[1]), list[Match]()
    whole = visible.has_all_channels
    supposed = computed is None and (positions[0] > 0 or not (whole or layer is None))
    supposed = supposed and not uncertified(checkpoint.model)  # which proves none in any precision
    if layer is None:
        matches, computed = find_site(checkpoint, stored, positions, source, part, computed)
        part, layer, hits, tried, distance = matches[0]
        if not tried:
            say_once(
                f"the first row is hidden, so that {part}.{layer} is taken by the mean and "
                "variance of its channels alone; if it is another, give --layer and --part"
            )
        elif not hits:
            say_once(
                f"no token fits to rounding at any site; {part}.{layer} is taken, where the outputs"
                f" are {100 * distance:.2g} % of their length off, {CLEAR_RATIO:g} times as much "
                "or more at all others"
            )
    circuit = Circuit(checkpoint.model, layer, part or "block")
    _check_shape(stored, circuit)
    if 0 in circuit.layer_numbers:
        _say_what_embedding_lacks(circuit)
    visible.channels(circuit.width)
    if computed is None:
        first = positions if whole else []
        computed = find_precision(checkpoint, circuit, stored, first, source)
    if computed != EXACT:
        say_of_model(f"the numbers are held against a computation in {computed}")
    arithmetic = Arithmetic(checkpoint, computed, source)
    return Captured(checkpoint, circuit, stored, visible, arithmetic, matches, supposed)


def first_tells(captured: Captured) -> bool:
    """Whether stored outputs of the first position tell its token, by tokens drawn at random.

    Many models send the first position far off, whatever its token is. Where the scale of its
    integers covers a number so large, and only its own, or where computing in lower precision
    rounds it away, what differs is lost.
    """
    stored, arithmetic = captured.stored, captured.arithmetic
    spread = rounding_spread(stored.step)
    ordinary = bool((spread[:, 0] <= DISTINCT * spread[:, 1:].median()).all())
    if arithmetic.name == EXACT and (not stored.scaled or ordinary):
        return True
    searched, first = captured.circuit.unrotated(stored.values[:, :1])
    spread = spread[:, :1] + arithmetic.change_fraction(searched, 0.5) * first.norm(dim=-1)
    V = len(searched.vocabulary)
    drawn = torch.randperm(V, generator=torch.Generator().manual_seed(0))[:DRAWN_FIRST_TOKENS]
    apart = torch.cdist(first[:, 0], searched.of_tokens(drawn[:, None].to(first.device))[:, 0])
    alike = (apart <= DISTINCT * spread).sum(dim=1)
    return bool((alike <= 1).all())  # the token itself may have been drawn


def _say_what_embedding_lacks(circuit: Circuit) -> None:
    """Says that a model's first layer reads more than the embedding, if it does."""
    model = circuit.model
    embeddings = model.embedding.weight[None, :2]
    if not torch.equal(model.with_positions(embeddings), embeddings):
        say_of_model(
            "layer 0: here the embedding alone; in hidden_states[0] of transformers it holds this "
            "family's positions or norm as well: for these give a later layer"
        )


def _check_shape(stored: Stored, circuit: Circuit) -> None:
    B, T, width = stored.values.shape
    context = circuit.model.config.context
    if width != circuit.width:
        hint = "they look transposed; " * (circuit.width in (B, T))
        hint += "four axes are read as keys or values, (B, heads, T, width)"
        if circuit.part in CACHED:
            hint = "axes must be (B, heads, T, width), or (B, T, heads * width)"
        raise ArgumentError(
            "outputs",
            f"{width} channels, the site has {circuit.width}; {hint}; give this model's "
            "outputs of the layer",
        )
    if context < T:
        raise ArgumentError(
            "outputs", f"{T} positions are longer than the model's context of {context}; cut them"
        )
