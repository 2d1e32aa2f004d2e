"""Rivals: other tokens that are run in an answer's place, to see whether they agree as well."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from arch import State
from eval.captured.certainty.agreement import Agreement
from eval.captured.files.stored import EXACT
from eval.inversion.problem import Problem
from eval.models.memory import candidates_at_once
from eval.sites.circuit import Circuit

RIVALS = 256  # other tokens that are run at a position shown: the likeliest by the read-back
EXACT_RIVALS = 8  # of them where numbers are stored in float32, which leaves hardly any room
TWINS = 4  # tokens that are run besides: those whose embedding rows are nearest the answer's
ALIGNED = 2  # and those whose rows have the nearest direction, as norms take off length and mean
DRAWN = 4  # and some at random
LAST = TWINS + ALIGNED + DRAWN  # rivals that stand behind the likeliest ones
SLOPED = 64  # tokens that are run at a hidden position: those that change what is shown least
DIRECTIONS = 32  # random ones, in which outputs shown are derived by hidden tokens
AHEAD = 8  # positions with evidence that a hidden token's rivals are run through at first
NAMED = 16  # of the tokens that fit as well, named at most


@dataclass(frozen=True)
class Beside:
    """Rivals that were run while the rounding of an answer's outputs was measured.

    Attributes:
        tokens: `(B, T, N)`, in each place of the answer.
        outputs: theirs, `(B, T, N, width)`.
    """

    tokens: Tensor
    outputs: Tensor


@torch.no_grad()
def choose_rivals(problem: Problem, tokens: Tensor) -> Tensor:
    """The rivals of `(B, T)` tokens, all of them shown in float32: `(B, T, N)`."""
    known = _likeliest(problem, tokens, EXACT_RIVALS)
    neighbours = nearest_rows(problem.circuit, tokens)
    rivals = [
        _join_rivals(problem.circuit, tokens, t, [known[t]], neighbours[:, t])
        for t in range(problem.length)
    ]
    return torch.stack(rivals, dim=1)


@torch.no_grad()
def find_alike(
    problem: Problem, tokens: Tensor, agreement: Agreement, beside: Beside | None = None
) -> list[dict[int, list[int]]]:
    """Each prompt's positions where other tokens agree as well, with the nearest of those.

    Rivals are run after the tokens answered before them. Where a position's own output counts, it
    decides: the rivals are those that the read-back thinks likeliest. Elsewhere they are run
    through to the next outputs that count: those are the tokens that change these outputs least, by
    their slopes. At every position the tokens of the nearest embedding rows and of the nearest
    directions are run too, and some at random. A rival that is none of these is not seen.

    Args:
        problem: that was solved, of B prompts.
        tokens: the answer, `(B, T)`.
        beside: rivals that were run already, if all positions count.
    """
    circuit, counted = agreement.circuit, agreement.counted
    alike: list[dict[int, list[int]]] = [{} for _ in tokens]
    if beside is not None and bool(counted.all()):
        for t in range(tokens.shape[1]):
            fits = agreement.of_span(beside.outputs[:, t, :, None], t)
            _note(alike, t, beside.tokens[:, t], fits)
        return alike
    neighbours = nearest_rows(circuit, tokens)
    count = EXACT_RIVALS if agreement.stored.format == EXACT else RIVALS
    known, slopes = _likeliest(problem, tokens, count), None
    if not bool(counted.all()):
        slopes = _slopes(agreement, tokens)
    state, before = None, 0
    for t in range(tokens.shape[1]):
        later = counted[:, t:].any(dim=1)
        if not later.any():
            break
        if t > before:
            state, before = circuit.prefix(tokens[:, before:t], state), t
        guessed = [known[t]] if t in known else []
        if slopes is not None and not bool(counted[:, t].all()):
            guessed.append(_least_changed(circuit, tokens[:, t], slopes[:, :, t]))
        rivals = _join_rivals(circuit, tokens, t, guessed, neighbours[:, t])
        fits = _run_rivals(agreement, tokens, t, rivals, state)
        _note(alike, t, rivals, fits & later[:, None])
    return alike


def _note(alike: list[dict[int, list[int]]], t: int, rivals: Tensor, fits: Tensor) -> None:
    """Adds those of `(B, N)` rivals at position t that agree to each prompt's.

    The likeliest few, and behind them all neighbours, of which later outputs may tell none apart.
    """
    for row in fits.any(dim=1).nonzero()[:, 0].tolist():
        likeliest = list(dict.fromkeys(rivals[row, fits[row]].tolist()))[:NAMED]
        last = rivals[row, -LAST:][fits[row, -LAST:]].tolist()
        alike[row][t] = list(dict.fromkeys([*likeliest, *last]))


def _join_rivals(
    circuit: Circuit, tokens: Tensor, t: int, guessed: list[Tensor], neighbours: Tensor
) -> Tensor:
    """Guessed, neighbouring and random tokens, `(B, N)`, none of them the answer at t."""
    generator, V = torch.Generator().manual_seed(t), len(circuit.vocabulary)
    drawn = torch.randint(V, (len(tokens), DRAWN), generator=generator).to(tokens.device)
    rivals = torch.cat([*guessed, neighbours, drawn], dim=1)
    return torch.where(rivals == tokens[:, t, None], (rivals + 1) % V, rivals)


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


def _likeliest(problem: Problem, tokens: Tensor, count: int) -> dict[int, Tensor]:
    """The tokens that the read-back thinks likeliest at each position shown, `(B, count)`."""
    (fit,) = problem.readbacks([problem.circuit])
    searched, shown, found = problem.circuit, problem.slice, {}
    own = searched.of_tokens(tokens)
    for s, t in enumerate(problem.positions):
        guesser = fit.guesser(shown.low, shown.high, first=not t)
        answer = tokens[:, t, None]
        read = guesser.read(
            problem.target[:, s], shown.narrow(own[:, t]), searched.embed(answer)[:, 0]
        )
        scores = guesser.scores(read).scatter(1, answer, -torch.inf)
        found[t] = scores.topk(min(count, scores.shape[1] - 1)).indices
    return found


def nearest_rows(circuit: Circuit, tokens: Tensor) -> Tensor:
    """The tokens of rows and of directions nearest those of `(B, T)` tokens, `(B, T, N)`."""
    rows = circuit.vocabulary
    directions = nn.functional.normalize(rows - rows.mean(dim=1, keepdim=True), dim=1)
    found = [_nearest(rows, tokens, TWINS), _nearest(directions, tokens, ALIGNED)]
    return torch.cat(found, dim=-1)


def _nearest(rows: Tensor, tokens: Tensor, count: int) -> Tensor:
    """The tokens whose `(V, D)` rows are nearest those of `(B, T)` tokens, `(B, T, count)`."""
    lengths, nearest, own = rows.square().sum(dim=1), [], rows[tokens.flatten()]
    for part, answer in zip(own.split(256), tokens.flatten().split(256), strict=True):
        apart = lengths - 2 * part @ rows.T
        apart.scatter_(1, answer[:, None], torch.inf)
        nearest.append(apart.topk(min(count, len(rows) - 1), largest=False).indices)
    return torch.cat(nearest).view(*tokens.shape, -1)


def _slopes(agreement: Agreement, tokens: Tensor) -> Tensor:
    """How outputs that count change with each token's embedding: `(B, DIRECTIONS, T, D)`.

    Rows are derivatives in random directions, so that their product with a change of an embedding
    is as long, on average, as the change of the outputs.
    """
    circuit, generator = agreement.circuit, torch.Generator().manual_seed(0)
    with torch.enable_grad():
        embeddings = circuit.embed(tokens).detach().requires_grad_(True)
        outputs = agreement.slice.narrow(circuit(embeddings))
        counted = agreement.counted[..., None]
        found = []
        for number in range(DIRECTIONS):
            drawn = torch.randn(outputs.shape, generator=generator).to(outputs) * counted
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
