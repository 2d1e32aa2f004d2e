"""Stories for lenses that fit: windows of them, and a model's streams of those."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from arch import LanguageModel
from eval.checkpoints import Checkpoint
from eval.errors import RequestError
from eval.lenses.lens import Request
from eval.lenses.trace import streams_of
from eval.text import Use, held_out_text

WINDOW = 128  # tokens, or the context
PART = 1 << 24  # numbers of streams that are computed at once
KEPT = 1 << 27  # numbers of streams that are held; of more text they are computed anew


class Stories:
    """Windows of stories and a model's streams of them, which several lenses are fitted on.

    Args:
        model: whose streams.
        windows: `(N, T)`, on the model's device.
    """

    def __init__(self, model: LanguageModel, windows: Tensor) -> None:
        self.model, self.windows = model, windows

    def streams(self, rows: slice | Tensor) -> Tensor:
        """Of some windows, layers 0 ... n: `(n + 1, B, T, D)`."""
        if self._all is None:
            return streams_of(self.model, self.windows[rows])
        return self._all[:, rows]

    def batches(
        self, tokens: int | None = None, stop: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Windows `(B, T)` with their streams, in order.

        Args:
            tokens: at a time, about.
            stop: the window to end before.
        """
        stop = len(self.windows) if stop is None else stop
        size = self._fitting if tokens is None else max(1, tokens // self.windows.shape[1])
        for start in range(0, stop, size):
            rows = slice(start, min(start + size, stop))
            yield self.windows[rows], self.streams(rows)

    @cached_property
    def _all(self) -> Tensor | None:
        if self.windows.numel() * self._width > KEPT:
            return None
        parts = self.windows.split(self._fitting)
        return torch.cat([streams_of(self.model, part) for part in parts], dim=1)

    @property
    def _width(self) -> int:
        """Numbers of a token."""
        return (len(self.model.blocks) + 1) * self.model.config.d_model

    @property
    def _fitting(self) -> int:
        """Windows that are computed at once."""
        return max(1, PART // (self.windows.shape[1] * self._width))


def stories(checkpoint: Checkpoint, request: Request, use: Use, count: int) -> Stories:
    """The first `count` windows of a request's text; asked for again they are the same ones.

    Raises:
        RequestError: there are fewer, or a directory packed by another tokenizer.
        CorpusError: the corpus cannot be read.
    """
    key = ("stories", request.corpus, use, count)
    if key not in checkpoint.kept:
        length = min(WINDOW, checkpoint.config.context)
        windows = held_out_text(checkpoint, request.corpus).windows(use, count, length)
        windows = windows.to(checkpoint.model.embedding.weight.device)
        checkpoint.kept[key] = Stories(checkpoint.model, windows)
    return checkpoint.kept[key]


def whole_windows(checkpoint: Checkpoint, request: Request, least: int, what: str) -> int:
    """How many windows the tokens of a request are.

    Args:
        checkpoint: whose context.
        request: how many tokens.
        least: windows that are needed.
        what: needs them, for the refusal.

    Raises:
        RequestError: fewer.
    """
    length = min(WINDOW, checkpoint.config.context)
    count = request.tokens // length
    if count < least:
        raise RequestError(
            f"--tokens {request.tokens}: {what} {least * length} at least; ask for more"
        )
    return count
