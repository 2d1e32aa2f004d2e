"""Does a model see the future? A check from outside, of any token mixer.

Each part of a model is run on the same inputs in several ways: with other inputs from some position
on, on prefixes, and alone instead of in a batch. Whatever else it computes, the outputs before that
position must stay as they are.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from arch.config import ModelConfig
from arch.decoder import WholeLayer
from arch.errors import ModelError
from arch.mixers.base import SideBySide
from arch.model import Block, LanguageModel

BUDGET = 6e9
"""FLOP of one round of the check, about: a larger model is run on fewer positions."""
SHORTEST = 16
"""Positions that every model is run on, if its context has as many."""
PLANS = ((8, 99), (8, 8), (4, 8), (2, 8))
"""Rows of the batch, and prefixes at most; the first that the budget allows. A model with its own
weights is run on four rows at most."""

OTHERS = "another sequence of the batch"
Run = Callable[[Tensor], Tensor]
Part = TypeVar("Part", bound=nn.Module)


class Stage:
    """A part of a model, its inputs `(K, T, D)` and outputs, `(K, T, D)` or `(K, T, V)`."""

    def __init__(self, name: str, part: Run, x: Tensor) -> None:
        self.name, self.x, self._part = name, x, part
        self.y = self.run(x)

    def run(self, x: Tensor) -> Tensor:
        """The part's outputs; each run has the same chance, for dropout."""
        with torch.random.fork_rng([x.device] if x.is_cuda else []):
            return self._part(x)


@torch.no_grad()
def check_causal(model: LanguageModel) -> float:
    """Refuses a model in which an output depends on a later token, or on another sequence.

    Looked at are the way into the first block, every block and the head, with the model's own
    weights in their precision. Then every kind of block, with random numbers added to all its
    weights, so that a gate that starts at zero is open: in float32, under bfloat16 autocast, and in
    training mode, as statistics of a batch are seen there only. Inputs are changed from up to seven
    positions on, at powers of two and beside them; prefixes of all such lengths up to the context
    are run alone. With the model's own weights these are three positions and eight prefixes. Wide
    models and long contexts are seen on fewer positions, 16 at least. A model of transformers is
    run with its own weights only. The model and the global random state are left as they were.

    Not found is what moves an output by less than rounding may: half of the precision's digits, of
    the block's own share of the stream. Nor what acts at a single pair of positions between those
    that were tried, or in a longer text; on some tokens only; in numbers that are not finite; or in
    a code path that other inputs, another device or another batch takes.

    Returns:
        The largest difference found, as a share of what rounding may make.

    Raises:
        ModelError: the layer and mixer, the position that moved, by how much and by which other; or
            a mixer that cannot run a text shorter than the context.
    """
    chance = torch.Generator().manual_seed(0)
    with _in_evaluation(model):
        worst = _check_as_it_is(model, chance)
        for name, block in kinds(model).items():
            worst = max(worst, _check_scrambled(name, block, model.config, chance))
    return worst


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """The model is in evaluation mode, and then as it was, part by part."""
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode


def kinds(model: LanguageModel) -> dict[str, Block]:
    """The first block of each kind by its name, of a model that is built from a configuration."""
    found: dict[tuple[str, str], tuple[str, Block]] = {}
    if type(model.config) is ModelConfig:
        entries = model.config.mixers
        for i, block in enumerate(model.blocks):
            key = entries[i % len(entries)], str(block)
            found.setdefault(key, (layer_name(model, i + 1), block))  # pyright: ignore
    return dict(found.values())


def layer_name(model: LanguageModel, layer: int) -> str:
    """As errors name a block, counted as sites are: `layer 1 (Flat)`."""
    mixer = model.blocks[layer - 1].token_mixer
    mixer = mixer.layer if isinstance(mixer, WholeLayer) else mixer
    parts = mixer.mixers if isinstance(mixer, SideBySide) else [mixer]
    return f"layer {layer} ({'+'.join(type(part).__name__ for part in parts)})"


def scrambled(module: Part, chance: torch.Generator) -> Part:
    """A copy in float32 with random numbers of their usual size added to all weights."""
    copied = copy.deepcopy(module).float()
    with torch.no_grad():
        for weight in copied.parameters():
            std = weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.5
            weight += std * torch.randn(weight.shape, generator=chance).to(weight.device)
    return copied


def _check_as_it_is(model: LanguageModel, chance: torch.Generator) -> float:
    """All stages with the model's own weights, each on the outputs of the one before."""
    K, T, lengths = _plan(model.config, len(model.blocks), PLANS[2:])
    device = model.embedding.weight.device
    tokens = torch.randint(model.config.vocab_size, (K, T), generator=chance).to(device)
    x, stages = model.embed(tokens), []
    parts: dict[str, Run] = {"layer 0 (the embedding)": model.with_positions}
    parts |= {layer_name(model, layer): block for layer, block in enumerate(model.blocks, 1)}
    for name, part in parts.items():
        stages.append(Stage(name, part, x))
        x = stages[-1].y
    stages.append(Stage("the head", model.logits, x[:, :SHORTEST]))  # its outputs are wide
    return _judge(stages, lengths, _rounding(x.dtype), "with its own weights")


