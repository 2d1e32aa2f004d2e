"""The figures of a contender in a race, from the turns that it took."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from scripts.baselines.turns import Turn


@dataclass(frozen=True)
class Row:
    """One contender of one race; the first of a race is ours.

    Attributes:
        race: what is trained.
        size: how large it is, in words.
        contender: who.
        precision: fp32, bf16 or fp16.
        turns: that were timed.
        tokens: a second, by the clock: the median over the turns.
        least: of them.
        most: of them.
        memory: bytes, at the peak.
        flops: a second, as `arch.describe` counts those of the model.
        ratio: our tokens a second over its own, the median over rounds; 1 for ours.
        ratio_least: over rounds.
        ratio_most: over rounds.
        ratio_work: the same by processor time.
        failed: why there are no figures.
    """

    race: str
    size: str
    contender: str
    precision: str
    turns: int = 0
    tokens: float = 0.0
    least: float = 0.0
    most: float = 0.0
    memory: int = 0
    flops: float = 0.0
    ratio: float = 0.0
    ratio_least: float = 0.0
    ratio_most: float = 0.0
    ratio_work: float = 0.0
    failed: str | None = None


def row(
    about: Row,
    own: Sequence[Turn],
    ours: Sequence[Turn],
    batch_tokens: int,
    flops: int,
) -> Row:
    """The figures of a contender.

    Args:
        about: a row with race, size, contender and precision.
        own: its turns.
        ours: our turns of the same rounds.
        batch_tokens: trained on in a step.
        flops: of training, per token.
    """
    speeds = [batch_tokens * turn.steps / turn.seconds for turn in own]
    pairs = list(zip(own, ours, strict=False))
    ratios = [(a.seconds / a.steps) / (b.seconds / b.steps) for a, b in pairs]
    works = [(a.work / a.steps) / (b.work / b.steps) for a, b in pairs]
    return replace(
        about,
        turns=len(own),
        tokens=median(speeds),
        least=min(speeds),
        most=max(speeds),
        memory=max(turn.memory for turn in own),
        flops=median(speeds) * flops,
        ratio=median(ratios) if ratios else 0.0,
        ratio_least=min(ratios, default=0.0),
        ratio_most=max(ratios, default=0.0),
        ratio_work=median(works) if works else 0.0,
    )
