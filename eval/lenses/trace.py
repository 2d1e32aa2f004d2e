"""A prompt's way through a model: its streams, what every sublayer writes, what logits read.

A norm divides by a number that depends on the whole vector. With that number held fixed, LayerNorm
and RMSNorm are linear: a sum of vectors is read as the sum of their readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from arch import LanguageModel
from arch.pretrained.decoder import WholeBlock
from eval.messages import RequestError
from eval.models.checkpoint import Checkpoint
from eval.models.text import Prompt
from eval.sites.circuit import widened

SUBLAYERS = ("token mixer", "channel mixer")
ALIKE = 0.9  # correlation of logits that a scale or a cap alone parts
TOGETHER = 512  # positions of variants of a prompt that run at once


@dataclass(frozen=True)
class PromptBatch:
    """Prompts side by side, the shorter ones padded at their ends, unseen by causal models."""

    model: LanguageModel
    tokens: Tensor  # (B, T)
    real: Tensor  # (B, T), whether a position belongs to the prompt
    labels: list[str]  # a name for each prompt

    @cached_property
    def trace(self) -> Trace:
        """What the model makes of them, once for all lenses."""
        return trace(self.model, self.tokens)

    @property
    def streams(self) -> Tensor:
        """The streams of the trace, `(n + 1, B, T, D)`."""
        return self.trace.streams

    @property
    def logits(self) -> Tensor:
        """The logits after each prompt, `(B, V)`, in fp32 at least."""
        return widened(self.model.logits(self.at_last(self.streams[-1])[:, None])[:, 0])

    @property
    def last(self) -> Tensor:
        """The last real position of each prompt, `(B,)`."""
        return self.real.sum(dim=1) - 1

    @property
    def axes(self) -> dict[str, Any]:
        """The axes of arrays over prompts and their positions."""
        return {"prompt": self.labels, "position": range(self.tokens.shape[1])}

    @property
    def prompt_of(self) -> list[str]:
        """The label of each real position, prompt by prompt."""
        return [self.labels[row] for row in self.real.nonzero()[:, 0].tolist()]

    def at_last(self, values: Tensor) -> Tensor:
        """`(..., B, T, D)` at the last position of each prompt, `(..., B, D)`."""
        return values[..., torch.arange(len(self.last), device=self.last.device), self.last, :]

    def masked(self, values: Tensor) -> Tensor:
        """Values `(..., B, T)`, NaN past a prompt's end."""
        return values.masked_fill(~self.real, torch.nan)


class Trace(NamedTuple):
    """The streams and the writes of one forward pass: each stream is the sum of all writes before.

    A stream begins with the embedding, and a wrapped model's learnt positions.
    """

    start: dict[str, Tensor]  # what it begins with, by name, (B, T, D) each
    streams: Tensor  # at layers 0 ... n, (n + 1, B, T, D); the first block reads layer 0
    writes: Tensor  # what each block's token and channel mixer added, (n, 2, B, T, D)

    @property
    def parts(self) -> dict[str, Tensor]:
        """Every write by name, `(B, T, D)` each; their sum is the last stream."""
        names = (f"{n} {part}" for n in range(1, len(self.streams)) for part in SUBLAYERS)
        return self.start | dict(zip(names, self.writes.flatten(0, 1), strict=True))


def gather(checkpoint: Checkpoint, prompts: Sequence[Prompt]) -> PromptBatch:
    """Prompts as one batch on the model's device, the same for every lens.

    Raises:
        RequestError: a prompt that is longer than the model's context.
    """
    context = checkpoint.config.context
    for prompt in prompts:
        if prompt.real > context:
            raise RequestError(
                f"prompt {prompt.kind} {prompt.index} has {prompt.real} tokens; the context of "
                f"{checkpoint.path} is {context}: give a shorter --text or --length"
            )
    labels = [f"{prompt.kind} {prompt.index}" for prompt in prompts]
    rows = [prompt.tokens[: prompt.real] for prompt in prompts]
    return checkpoint.keep(
        ("prompts", tuple(prompts)), lambda: side_by_side(checkpoint, rows, labels)
    )


def side_by_side(
    checkpoint: Checkpoint, rows: Sequence[Sequence[int]], labels: list[str]
) -> PromptBatch:
    """Token ids of several texts as one batch on the model's device."""
    device = checkpoint.model.embedding.weight.device
    tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(device)
    sizes = torch.tensor([len(row) for row in rows], device=device)
    real = torch.arange(tokens.shape[1], device=device) < sizes[:, None]
    return PromptBatch(checkpoint.model, tokens, real, labels)


@torch.no_grad()
def trace(model: LanguageModel, tokens: Tensor) -> Trace:
    """Runs `(B, T)` tokens through a model and keeps everything that is written to the stream.

    A channel mixer's write is what the block's output has beyond its input and its token mixer's,
    so that the parts add up however the block puts them together.
    """
    embedding = model.embed(tokens)
    x = model.with_positions(embedding)
    start = {"embedding": embedding}
    if x is not embedding:
        start["positions"] = x - embedding
    streams, writes = [x], []
    for block in blocks_of(model):
        mixed = block.site("mixer", block.token_mixer(block.norm_token(x)))
        after = block.combine(x, mixed)
        writes.append(torch.stack([mixed, after - x - mixed]))
        x = after
        streams.append(x)
    return Trace(start, torch.stack(streams), torch.stack(writes))


