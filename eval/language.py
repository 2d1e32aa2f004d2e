"""How well a model predicts text: nats per token, bits per byte, perplexity, tokens per second."""

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from eval.checkpoints import Checkpoint
from eval.errors import RequestError
from tokenizer import END_OF_TEXT, open_corpus


@dataclass(frozen=True)
class Loss:
    """Prediction of a text.

    Attributes:
        tokens: predicted tokens, ends of stories included.
        bytes: UTF-8 bytes of the stories.
        nats_per_token: mean cross entropy.
        bits_per_byte: comparable between tokenizers.
        perplexity: e to the nats per token.
        tokens_per_second: of this evaluation.
    """

    tokens: int
    bytes: int
    nats_per_token: float
    bits_per_byte: float
    perplexity: float
    tokens_per_second: float

    def record(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


@torch.no_grad()
def measure_loss(
    checkpoint: Checkpoint,
    corpus: str,
    stories: int | None = None,
    batch_size: int = 32,
) -> Loss:
    """Loss of a checkpoint on a corpus' validation stories, joined by ends of text.

    Every token but the first is predicted once, from at most one context of tokens before it, in
    windows that do not overlap.

    Args:
        checkpoint: the model and its tokenizer.
        corpus: a source that `tokenizer.open_corpus` reads.
        stories: only the first so many; all when not given.
        batch_size: windows sent through the model together.

    Raises:
        RequestError: fewer than two tokens.
        CorpusError: the corpus cannot be read.
    """
    tokens, size = _tokens(checkpoint, corpus, stories)
    T = checkpoint.config.context
    device = checkpoint.model.embedding.weight.device
    started, nats = time.perf_counter(), 0.0
    whole = (len(tokens) - 1) // T * T
    windows = [
        (tokens[:whole].reshape(-1, T), tokens[1 : whole + 1].reshape(-1, T)),
        (tokens[whole:-1][None], tokens[whole + 1 :][None]),
    ]
    for inputs, targets in windows:
        for i in range(0, len(inputs) if inputs.size else 0, batch_size):
            x = torch.from_numpy(inputs[i : i + batch_size].astype(np.int64)).to(device)
            y = torch.from_numpy(targets[i : i + batch_size].astype(np.int64)).to(device)
            logits = checkpoint.model(x).float()
            nats += float(F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum"))
    predicted = len(tokens) - 1
    mean = nats / predicted
    return Loss(
        tokens=predicted,
        bytes=size,
        nats_per_token=mean,
        bits_per_byte=nats / math.log(2) / size,
        perplexity=math.exp(min(mean, 700.0)),
        tokens_per_second=predicted / (time.perf_counter() - started),
    )


def _tokens(checkpoint: Checkpoint, corpus: str, limit: int | None) -> tuple[np.ndarray, int]:
    end = checkpoint.tokenizer.token_to_id(END_OF_TEXT)
    texts = []
    for story in open_corpus(corpus, "valid"):
        texts.append(story)
        if len(texts) == limit:
            break
    ids: list[int] = []
    for encoded in checkpoint.tokenizer.encode_batch_fast(texts, add_special_tokens=False):
        ids += [*encoded.ids, end]
    if len(ids) < 2:
        raise RequestError(f"--corpus {corpus}: it has nothing to predict")
    return np.array(ids, dtype=np.uint16), sum(len(text.encode()) for text in texts)
