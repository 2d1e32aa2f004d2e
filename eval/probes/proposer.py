"""Proposals of tokens from a site's outputs, fitted in closed form on the model's own answers.

Three cases, by what is known of a position. The prompt's first output depends on its token alone,
so it is looked up among the outputs of all V tokens. Any other one is scored by the Gaussian
classifier of `moments`, given the output before it, which carries much of the shared context.
The first shown output of a prompt whose beginning is hidden is scored by itself.

The model is at hand, so its outputs may be asked for any text: in a share of the positions the
stories' tokens are replaced by tokens drawn evenly, and every token is seen several times.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eval.circuit import Circuit
from eval.errors import RequestError
from eval.probes.moments import Classifier, Moments, gaussian, gaussian_given

REPLACED = 0.3  # of the positions
BATCH = 8192  # tokens sent through the circuit together


@dataclass(frozen=True)
class Proposer:
    """Scores of the vocabulary at every position of a site's outputs.

    Attributes:
        first: the site's outputs for each token at the start of a prompt, `(V, F)`.
        alone: of an output by itself.
        following: of an output joined by the one before it.
    """

    first: Tensor
    alone: Classifier
    following: Classifier

    def __call__(self, outputs: Tensor, start: int = 0) -> Tensor:
        """`(P, S, F)` outputs at positions start ... start + S to `(P, S, V)` scores."""
        x = outputs[:, :1]
        leading = self.alone(x) if start else -torch.cdist(x, self.first[None])
        pairs = torch.cat([outputs[:, 1:], outputs[:, :-1]], dim=-1)
        return torch.cat([leading, self.following(pairs)], dim=1)


@torch.no_grad()
def fit_proposer(circuit: Circuit, tokens: Tensor, seed: int = 0) -> Proposer:
    """Fits in one pass over some text; 100,000 tokens are plenty at V = 4096.

    Args:
        circuit: any causal site.
        tokens: text like the prompts, in windows `(N, T)` that start as prompts do; T >= 2.
        seed: of the replaced tokens.

    Raises:
        RequestError: not causal, so that a first output is not its token's alone.
    """
    if not circuit.causal:
        raise RequestError("--without mask: every output depends on every token; keep the mask")
    embedding, device = circuit.vocabulary, circuit.vocabulary.device
    V, F = len(embedding), circuit.width
    replaced = replace_evenly(tokens, V, REPLACED, torch.Generator().manual_seed(seed))
    alone, following = Moments(V, F, device), Moments(V, 2 * F, device)
    for batch in replaced.to(device).split(max(1, BATCH // tokens.shape[1])):
        outputs = circuit.of_tokens(batch)
        alone.add(outputs, batch)
        following.add(torch.cat([outputs[:, 1:], outputs[:, :-1]], dim=-1), batch[:, 1:])
    return Proposer(
        first=circuit.of_tokens(torch.arange(V, device=device)[:, None])[:, 0],
        alone=gaussian(alone, embedding),
        following=gaussian_given(following, embedding, F),
    )


def replace_evenly(
    tokens: Tensor, vocabulary: int, share: float, generator: torch.Generator
) -> Tensor:
    """Replaces a share of `(N, T)` tokens so that each of the vocabulary comes up as often."""
    chosen = torch.rand(tokens.shape, generator=generator) < share
    count = int(chosen.sum())
    rounds = -(-count // vocabulary)
    even = [torch.randperm(vocabulary, generator=generator) for _ in range(rounds)]
    replaced = tokens.clone()
    if count:
        replaced[chosen] = torch.cat(even)[:count].to(tokens)
    return replaced
