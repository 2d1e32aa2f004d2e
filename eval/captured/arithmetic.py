"""What computing below float32 changes: states of models that ran in bfloat16 or half precision.

A model that computes in bfloat16 rounds after each of its steps, so that its states lie much
further from those of float32 than their own format's step. How far is measured: a copy of the model
computes in that precision, too. Another implementation rounds in another order. Its changes differ
from ours number by number; their size is about the same, except at a few tokens.
"""

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eval.captured.files.stored import EXACT, FLOATS, rounding_spread
from eval.models.text import HeldOutText, held_out_text
from eval.sites.circuit import Circuit
from eval.sites.rounding import Tolerance, capture
from eval.sites.slices import Slice

if TYPE_CHECKING:
    from eval.models.checkpoint import Checkpoint

WINDOWS = 8, 32  # of background text, and tokens of each
FEWEST = 8  # tokens of background text on which rounding is seen: experts may flip at one
USUAL = 0.9  # fraction of tokens that a lower precision changes as usual; the others up to 10 times


def take_windows(checkpoint: "Checkpoint", corpus: str, count: int, length: int) -> Tensor:
    """Windows of background text, `(count, length)`, none of them longer than the context."""
    length = min(length, checkpoint.config.context)
    text = held_out_text(checkpoint, corpus).windows("background", count, length, least=1)
    return text.to(checkpoint.model.embedding.weight.device)


@dataclass(frozen=True)
class Arithmetic:
    """The precision that captured states were computed in.

    Attributes:
        checkpoint: the model, in float32.
        name: one of `FLOATS`.
        corpus: on whose background text the change is measured.
    """

    checkpoint: "Checkpoint"
    name: str = EXACT
    corpus: str = ""

    @cached_property
    def _text(self) -> HeldOutText:
        return held_out_text(self.checkpoint, self.corpus)

    def tolerance(
        self, circuit: Circuit, visible: Slice, values: Tensor, steps: Tensor, most: float = 1.0
    ) -> Tolerance:
        """The tolerance of a search, by what background text shows of a site.

        Args:
            visible: what is shown of it.
            values: captured there, `(B, T, width)`.
            steps: of the format of what is shown, `(B, S, C)`.
            most: quantile of the change by a lower precision that is allowed.
        """
        size = visible.select(values).norm(dim=-1)
        floor = self.floor_fraction(circuit, visible, values.shape[1]) * size
        usual = None
        if self.name != EXACT:
            usual = self.change_fraction(circuit, min(most, USUAL)) * size
        change = self.change_fraction(circuit, most) * size
        return Tolerance(floor, rounding_spread(steps), change, usual)

    def floor_fraction(self, circuit: Circuit, visible: Slice, length: int) -> float:
        """The largest rounding floor of background text, as a fraction of an output's length."""

        def largest() -> float:
            window = take_windows(self.checkpoint, self.corpus, 1, max(length, FEWEST))
            ((outputs, rounding),) = capture([circuit], window)
            outputs, rounding = (visible.select(x[:, :length]) for x in (outputs, rounding))
            return float((rounding.norm(dim=-1) / outputs.norm(dim=-1)).max())

        key = "floor fraction", circuit.name, self._text, str(visible), length
        return self.checkpoint.keep(key, largest)

    def change_fraction(self, circuit: Circuit, quantile: float = 1.0) -> float:
        """A quantile of the change of a site's outputs on background text, of their length."""
        if self.name == EXACT:
            return 0.0
        return float(self._background(circuit)[0].quantile(quantile))

    def change(self, circuit: Circuit, tokens: Tensor, outputs: Tensor) -> Tensor:
        """How far each number of the outputs of `(B, T)` tokens moves, `(B, T, width)`.

        The change of our copy, or, where that is smaller by chance, what is usual for the channel.
        """
        if self.name == EXACT:
            return torch.zeros_like(outputs)
        own = self._changed(circuit, tokens) - outputs
        usual = self._background(circuit)[1]
        return torch.maximum(own.abs(), own.norm(dim=-1, keepdim=True) * usual)

    def _changed(self, circuit: Circuit, tokens: Tensor) -> Tensor:
        def lowered() -> torch.nn.Module:
            copied = copy.deepcopy(circuit.model)
            for tensor in copied.state_dict(keep_vars=True).values():  # not a rotation's tables
                if tensor.is_floating_point():
                    tensor.data = tensor.data.to(FLOATS[self.name])
            return copied

        return replace(circuit, model=circuit.model.keep(self.name, lowered)).of_tokens(tokens)

    def _background(self, circuit: Circuit) -> tuple[Tensor, Tensor]:
        """Changes over the length of their output, `(N,)`, and the part of each channel in them."""

        def measure() -> tuple[Tensor, Tensor]:
            windows = take_windows(self.checkpoint, self.corpus, *WINDOWS)
            outputs = circuit.of_tokens(windows)
            change = self._changed(circuit, windows) - outputs
            size = change.norm(dim=-1, keepdim=True)
            usual = (change / size)[:, 1:].nan_to_num().square().mean(dim=(0, 1)).sqrt()
            return (size[..., 0] / outputs.norm(dim=-1)).flatten(), usual

        return self.checkpoint.keep(("arithmetic", self.name, circuit.name, self._text), measure)