def _check_scrambled(
    name: str, block: Block, config: ModelConfig, chance: torch.Generator
) -> float:
    """A block with random weights, in two precisions and in training mode."""
    K, T, lengths = _plan(config, 1, PLANS)
    block = scrambled(block, chance)
    device = next((weight.device for weight in block.parameters()), torch.device("cpu"))
    x = torch.randn(K, T, config.d_model, generator=chance).to(device)
    how, eps = "with random weights, in", _rounding(torch.float32)
    worst = _judge([Stage(name, block, x)], lengths, eps, f"{how} float32")
    block.train()
    worst = max(worst, _judge([Stage(name, block, x)], (), eps, f"{how} training mode"))
    block.eval()
    with torch.autocast(device.type, torch.bfloat16):
        try:
            stage = Stage(name, block, x)
        except (RuntimeError, TypeError):  # it cannot be trained in this precision either
            return worst
        eps = torch.finfo(torch.bfloat16).eps
        return max(worst, _judge([stage], _spread(lengths, 8), eps, f"{how} bfloat16"))


def _plan(
    config: ModelConfig, blocks: int, plans: Sequence[tuple[int, int]]
) -> tuple[int, int, list[int]]:
    """Rows K, positions T and lengths of prefixes, of a round that passes so many blocks."""
    D, T = config.d_model, config.context
    while True:
        for K, most in plans:
            lengths = _spread(_lengths(T), most)
            work = blocks * D * (24 * D + 4 * T) * (2 * K * T + sum(lengths))
            if work <= BUDGET or (T <= SHORTEST and plans[-1][0] == K):
                return K, T, lengths
        T //= 2


def _lengths(T: int) -> list[int]:
    """The powers of two and those beside them, up to T, and T itself."""
    near = {2**k + d for k in range(T.bit_length()) for d in (-1, 0, 1)}
    return sorted(n for n in near | {T} if 0 < n <= T)


def _spread(values: list[int], most: int) -> list[int]:
    """At most so many of the values, evenly chosen, the last among them."""
    if len(values) <= most:
        return values
    return [values[round((i + 1) * len(values) / most) - 1] for i in range(most)]


def _rounding(dtype: torch.dtype) -> float:
    """The unit of rounding of what is computed in a dtype."""
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        dtype = torch.bfloat16
    return torch.finfo(dtype).eps


def _judge(stages: Sequence[Stage], lengths: Sequence[int], eps: float, how: str) -> float:
    """Compares each stage's outputs with those of changed inputs, and of prefixes alone."""
    worst = 0.0
    for stage in stages:
        x, y = stage.x, stage.y
        later = _later(x.shape[0], x.shape[1], x.device)
        moved = _size(stage.run(torch.where(later[..., None], x.roll(1, 0), x)) - y)
        share = moved / _limit(x, y, eps)
        share[later] = 0
        if (share > 1).any():
            raise ModelError(_describe(stage, share, moved, eps, how))
        worst = max(worst, float(share.max()))
    for n in sorted(lengths, reverse=True):
        for stage in stages:
            T = stage.x.shape[1]
            if n > T:
                continue
            x, y = stage.x[:1, :n], stage.y[:1, :n]
            moved = _size(_run_prefix(stage, n) - y)
            share = moved / _limit(x, y, eps)
            if (share > 1).any():
                place = int((share > 1).nonzero()[0, 1])
                seen = f"the length of the text, {n} or {T} positions," if n < T else OTHERS
                raise ModelError(_line(stage, seen, place, float(moved[0, place]), how))
            worst = max(worst, float(share.max()))
    return worst


def _later(K: int, T: int, device: torch.device) -> Tensor:
    """Which inputs are changed, `(K, T)`: a row's from a position on, none of the last."""
    cuts = _spread([n for n in _lengths(T) if n < T], K - 1)
    cuts = torch.tensor(cuts + [T] * (K - len(cuts)), device=device)
    return torch.arange(T, device=device) >= cuts[:, None]


def _run_prefix(stage: Stage, n: int) -> Tensor:
    T = stage.x.shape[1]
    try:
        return stage.run(stage.x[:1, :n])
    except Exception as error:
        if n == T:
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"{stage.name} runs {T} positions and not {n}: {reason}; a token mixer takes any "
            "length up to the context"
        ) from error


def _limit(x: Tensor, y: Tensor, eps: float) -> Tensor:
    """By how much rounding may move each position's outputs, `(K, T)`."""
    added = y - x if x.shape == y.shape else y
    return eps**0.5 * _size(added) + 4 * eps * _size(y) + torch.finfo(torch.float32).tiny


def _size(x: Tensor) -> Tensor:
    """The largest finite number of each position's features, `(K, T)`."""
    return x.abs().nan_to_num(nan=0.0, posinf=0.0).amax(-1)


def _describe(stage: Stage, share: Tensor, moved: Tensor, eps: float, how: str) -> str:
    """What moved an output that should not have: the first position that does it alone."""
    x = stage.x
    K, T = x.shape[:2]
    broken = [(place, row) for row, place in (share > 1).nonzero().tolist()]
    unchanged = [(place, row) for place, row in broken if row == K - 1]
    place, row = min(unchanged or broken)
    seen, size = OTHERS if unchanged else "later positions", float(moved[row, place])
    limit = _limit(x, stage.y, eps)[row, place]
    for t in () if unchanged else range(place + 1, T):
        changed = x.clone()
        changed[row, t] = x[row - 1, t]
        alone = _size(stage.run(changed) - stage.y)[row, place]
        if alone > limit:
            seen, size = f"position {t}", float(alone)
            break
    return _line(stage, seen, place, size, how)


def _line(stage: Stage, seen: str, place: int, size: float, how: str) -> str:
    most = float(_size(stage.y).max())
    return (
        f"{stage.name} is not causal: {seen} moves the output at position {place} by {size:.2g}, "
        f"of {most:.2g} ({how}); an output may depend on its own and earlier positions alone"
    )
