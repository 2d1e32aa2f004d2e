"""A decoder: a copy of the model, trained to write the tokens that lie behind one of its outputs.

The output of the last position stands as one more row before the tokens, and is added, by another
map, to the embedding of each; what the copy knows of language it keeps. It learns from text that
the model itself writes, so that no corpus is needed (language model inversion, Morris et al.,
2311.13647, with the model's own weights as the start).
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from arch import LanguageModel
from eval.inversion.problem import Problem
from eval.messages import RequestError
from eval.rows.progress import Progress, report_progress
from eval.sites.circuit import Circuit

BLOCK = 32  # one decoder is for prompts of up to 32 tokens, another for up to 64, and so on
WRITTEN = 1 << 19  # tokens of text that the model writes
TOGETHER = 256  # rows of it at once
LONGEST = 128  # tokens of such a row
OPENING = 8  # of them, which follow on a random token, are left out where there is room
SAMPLE = 4096  # outputs whose mean and scatter are taken
BATCH = 1024  # tokens a step
RATE, WARM, DECAY, CLIP = 3e-3, 100, 0.05, 1.0  # of AdamW: its rate, steps of warm-up, ...
WIDER = 8  # hidden units of the map from outputs, in widths of the model


class Decoder(nn.Module):
    """Logits of the tokens behind an output.

    Args:
        model: to copy.
        outputs: `(N, C)`, which give `mean`, `deviation` and `scatter`.
        longest: tokens of a prompt, at most.
    """

    def __init__(self, model: LanguageModel, outputs: Tensor, longest: int) -> None:
        super().__init__()
        self.mean, self.deviation = outputs.mean(0), outputs.std(0).clamp(min=1e-12)
        around = outputs - self.mean
        self.scatter = (around.mT @ around / len(around)).double()
        self.model = copy.deepcopy(model).to(outputs.dtype).requires_grad_(True)
        D, C = self.model.config.d_model, outputs.shape[1]
        last = nn.Linear(WIDER * D, 2 * D)
        self.read = nn.Sequential(nn.Linear(C, WIDER * D), nn.GELU(), last)
        self.left = nn.Embedding(longest + 1, D)  # how many tokens are still to come
        self.to(outputs)
        for tensor in (last.weight, last.bias, self.left.weight):
            nn.init.zeros_(tensor)  # the copy begins as the model, which reads nothing

    def forward(self, output: Tensor, tokens: Tensor, length: int, last: bool = False) -> Tensor:
        """Logits of each next token, `(N, n + 1, V)`.

        Args:
            output: of the last position, `(N, C)`.
            tokens: the first of them, `(N, n)`.
            length: how many there are in all.
            last: whether those after all n tokens are wanted alone, `(N, 1, V)`.
        """
        first, every = self.read((output - self.mean) / self.deviation).chunk(2, dim=-1)
        left = length - torch.arange(tokens.shape[1] + 1, device=tokens.device)
        rows = torch.cat([first[:, None], self.model.embed(tokens)], dim=1)
        rows = rows + every[:, None] + self.left(left)
        hidden = self.model.hidden(rows, self.model.config.n_layers)
        return self.model.logits(hidden[:, -1:] if last else hidden)


def open_decoder(problem: Problem, steps: int) -> Decoder:
    """The decoder of a problem's circuit and channels, trained when it is first asked for.

    Raises:
        RequestError: a prompt that leaves the decoder no row of the model's context.
    """
    circuit, shown = problem.circuit, problem.slice
    context = circuit.model.config.context
    longest = min(-(-problem.length // BLOCK) * BLOCK, context - 1)
    if problem.length > longest:
        raise RequestError(
            f"solver decoder: {problem.length} tokens; it needs a row more than the prompt has of "
            f"the context, {context}; use solver alternating"
        )
    about = shown.low, shown.high, longest, steps
    key = "decoder", circuit.name, circuit.without, *about
    return circuit.model.keep(key, lambda: train_decoder(circuit, *about))


@torch.no_grad()
def write_text(circuit: Circuit, count: int, generator: torch.Generator) -> Tensor:
    """Text of the model's own, `(N, M)`: `count` tokens, each row behind a random one."""
    model, device = circuit.model, circuit.model.embedding.weight.device
    length = min(LONGEST, model.config.context)
    starts = torch.randint(
        model.config.vocab_size, (-(-count // length), 1), generator=generator
    ).to(device)
    parts = []
    for tokens in starts.split(TOGETHER):
        new, state = tokens, None
        while tokens.shape[1] < length:
            hidden, state = model.prefix(model.embed(new), state)
            probabilities = model.logits(hidden[:, -1:])[:, 0].float().softmax(dim=-1).cpu()
            new = torch.multinomial(probabilities, 1, generator=generator).to(device)
            tokens = torch.cat([tokens, new], dim=1)
        parts.append(tokens)
    return torch.cat(parts)


@torch.enable_grad()
def train_decoder(
    circuit: Circuit, low: int, high: int | None, longest: int, steps: int
) -> Decoder:
    """Trains a decoder on prompts of 2 to `longest` tokens, the same number in each step.

    Args:
        circuit: whose outputs it reads.
        low, high: the channels that it reads.
        longest: tokens of a prompt, at most.
        steps: of AdamW, `BATCH` tokens each; the rate falls linearly to zero.
    """
    generator = torch.Generator().manual_seed(0)
    text = write_text(circuit, min(WRITTEN, steps * BATCH), generator)
    opening = min(OPENING, text.shape[1] // 2)
    sample = text[: -(-SAMPLE // text.shape[1])]

    def outputs_of(tokens: Tensor) -> Tensor:
        return circuit.of_tokens(tokens)[..., low:high]

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # and no other device's
        decoder = Decoder(circuit.model, outputs_of(sample)[:, opening:].flatten(0, 1), longest)
    optimizer = torch.optim.AdamW(decoder.parameters(), RATE, (0.9, 0.98), weight_decay=DECAY)
    warm = max(1, min(WARM, steps // 10))
    for step in tqdm(range(steps), "decoder", leave=False, unit=" steps", disable=None):
        report_progress(Progress())
        length = int(torch.randint(2, longest + 1, (), generator=generator))
        count = max(1, BATCH // length)
        row = torch.randint(len(text), (count, 1), generator=generator)
        last = text.shape[1] - length
        start = torch.randint(min(opening, last), last + 1, (count, 1), generator=generator)
        tokens = text[row, start + torch.arange(length)]
        optimizer.param_groups[0]["lr"] = RATE * min((step + 1) / warm, 1 - step / steps)
        logits = decoder(outputs_of(tokens)[:, -1], tokens[:, :-1], length)
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return decoder.requires_grad_(False)
