"""What a model gives for a text: its logits, and the stream after each block."""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from arch import LanguageModel
from eval.messages import RequestError
from eval.models.pieces import encode_text


@dataclass(frozen=True)
class Outputs:
    """What a model gives for B texts of T tokens.

    Attributes:
        tokens: ids, `(B, T)`.
        logits: of the next token at each position, `(B, T, V)`.
        streams: the embeddings, then the stream after each block, each `(B, T, D)`: of block 2
            `streams[2]`.
    """

    tokens: Tensor
    logits: Tensor
    streams: tuple[Tensor, ...]


def run_model(model: LanguageModel, tokenizer: Tokenizer, text: str | Tensor) -> Outputs:
    """Runs a model once over a text, or over token ids `(B, T)`.

    Raises:
        RequestError: no valid text, no token, ids of another shape, or more than the context.
    """
    device, context = model.embedding.weight.device, model.config.context
    if isinstance(text, str):
        text = torch.tensor([encode_text(tokenizer, text, "text")], dtype=torch.long)
    whole = isinstance(text, Tensor) and not (text.is_floating_point() or text.is_complex())
    if not isinstance(text, Tensor) or not whole or text.dtype == torch.bool:
        kind = text.dtype if isinstance(text, Tensor) else type(text).__name__
        raise RequestError(f"text: a {kind}; give a text, or a tensor of token ids, (B, T)")
    text = text.long()
    if text.dim() != 2 or not 0 < text.shape[1] <= context:
        raise RequestError(
            f"text: its tokens are {tuple(text.shape)}; allowed: (B, T), T from 1 to the context "
            f"of {context}"
        )
    size = model.config.vocab_size
    if text.numel() and not 0 <= int(text.min()) <= int(text.max()) < size:
        raise RequestError(
            f"text: token ids from {int(text.min())} to {int(text.max())}; allowed: 0 to {size - 1}"
        )
    tokens = text.to(device)
    embeddings = model.embed(tokens)
    streams, x = [embeddings], model.with_positions(embeddings)
    for block in model.blocks:
        x = block(x)
        streams.append(x)
    return Outputs(tokens, model.logits(x), tuple(streams))
