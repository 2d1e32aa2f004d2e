"""How sure recovered tokens are: agreement in each number, and other tokens that agree as well."""

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from arch import State
from eval.captured.files.stored import Stored
from eval.inversion.problem import ACCEPT, Problem
from eval.models.memory import candidates_at_once
from eval.models.text import held_out_text
from eval.sites.capture import capture
from eval.sites.circuit import Circuit
from eval.sites.slices import Slice

if TYPE_CHECKING:
    from eval.models.checkpoint import Checkpoint

RIVALS = 256  # other tokens that are run at a position shown: the likeliest by the read-back
EXACT_RIVALS = 8  # of them where numbers are stored in float32, which leaves hardly any room
TWINS = 4  # tokens that are run besides: those whose embedding rows are nearest the answer's
DRAWN = 4  # and some at random
SLOPED = 64  # tokens that are run at a hidden position: those that change what is shown least
DIRECTIONS = 32  # random ones, in which outputs shown are derived by hidden tokens
AHEAD = 8  # positions with evidence that a hidden token's rivals are run through at first
NAMED = 16  # of the tokens that fit as well, named at most
SWAPS = 512  # pairs of hidden positions whose tokens change places, the nearest pairs first
ROUNDS = 4  # of choosing among tokens that agree; each ends where a prompt's tokens stay


@dataclass(frozen=True)
class Agreement:
    """Whether outputs agree with stored ones: each number to a step of the format and ten floors.

    Attributes:
        circuit: the site that was captured.
        stored: the numbers captured, of T positions.
        rounding: how far rounding moves each number, `(B, T, width)`.
        slice: shown.
        evidence: positions that are shown and hold what the model gave, `(B, T)`; None: all shown.
    """

    circuit: Circuit
    stored: Stored
    rounding: Tensor
    slice: Slice
    evidence: Tensor | None = None

    @property
    def counted(self) -> Tensor:
        """The positions that count, `(B, T)`."""
        if self.evidence is not None:
            return self.evidence
        counted = self.rounding.new_zeros(self.rounding.shape[:2], dtype=torch.bool)
        counted[:, self.slice.positions(self.rounding.shape[1])] = True
        return counted

    def of_prompts(self, outputs: Tensor) -> Tensor:
        """`(B, T, width)` outputs to `(B, S)`, of the positions shown."""
        off, allowed = outputs - self.stored.values, self.stored.step + ACCEPT * self.rounding
        return (self.slice.select(off).abs() <= self.slice.select(allowed)).all(dim=-1)

    def of_span(self, outputs: Tensor, start: int) -> Tensor:
        """`(B, N, S, width)` outputs of rivals from position `start` on to `(B, N)`.

        Positions that do not count are passed over.
        """
        span = slice(start, start + outputs.shape[2])
        allowed = self.stored.step[:, span] + ACCEPT * self.rounding[:, span]
        off = self.slice.narrow(outputs - self.stored.values[:, None, span]).abs()
        fits = (off <= self.slice.narrow(allowed)[:, None]).all(dim=-1)
        return (fits | ~self.counted[:, None, span]).all(dim=-1)

    def of_versions(self, outputs: Tensor, row: int) -> tuple[Tensor, Tensor]:
        """`(N, T, width)` outputs of versions of one prompt: their agreement `(N, S)`, and misfit.

        S are the positions that count. The misfit `(N,)` is the sum of squares, each number's over
        what its format lets pass.
        """
        counted = self.counted[row]
        allowed = self.stored.step[row] + ACCEPT * self.rounding[row]
        off = self.slice.narrow(outputs - self.stored.values[row])[:, counted].abs()
        allowed = self.slice.narrow(allowed)[None, counted]
        misfit = (off / allowed.clamp(min=torch.finfo(off.dtype).tiny)).square()
        return (off <= allowed).all(dim=-1), misfit.double().sum(dim=(1, 2))


