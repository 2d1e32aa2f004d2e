"""GCG: greedy exchange of single tokens, from shortlists that the gradient makes."""

import torch
from torch import Tensor

from eval.inversion.gradient.descend import descend, random_tokens, with_gradient
from eval.inversion.gradient.objectives import relative
from eval.inversion.problem import Generators, Problem
from eval.inversion.solver import Answer, solver

TOKENS = 1 << 14  # sent through the circuit at once
WIDTH = 128  # guesses that are tried in a step
TOP = 64  # tokens of a shortlist


@solver("gradient", random=True, title="GCG")
def gcg(problem: Problem, generators: Generators, *, steps: int = 500) -> list[Answer]:
    """Tries random tokens of a shortlist that the gradient makes at every position.

    Greedy coordinate gradient (Zou et al., 2307.15043). Each guess replaces one token, at a random
    position, by a random one of that position's shortlist. The best guess of a step is taken only
    if it is better than the tokens so far.

    Args:
        problem: of any slice.
        generators: of each row's first guess and of what is tried.
        steps: the most that a row takes.
    """
    W, T = problem.vocabulary, problem.length
    listed = min(TOP, len(W))
    tokens = random_tokens(generators, (T,), W)
    least = losses_of(problem, tokens[:, None])[:, 0]
    estimates = W.new_zeros(*tokens.shape, len(W))
    rows = torch.arange(len(tokens), device=W.device)

    def step(i: int) -> int:
        estimates.copy_(-gradient_at(problem, tokens) @ W.T)
        shortlist = estimates.topk(listed, dim=-1).indices.flatten(1)
        at, pick = random_tokens(generators, (2, WIDTH), shortlist[0]).unbind(1)
        position = at % T
        chosen = shortlist.gather(1, position * listed + pick % listed)
        guesses = tokens[:, None].repeat(1, WIDTH, 1)
        guesses = guesses.scatter(2, position[..., None], chosen[..., None])
        losses, best = losses_of(problem, guesses).min(dim=1)
        better = losses < least
        tokens.copy_(torch.where(better[:, None], guesses[rows, best], tokens))
        least.copy_(torch.where(better, losses, least))
        return (3 + WIDTH) * T + (0 if i else T)

    def scores() -> Tensor:  # the guess first, then the others as the gradient ranked them last
        best = estimates.amax(dim=-1, keepdim=True)  # of any size: 1 more may be rounded away
        first = torch.nextafter(best, torch.full_like(best, torch.inf))
        return estimates.scatter(2, tokens[..., None], first)

    return descend(problem, step, scores, steps)


@torch.no_grad()
def losses_of(problem: Problem, guesses: Tensor) -> Tensor:
    """The loss of N guesses for each row, `(P, N, T) -> (P, N)`."""
    P, N, T = guesses.shape
    flat, of_row = guesses.flatten(0, 1), torch.arange(P, device=guesses.device)
    of_row, losses = of_row.repeat_interleave(N), []
    for part in torch.arange(P * N, device=guesses.device).split(max(1, TOKENS // T)):
        shown = problem.shown(problem.circuit.embed(flat[part]))
        losses.append(relative(shown, problem.target[of_row[part]]))
    return torch.cat(losses).view(P, N)


def gradient_at(problem: Problem, tokens: Tensor) -> Tensor:
    """The loss's gradient at tokens' embeddings, `(P, T) -> (P, T, D)`."""
    x = problem.circuit.embed(tokens)
    return with_gradient(lambda x: relative(problem.shown(x), problem.target), x)[1]
