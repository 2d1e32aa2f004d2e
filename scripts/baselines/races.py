"""Which models race, and who trains them."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from arch import ModelConfig
from scripts.baselines.contenders import ours, theirs

OURS = "python -m train"
TRAINER = "transformers' Trainer"
REFERENCE = "the reference under Trainer"
COMPILED = ", compiled"
OFF = OURS + ", kernels off"


MIXERS = {
    "flat": "flat",
    "expanded": "expanded(factor=1)",  # as the reference trains it
    "parallel": "parallel(branches=2)",
    "headed": "headed(heads=4)",
}
LLAMA: dict[str, Any] = {
    "mixers": ("attention(heads=4)",),
    "channel_mixer": "swiglu",
    "norm": "rmsnorm",
}
KERNELS = ((512, 512), (512, 2048), (256, 2048))  # width and length
RACES = ("llama", "flat", "kernels", *list(MIXERS)[1:])


@dataclass(frozen=True)
class Contender:
    """Who trains a race's model, and how.

    Attributes:
        work: called with the turns, what to train, and `arguments`.
        arguments: its own.
        precision: fp32, bf16 or fp16.
        compiled: asked for; without, ours is as its recipe has it: on a GPU compiled.
    """

    work: Callable[..., None]
    arguments: tuple[Any, ...]
    precision: str
    compiled: bool = False


@dataclass(frozen=True)
class Race:
    """One model, and the contenders by name, ours first."""

    name: str
    model: ModelConfig
    batch: int
    contenders: dict[str, Contender]

    @property
    def size(self) -> str:
        """In words."""
        m = self.model
        return (
            f"d={m.d_model} n={m.n_layers} T={m.context}, {self.batch} windows a step,"
            f" feed-forward {m.hidden_width}"
        )


def races(options: argparse.Namespace, vocab_size: int) -> Iterator[Race]:
    """What to run, the most important first.

    Args:
        options: of `scripts.bench_training`.
        vocab_size: of the data.
    """
    cuda = options.device == "cuda"

    def model(width: int, length: int, **more: Any) -> ModelConfig:
        sizes = {"vocab_size": vocab_size, "context": length, "n_layers": options.layers}
        return ModelConfig(d_model=width, **sizes, **more)

    for name in options.only:
        if name == "kernels":
            for width, length in KERNELS if cuda else ():
                batch = max(1, options.batch * options.length // length)
                on, off = (Contender(ours, ("flat", kernels), "bf16") for kernels in (True, False))
                yield Race("flat, kernels", model(width, length), batch, {OURS: on, OFF: off})
            continue
        for width in options.widths:
            if name == "llama":
                more = {"d_ff": 4 * width if cuda else width * 11 // 4, **LLAMA}
                config = model(width, options.length, **more)
            else:
                config = model(width, options.length, mixers=(MIXERS[name],))
            entered = _contenders(name, cuda)
            if options.eager:
                entered = {k: v for k, v in entered.items() if not v.compiled}
            yield Race(name, config, options.batch, entered)


def _contenders(name: str, cuda: bool) -> dict[str, Contender]:
    recipe = "llama" if name == "llama" else "flat"
    precision = "bf16" if cuda else "fp32"
    found = {OURS: Contender(ours, (recipe if cuda else f"{recipe}-small",), precision)}
    if not cuda:
        found[OURS + COMPILED] = Contender(ours, (f"{recipe}-small",), precision, True)
    peer = TRAINER if name == "llama" else REFERENCE
    if cuda and name != "llama":
        precision = "fp16"  # as it is published
    found[peer] = Contender(theirs, (name,), precision)
    found[peer + COMPILED] = Contender(theirs, (name,), precision, True)
    return found