@torch.no_grad()
def settle_alike(
    problem: Problem, tokens: Tensor, agreement: Agreement
) -> tuple[Tensor, list[dict[int, list[int]]]]:
    """Chooses among tokens that agree at their own position by the outputs of later ones.

    Of the tokens that agree at a position, the answer is the one with which all outputs shown fit
    best. Another token remains beside it only if it agrees wherever the answer does.

    Args:
        problem: that was solved, of B prompts.
        tokens: the answer, `(B, T)`.
        agreement: with what was captured.

    Returns:
        The tokens, and each prompt's positions where other tokens agree as well, with those.
    """
    tokens, circuit = tokens.clone(), agreement.circuit
    alike: list[dict[int, list[int]]] = [{} for _ in tokens]
    for _ in range(ROUNDS):
        before = tokens.clone()
        for row, rivals in enumerate(find_alike(problem, tokens, agreement)):
            alike[row] = {}
            for t, others in rivals.items():
                choices = torch.tensor([int(tokens[row, t]), *others], device=tokens.device)
                versions = tokens[row].repeat(len(choices), 1)
                versions[:, t] = choices
                agrees, misfit = agreement.of_versions(circuit.of_tokens(versions), row)
                best = int(misfit.argmin())
                tokens[row, t] = choices[best]
                equal = (agrees >= agrees[best]).all(dim=1)
                equal[best] = False
                if equal.any():
                    alike[row][t] = choices[equal].tolist()
        if tokens.equal(before):
            break
    for row, others in enumerate(alike):
        for t, found in _find_swaps(tokens[row], agreement, row, others).items():
            others[t] = list(dict.fromkeys([*others.get(t, []), *found]))[:NAMED]
    return tokens, alike


