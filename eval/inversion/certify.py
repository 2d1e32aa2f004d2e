"""How sure recovered tokens are: agreement in each number, and other tokens that agree as well."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.inversion.problem import ACCEPT, Problem, capture
from eval.inversion.stored import Stored
from eval.slices import Slice
from eval.text import held_out_text

if TYPE_CHECKING:
    from eval.models import Checkpoint

RIVALS = 256  # other tokens that are run at each position: the likeliest by the read-back
NAMED = 16  # of them that are named, at most
ROUNDS = 4  # of choosing among tokens that agree; each ends where a prompt's tokens stay


@dataclass(frozen=True)
class Agreement:
    """Whether outputs agree with stored ones: each number to a step of the format and ten floors.

    Attributes:
        circuit: the site that was captured.
        stored: the numbers captured, of T positions.
        rounding: how far rounding moves each number, `(B, T, width)`.
        slice: shown.
    """

    circuit: Circuit
    stored: Stored
    rounding: Tensor
    slice: Slice

    def of_prompts(self, outputs: Tensor) -> Tensor:
        """`(B, T, width)` outputs to `(B, S)`."""
        off, allowed = outputs - self.stored.values, self.stored.step + ACCEPT * self.rounding
        return (self.slice.select(off).abs() <= self.slice.select(allowed)).all(dim=-1)

    def of_candidates(self, outputs: Tensor, t: int) -> Tensor:
        """`(B, N, width)` outputs of candidates at position t to `(B, N)`."""
        allowed = self.stored.step[:, t] + ACCEPT * self.rounding[:, t]
        off = self.slice.narrow(outputs - self.stored.values[:, t, None]).abs()
        return (off <= self.slice.narrow(allowed)[:, None]).all(dim=-1)

    def of_versions(self, outputs: Tensor, row: int) -> tuple[Tensor, Tensor]:
        """`(N, T, width)` outputs of versions of one prompt: their agreement `(N, S)`, and misfit.

        The misfit `(N,)` is the sum of squares, each number's over what its format lets pass.
        """
        allowed = self.stored.step[row] + ACCEPT * self.rounding[row]
        off = self.slice.select(outputs - self.stored.values[row]).abs()
        allowed = self.slice.select(allowed[None])
        misfit = (off / allowed.clamp(min=torch.finfo(off.dtype).tiny)).square()
        return (off <= allowed).all(dim=-1), misfit.double().sum(dim=(1, 2))


@torch.no_grad()
def settle_alike(
    problem: Problem, tokens: Tensor, agreement: Agreement
) -> tuple[Tensor, list[dict[int, list[int]]]]:
    """Chooses among tokens that agree at their own position by the outputs of later ones.

    Of a position's tokens that agree there, the answer is that with which all outputs shown fit
    best. Others remain beside it only where they agree later on wherever the answer does.

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
        for row, several in enumerate(find_alike(problem, tokens, agreement)):
            alike[row] = {}
            for t, others in several.items():
                some = torch.tensor([int(tokens[row, t]), *others], device=tokens.device)
                versions = tokens[row].repeat(len(some), 1)
                versions[:, t] = some
                agrees, misfit = agreement.of_versions(circuit.of_tokens(versions), row)
                best = int(misfit.argmin())
                tokens[row, t] = some[best]
                equal = (agrees >= agrees[best]).all(dim=1)
                equal[best] = False
                if equal.any():
                    alike[row][t] = some[equal].tolist()
        if tokens.equal(before):
            break
    return tokens, alike


@torch.no_grad()
def find_alike(
    problem: Problem, tokens: Tensor, agreement: Agreement
) -> list[dict[int, list[int]]]:
    """Each prompt's positions where other tokens agree as well, with the nearest of those.

    At every position shown the tokens are run that the read-back thinks likeliest after the ones
    answered before it: a rival that it does not think of is not seen.

    Args:
        problem: that was solved, of B prompts.
        tokens: the answer, `(B, T)`.
        agreement: with what was captured.
    """
    (fit,) = problem.readbacks([problem.circuit])
    searched, captured, shown = problem.circuit, agreement.circuit, problem.slice
    own, state, before = searched.of_tokens(tokens), None, 0
    alike: list[dict[int, list[int]]] = [{} for _ in tokens]
    for s, t in enumerate(problem.positions):
        if t > before:
            state, before = captured.prefix(tokens[:, before:t], state), t
        guesser = fit.guesser(shown.low, shown.high, first=not t)
        answer = tokens[:, t, None]
        read = guesser.read(
            problem.target[:, s], shown.narrow(own[:, t]), searched.embed(answer)[:, 0]
        )
        scores = guesser.scores(read).scatter(1, answer, -torch.inf)
        rivals = scores.topk(min(RIVALS, scores.shape[1] - 1)).indices
        outputs = captured.step(captured.embed(rivals.flatten())[:, None], state)
        outputs = outputs.view(*rivals.shape, -1)
        fits = agreement.of_candidates(outputs, t)
        for row in fits.any(dim=1).nonzero()[:, 0].tolist():
            alike[row][t] = rivals[row, fits[row]].tolist()[:NAMED]
    return alike


def consistent(within: Tensor, shown: list[int], length: int) -> list[list[bool]]:
    """Of `(B, S)` positions that agree: whether each of the T tokens is consistent, by prompt.

    A token is where all that is shown from it on is.
    """
    later = within.flip(1).cummin(dim=1).values.flip(1).tolist()
    first = [next(s for s, t in enumerate(shown) if t >= position) for position in range(length)]
    return [[row[s] for s in first] for row in later]


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