def blocks_of(model: LanguageModel) -> list[Any]:
    """The blocks, in order."""
    return list(model.blocks)


def require_parts(model: LanguageModel) -> None:
    """Refuses a model whose blocks are whole layers of transformers.

    Raises:
        RequestError: naming lenses that can look at it.
    """
    if any(isinstance(block, WholeBlock) for block in model.blocks):
        raise RequestError(
            f"of a {model.config.mixers[0]} model whole blocks are known, not their parts; use "
            "--lens logit, tuned, patching or another that reads whole blocks"
        )


def spaced_layers(depth: int, most: int) -> list[int]:
    """At most so many layers of 1 ... depth, evenly spaced, the last among them."""
    count = min(depth, most)
    return [round(depth * (i + 1) / count) for i in range(count)]


def run_on(model: LanguageModel, x: Tensor, layer: int = 0, last: Tensor | None = None) -> Tensor:
    """Logits after the `last` position `(R,)` of each row of streams, or the final one, `(R, V)`.

    The streams `(R, T, D)` are those after block `layer`, changed in any way. Logits are in fp32 at
    least: differences and sums of those of half precision are soon infinite.
    """
    if last is None:
        last = torch.full((len(x),), x.shape[1] - 1, device=x.device)
    ends = []
    for batch, at in zip(
        *(v.split(max(1, TOGETHER // x.shape[1])) for v in (x, last)), strict=True
    ):
        for block in blocks_of(model)[layer:]:
            batch = block(batch)
        ends.append(model.logits(batch[torch.arange(len(batch), device=x.device), at, None])[:, 0])
    return widened(torch.cat(ends))


def readers(model: LanguageModel) -> Tensor:
    """The direction of the stream that each token's logit reads, `(V, D)`.

    A logit is the stream's product with it, times `norm_scale`, plus the `constants`; some families
    scale or cap it then. It is a row of the output embedding, times the final norm's weights; under
    a LayerNorm, which takes the mean away, without its own mean.

    Raises:
        RequestError: a final norm that is not known, or logits that more than it and the head make.
    """
    rows, norm = model.head.weight.detach(), cast(Any, model.norm)
    norm_scale(norm, rows[:1])  # refuses
    _check_head(model, rows)
    if getattr(norm, "weight", None) is not None:
        rows = rows * _gain(norm, rows)
    return rows - rows.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else rows


@torch.no_grad()
def _check_head(model: LanguageModel, rows: Tensor) -> None:
    """Refuses logits that do not rise and fall with the head's, as a BERT's behind a transform.

    Raises:
        RequestError: naming the family.
    """
    x = torch.randn(1, 4, rows.shape[1], generator=torch.Generator().manual_seed(0)).to(rows)
    own, ours = model.logits(x), model.head(model.norm(x))
    pair = torch.stack([own.flatten(), ours[..., : own.shape[-1]].flatten()]).float()
    if not torch.corrcoef(pair)[0, 1] > ALIKE:
        raise RequestError(
            f"between this {model.config.mixers[0]} model's last stream and its logits stand more "
            "than a norm and a head, so that they cannot be read part by part"
        )


@torch.no_grad()
def _gain(norm: Any, rows: Tensor) -> Tensor:
    """What a norm multiplies each channel by; some families keep that less 1 as its weights."""
    if type(norm) in (nn.LayerNorm, nn.RMSNorm):
        return norm.weight
    x = 1.0 - 2.0 * (torch.arange(rows.shape[1], device=rows.device) % 2).to(rows)
    seen = x - x.mean() if isinstance(norm, nn.LayerNorm) else x
    return (norm(x) - norm(-x)) / (2 * norm_scale(norm, x) * seen)


def norm_scale(norm: Any, x: Tensor) -> Tensor:
    """What a norm multiplies x `(..., D)` by, its weights aside, `(..., 1)`.

    Raises:
        RequestError: neither LayerNorm, RMSNorm of torch or transformers, nor identity.
    """
    if isinstance(norm, nn.Identity):
        return torch.ones_like(x[..., :1])
    wide = widened(x)  # a square of half precision is soon infinite
    if isinstance(norm, nn.LayerNorm):
        variance = wide.var(-1, keepdim=True, unbiased=False)
        return torch.rsqrt(variance + norm.eps).to(x)
    if "RMSNorm" not in type(norm).__name__:
        raise RequestError(
            f"the final norm is a {type(norm).__name__}; only LayerNorm, RMSNorm and none can be "
            "read part by part"
        )
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps).to(x)


def constants(model: LanguageModel) -> dict[str, Tensor]:
    """What every logit has whatever the stream is, `(V,)` by name: biases of norm and head."""
    biases = {"norm bias": getattr(model.norm, "bias", None), "head bias": model.head.bias}
    if biases["norm bias"] is not None:
        biases["norm bias"] = model.head.weight @ biases["norm bias"]
    return {name: bias for name, bias in biases.items() if bias is not None}
