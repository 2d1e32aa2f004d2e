"""How well a mixer learns to copy: the second half of a sequence repeats the first."""

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from arch import LanguageModel, ModelConfig
from train.settings import OptimizerSettings, ScheduleSettings
from train.steps.optim import build_optimizer, rate


def draw_copies(count: int, half: int, vocabulary: int, generator: torch.Generator) -> Tensor:
    """`(count, 2 half)` tokens, drawn uniformly and repeated once."""
    first = torch.randint(vocabulary, (count, half), generator=generator)
    return torch.cat([first, first], dim=1)


def score_copies(model: Callable[[Tensor], Tensor], tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of the second half, nats a token, and the fraction of it that is named.

    The model gives logits `(N, T, V)` for `(N, T)` tokens.
    """
    half = tokens.shape[1] // 2
    logits, targets = model(tokens)[:, half - 1 : -1], tokens[:, half:]
    right = (logits.argmax(-1) == targets).float().mean()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), right


def learn_copying(
    config: ModelConfig,
    optimizer: OptimizerSettings,
    measured: Iterable[int],
    seed: int,
    windows: int = 16,
    warmup: int = 100,
) -> Iterator[tuple[int, float, float]]:
    """Trains a model on copies, at a constant rate after the warm-up.

    Args:
        config: whose context is a sequence's length, even.
        optimizer: its highest rates.
        measured: steps after which 64 fresh sequences are asked, in rising order.
        seed: of weights and sequences.
        windows: sequences of a step.
        warmup: steps.

    Yields:
        Step, loss of the second half in nats a token, and the fraction of it that is named.
    """
    torch.manual_seed(seed)
    model, half = LanguageModel(config), config.context // 2
    built = build_optimizer(model, optimizer)
    highest = [group["lr"] for group in built.param_groups]
    schedule = ScheduleSettings(warmup_steps=warmup, decay="none")
    generator = torch.Generator().manual_seed(seed)
    fresh = draw_copies(64, half, config.vocab_size, torch.Generator().manual_seed(seed + 1))
    wanted = set(measured)
    for step in range(max(wanted)):
        for group, lr in zip(built.param_groups, highest, strict=True):
            group["lr"] = lr * rate(step, max(wanted), schedule)
        tokens = draw_copies(windows, half, config.vocab_size, generator)
        score_copies(model, tokens)[0].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer.clip)
        built.step()
        built.zero_grad()
        if step + 1 in wanted:
            with torch.no_grad():
                loss, right = score_copies(model, fresh)
            yield step + 1, float(loss), float(right)