def _find_swaps(
    tokens: Tensor, agreement: Agreement, row: int, alike: dict[int, list[int]]
) -> dict[int, list[int]]:
    """Hidden positions of one prompt whose tokens `(T,)` may change places, with those tokens.

    A mixer that knows no order of its input gives the same outputs either way. Pairs of positions
    at which another token fits alone are left out.
    """
    counted = agreement.counted[row]
    last = int(counted.nonzero()[-1]) if bool(counted.any()) else 0
    hidden, ids = (~counted[:last]).nonzero()[:, 0].tolist(), tokens.tolist()
    pairs = [(t, u) for t, u in combinations(hidden, 2)
             if ids[t] != ids[u] and not (t in alike and u in alike)]  # fmt: skip
    pairs = sorted(pairs, key=lambda pair: pair[1] - pair[0])[:SWAPS]
    circuit, found = agreement.circuit, {}
    size = max(2, candidates_at_once(circuit.model) // len(ids))
    for start in range(0, len(pairs), size - 1):
        part = pairs[start : start + size - 1]
        versions = tokens.repeat(len(part) + 1, 1)
        for version, (t, u) in zip(versions[1:], part, strict=True):
            version[[t, u]] = tokens[[u, t]]
        agrees, _ = agreement.of_versions(circuit.of_tokens(versions), row)
        equal = (agrees[1:] >= agrees[0]).all(dim=1) & agrees[0].any()
        for (t, u), fits in zip(part, equal.tolist(), strict=True):
            if fits:
                found.setdefault(t, []).append(ids[u])
                found.setdefault(u, []).append(ids[t])
    return found


@torch.no_grad()
def find_alike(
    problem: Problem, tokens: Tensor, agreement: Agreement
) -> list[dict[int, list[int]]]:
    """Each prompt's positions where other tokens agree as well, with the nearest of those.

    Rivals are run after the tokens answered before them. Where a position's own output counts, it
    decides: the rivals are those that the read-back thinks likeliest. Elsewhere they are run
    through to the next outputs that count: those are the tokens that change these outputs least, by
    their slopes. At every position the tokens of the nearest embedding rows are run too, and some
    at random. A rival that is none of these is not seen.

    Args:
        problem: that was solved, of B prompts.
        tokens: the answer, `(B, T)`.
        agreement: with what was captured.
    """
    circuit, counted = agreement.circuit, agreement.counted
    near = _nearest_rows(circuit, tokens)
    known, slopes = _likeliest(problem, tokens, agreement), None
    if not bool(counted.all()):
        slopes = _slopes(agreement, tokens)
    state, before = None, 0
    alike: list[dict[int, list[int]]] = [{} for _ in tokens]
    for t in range(tokens.shape[1]):
        later = counted[:, t:].any(dim=1)
        if not later.any():
            break
        if t > before:
            state, before = circuit.prefix(tokens[:, before:t], state), t
        guessed = [known[t]] if t in known else []
        if slopes is not None and not bool(counted[:, t].all()):
            guessed.append(_least_changed(circuit, tokens[:, t], slopes[:, :, t]))
        rivals = torch.cat([*guessed, near[:, t], _drawn(circuit, tokens, t)], dim=1)
        rivals = torch.where(rivals == tokens[:, t, None], (rivals + 1) % len(circuit.vocabulary),
                             rivals)  # fmt: skip
        fits = _run_rivals(agreement, tokens, t, rivals, state)
        for row in (fits.any(dim=1) & later).nonzero()[:, 0].tolist():
            alike[row][t] = list(dict.fromkeys(rivals[row, fits[row]].tolist()))[:NAMED]
    return alike


def _run_rivals(
    agreement: Agreement, tokens: Tensor, t: int, rivals: Tensor, state: State | None
) -> Tensor:
    """Whether `(B, N)` rivals at position t agree, as far as they are run."""
    circuit, counted, B = agreement.circuit, agreement.counted, len(tokens)
    own = bool(counted[:, t].all())
    where = counted[:, t:].any(dim=0).nonzero()[:, 0]
    stop = t + 1 if own else t + 1 + int(where[: min(AHEAD, len(where))][-1])
    fits, N = torch.ones_like(rivals, dtype=torch.bool), rivals.shape[1]
    if own:
        outputs = circuit.step(circuit.embed(rivals.flatten())[:, None], state)
        return agreement.of_span(outputs.view(B, N, 1, -1), t)
    size = max(1, candidates_at_once(circuit.model) // (B * (stop - t)))
    for start in range(0, N, size):
        part = rivals[:, start : start + size]
        versions = tokens[:, None, t:stop].repeat(1, part.shape[1], 1)
        versions[:, :, 0] = part
        outputs = circuit.step(circuit.embed(versions.flatten(0, 1)), state)
        fits[:, start : start + size] = agreement.of_span(
            outputs.view(B, part.shape[1], stop - t, -1), t
        )
    return fits


def _likeliest(problem: Problem, tokens: Tensor, agreement: Agreement) -> dict[int, Tensor]:
    """The tokens that the read-back thinks likeliest at each position shown, `(B, N)`."""
    (fit,) = problem.readbacks([problem.circuit])
    searched, shown, found = problem.circuit, problem.slice, {}
    own = searched.of_tokens(tokens)
    count = EXACT_RIVALS if agreement.stored.format == "fp32" else RIVALS
    for s, t in enumerate(problem.positions):
        guesser = fit.guesser(shown.low, shown.high, first=not t)
        answer = tokens[:, t, None]
        read = guesser.read(
            problem.target[:, s], shown.narrow(own[:, t]), searched.embed(answer)[:, 0]
        )
        scores = guesser.scores(read).scatter(1, answer, -torch.inf)
        found[t] = scores.topk(min(count, scores.shape[1] - 1)).indices
    return found


def _nearest_rows(circuit: Circuit, tokens: Tensor) -> Tensor:
    """The tokens whose embedding rows are nearest those of `(B, T)` tokens, `(B, T, TWINS)`."""
    rows, own = circuit.vocabulary, circuit.vocabulary[tokens.flatten()]
    lengths, near = rows.square().sum(dim=1), []
    for part, answer in zip(own.split(256), tokens.flatten().split(256), strict=True):
        apart = lengths - 2 * part @ rows.T
        apart.scatter_(1, answer[:, None], torch.inf)
        near.append(apart.topk(min(TWINS, len(rows) - 1), largest=False).indices)
    return torch.cat(near).view(*tokens.shape, -1)


def _drawn(circuit: Circuit, tokens: Tensor, t: int) -> Tensor:
    chance = torch.Generator().manual_seed(t)
    drawn = torch.randint(len(circuit.vocabulary), (len(tokens), DRAWN), generator=chance)
    return drawn.to(tokens.device)


def _slopes(agreement: Agreement, tokens: Tensor) -> Tensor:
    """How outputs that count change with each token's embedding: `(B, DIRECTIONS, T, D)`.

    Rows are derivatives in random directions, so that their product with a change of an embedding
    is as long, on average, as the change of the outputs.
    """
    circuit, chance = agreement.circuit, torch.Generator().manual_seed(0)
    with torch.enable_grad():
        embeddings = circuit.embed(tokens).detach().requires_grad_(True)
        outputs = agreement.slice.narrow(circuit(embeddings))
        counted = agreement.counted[..., None]
        found = []
        for number in range(DIRECTIONS):
            drawn = torch.randn(outputs.shape, generator=chance).to(outputs) * counted
            (slope,) = torch.autograd.grad(
                outputs, embeddings, drawn, retain_graph=number + 1 < DIRECTIONS, allow_unused=True
            )
            found.append(torch.zeros_like(embeddings) if slope is None else slope)
    return torch.stack(found, dim=1)


def _least_changed(circuit: Circuit, answer: Tensor, slopes: Tensor) -> Tensor:
    """The tokens in whose place outputs would change least, by `(B, R, D)` slopes: `(B, N)`."""
    rows = circuit.vocabulary @ slopes.mT  # (B, V, R)
    own = rows.gather(1, answer[:, None, None].expand(-1, -1, rows.shape[2]))
    change = (rows - own).square().sum(dim=-1).scatter(1, answer[:, None], torch.inf)
    return change.topk(min(SLOPED, change.shape[1] - 1), largest=False).indices


def find_evidence(fits: Tensor, shown: list[int], length: int) -> Tensor:
    """The positions whose outputs are evidence, `(B, T)`, by whether those shown fit, `(B, S)`.

    They are those that fit, if half of the positions shown up to the last one that fits do. What
    follows is a tail that no token explains: empty slots, padding, or damage.
    """
    evidence = fits.new_zeros(len(fits), length)
    evidence[:, shown] = fits
    count = torch.arange(1, len(shown) + 1, device=fits.device)
    last = (fits * count).amax(dim=1)  # of positions shown, up to the last one that fits
    enough = 2 * fits.sum(dim=1) >= last
    return evidence & enough[:, None]


def consistent(counted: Tensor) -> list[list[bool]]:
    """Of `(B, T)` positions that count: whether a later or the same one does, by prompt.

    A causal model's outputs at a position are evidence for all tokens up to it, whatever follows.
    """
    return counted.flip(1).cummax(dim=1).values.flip(1).tolist()


def floor_share(
    checkpoint: "Checkpoint", circuit: Circuit, corpus: str, visible: Slice, length: int
) -> float:
    """The largest rounding floor of a background passage's outputs, as a share of their length."""

    def largest() -> float:
        text = held_out_text(checkpoint, corpus).windows("background", 1, length, least=1)
        ((outputs, rounding),) = capture([circuit], text.to(circuit.vocabulary.device))
        outputs, rounding = visible.select(outputs), visible.select(rounding)
        return float((rounding.norm(dim=-1) / outputs.norm(dim=-1)).max())

    site = circuit.sites, circuit.part
    return checkpoint.keep(("floor share", site, corpus, str(visible), length), largest)
