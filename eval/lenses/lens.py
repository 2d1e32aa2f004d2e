"""What a lens is: a name, a line about it, and a function of a checkpoint and what is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eval.checkpoints import Checkpoint
from eval.lenses.named import Named
from eval.text import Prompt

TOKENS = 8192


@dataclass(frozen=True)
class Request:
    """What is asked of a lens.

    Attributes:
        prompts: what is looked at, each short enough for the model.
        words: tokens whose probability or direction is followed, as texts; a lens that needs some
            and is given none takes the model's own answers.
        corpus: where text comes from, for a lens that is fitted or counted on some.
        tokens: how much of that text: with more of it all fits are better, and take longer.
        seed: of whatever is drawn.
    """

    prompts: tuple[Prompt, ...]
    words: tuple[str, ...] = ()
    corpus: str = "toy"
    tokens: int = TOKENS
    seed: int = 0


@dataclass(frozen=True)
class Finding:
    """What a lens found in one checkpoint.

    Attributes:
        arrays: by name; what figures are drawn from.
        figures: records of single numbers, which become rows: `figure` (its name), `value`, and
            whatever places it (`layer`, `part`, `method`, ...); `low`, `high`, `n` for an interval.
        notes: anything else that the page shows, as JSON holds it: `tokens` (a list of pieces for
            each prompt), tables, texts.
    """

    arrays: dict[str, Named] = field(default_factory=dict)
    figures: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Lens:
    """One way of looking.

    Attributes:
        name: as on the command line.
        about: in a line.
        find: looks. Raises RequestError for a model or a request that it cannot look at.
    """

    name: str
    about: str
    find: Callable[[Checkpoint, Request], Finding]
