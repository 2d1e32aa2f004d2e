"""What computing below float32 changes: states of models that ran in bfloat16 or half precision.

A model that computes in bfloat16 rounds after each of its steps, so that its states lie much
further from those of float32 than their own format's step. How far is measured: a copy of the model
computes in that precision, too. Another implementation rounds in another order; what it changes is
of the same size, but for tokens here and there, and not the same.
"""

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eval.captured.files.stored import FLOATS
from eval.models.text import held_out_text
from eval.sites.circuit import Circuit

if TYPE_CHECKING:
    from eval.models.checkpoint import Checkpoint

ALLOWED = 3.0
"""Times the measured change: what another implementation may change.

Of SmolLM2 in transformers, layers 1, 15 and 30, it was 0.7 to 1.5 times that of ours."""
WINDOWS = 8, 32  # of background text, and tokens of each
EXACT = "fp32"


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

    def share(self, circuit: Circuit, quantile: float = 1.0) -> float:
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
            return copy.deepcopy(circuit.model).to(FLOATS[self.name])

        return replace(circuit, model=circuit.model.keep(self.name, lowered)).of_tokens(tokens)

    def _background(self, circuit: Circuit) -> tuple[Tensor, Tensor]:
        """Changes as shares of their output's length, `(N,)`, and each channel's share of them."""

        def measure() -> tuple[Tensor, Tensor]:
            count, length = WINDOWS
            length = min(length, self.checkpoint.config.context)
            text = held_out_text(self.checkpoint, self.corpus)
            windows = text.windows("background", count, length, least=1)
            windows = windows.to(circuit.vocabulary.device)
            outputs = circuit.of_tokens(windows)
            change = self._changed(circuit, windows) - outputs
            size = change.norm(dim=-1, keepdim=True)
            usual = (change / size)[:, 1:].nan_to_num().square().mean(dim=(0, 1)).sqrt()
            return (size[..., 0] / outputs.norm(dim=-1)).flatten(), usual

        site = circuit.sites, circuit.part
        return self.checkpoint.keep(("arithmetic", self.name, site, self.corpus), measure)
